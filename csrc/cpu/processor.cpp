// On x86 CPUID says what the processor has, XCR0 which registers the operating system keeps, arch_prctl whether AMX is
// allowed; on Arm the operating system says what it has.
#include "cpu/processor.h"

#if defined(__x86_64__)
#include <cpuid.h>

#include <cstdint>

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(__linux__)
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace pyperf::cpu {
namespace {

#if defined(PYPERF_EMULATED)
Processor detect() { return {true, true, true, true, ""}; }
#elif defined(__x86_64__)
bool has(unsigned bits, int bit) { return bits >> bit & 1; }

std::uint64_t kept_registers() {
    std::uint32_t low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return static_cast<std::uint64_t>(high) << 32 | low;
}

// Tiles are 8 KiB a thread, so Linux wants to be asked first (Documentation/arch/x86/xstate.rst).
bool amx_permitted() {
#if defined(__linux__)
    constexpr long request_permission = 0x1023, tile_data = 18;
    return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
#else
    return false;
#endif
}

Processor detect() {
    Processor found;
    unsigned a, b, c, d, unused, eax_of_more = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !has(c, 27)) return found;  // without OSXSAVE there is no xgetbv
    const std::uint64_t kept = kept_registers();
    constexpr std::uint64_t zmm = 0xe6, tiles = 3u << 17;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return found;
    if (a >= 1) __get_cpuid_count(7, 1, &eax_of_more, &unused, &unused, &unused);
    found.avx512 = (kept & zmm) == zmm && has(b, 16) && has(b, 17) && has(b, 30) && has(b, 31);
    found.avx512_vnni = found.avx512 && has(c, 11);
    found.avx512_bf16 = found.avx512 && has(eax_of_more, 5);
    if (has(d, 22) && has(d, 24) && has(d, 25)) {
        const bool kept_tiles = (kept & tiles) == tiles;
        found.amx = found.avx512_bf16 && kept_tiles && amx_permitted();
        if (!found.amx) found.amx_refused = "the operating system does not allow it AMX";
    }
    return found;
}
#else
Processor detect() {
    Processor found;
#if defined(__aarch64__) && defined(__linux__)
    // Documentation/arch/arm64/elf_hwcaps.rst; the C library's headers may be older than the bits.
    constexpr unsigned long asimddp = 1ul << 20, i8mm = 1ul << 13, bf16 = 1ul << 14;
    found.neon_dot = (getauxval(AT_HWCAP) & asimddp) != 0;
    found.neon_bf16 = (getauxval(AT_HWCAP2) & (i8mm | bf16)) == (i8mm | bf16);
#elif defined(__aarch64__) && defined(__APPLE__)
    const auto has = [](const char* name) {
        int value = 0;
        size_t bytes = sizeof value;
        return sysctlbyname(name, &value, &bytes, nullptr, 0) == 0 && value != 0;
    };
    found.neon_dot = has("hw.optional.arm.FEAT_DotProd");
    found.neon_bf16 = has("hw.optional.arm.FEAT_BF16") && has("hw.optional.arm.FEAT_I8MM");
#endif
    return found;
}
#endif

}  // namespace

const Processor& processor() {
    static const Processor found = detect();
    return found;
}

}  // namespace pyperf::cpu
