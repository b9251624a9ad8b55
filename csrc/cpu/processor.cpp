// On x86 CPUID says what the processor has, XCR0 which registers the operating system keeps, arch_prctl whether AMX is
// allowed.
#include "cpu/processor.h"

#if defined(__x86_64__)
#include <cpuid.h>

#include <cstdint>

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

namespace pyperf::cpu {
namespace {

#if defined(PYPERF_EMULATED)
Processor detect() { return {true, true, true, ""}; }
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
    found.avx512_bf16 = found.avx512 && has(eax_of_more, 5);
    if (has(d, 22) && has(d, 24)) {
        const bool kept_tiles = (kept & tiles) == tiles;
        found.amx = found.avx512_bf16 && kept_tiles && amx_permitted();
        if (!found.amx) found.amx_refused = "the operating system does not allow it AMX";
    }
    return found;
}
#else
Processor detect() { return {}; }
#endif

}  // namespace

const Processor& processor() {
    static const Processor found = detect();
    return found;
}

}  // namespace pyperf::cpu
