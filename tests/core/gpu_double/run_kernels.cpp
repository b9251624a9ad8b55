// The process that runs kernels for the double of libcuda, and ends where one fails.
#include "emulated_messages.h"

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <map>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>
#include <vector>

namespace {

constexpr int illegal_address = 700, launch_failed = 719;
const char* running = "";

bool hear(void* to, std::size_t bytes) {
    for (std::size_t heard = 0; heard < bytes;) {
        const ssize_t part = recv(RUNNER_CHANNEL, static_cast<char*>(to) + heard, bytes - heard, 0);
        if (part <= 0) return false;
        heard += static_cast<std::size_t>(part);
    }
    return true;
}

void answer(const Answer& what) { (void)!send(RUNNER_CHANNEL, &what, sizeof what, MSG_NOSIGNAL); }

void fail(int number, siginfo_t* info, void*) {
    const bool by_address = number == SIGSEGV || number == SIGBUS;
    char words[256];
    const int length = std::snprintf(words, sizeof words, "%s %s %p\n", running,
                                     by_address ? "leaves its memory at" : "fails at", info->si_addr);
    (void)!write(STDERR_FILENO, words, static_cast<std::size_t>(length));
    answer({by_address ? illegal_address : launch_failed, 0, 0});
    _exit(1);
}

const EmulatedKernel* found(const Message& message) {
    static std::map<std::uint64_t, const EmulatedKernel*> opened;
    const EmulatedKernel*& table = opened[message.module];
    if (!table) {
        void* library = dlopen(message.path, RTLD_NOW | RTLD_LOCAL);
        if (!library) {
            std::fprintf(stderr, "%s\n", dlerror());
            return nullptr;
        }
        table = static_cast<const EmulatedKernel*>(dlsym(library, "emulated_kernels"));
    }
    for (const EmulatedKernel* each = table; each->name; ++each)
        if (std::strcmp(message.name, each->name) == 0) return each;
    return nullptr;
}

Answer run(Message& message, const std::vector<EmulatedRegion>& regions) {
    const std::size_t slot = 128;
    std::vector<char> payload(message.payload_bytes + slot);
    char* at = payload.data() + (slot - reinterpret_cast<std::uintptr_t>(payload.data()) % slot) % slot;
    if (!hear(at, message.payload_bytes)) _exit(0);
    const EmulatedKernel* kernel = found(message);
    if (!kernel) return {launch_failed, 0, 0};
    std::vector<void*> arguments;
    for (unsigned each = 0; each < kernel->parameter_count; ++each) {
        arguments.push_back(at);
        at += (kernel->parameter_bytes[each] + slot - 1) / slot * slot;
    }
    message.launch.arguments = arguments.data();
    message.launch.regions = regions.data();
    message.launch.region_count = regions.size();
    running = kernel->name;
    kernel->run(&message.launch);
    return {0, message.launch.read_clock, message.launch.lasted_ns};
}

}  // namespace

int main() {
    // Nothing of whoever launches is held open but where faults are said.
    close_range(RUNNER_MEMORY + 1, ~0u, 0);
    (void)!std::freopen("/dev/null", "w", stdout);
    static char stack[64 << 10];
    const stack_t own{stack, 0, sizeof stack};
    sigaltstack(&own, nullptr);
    struct sigaction action {};
    action.sa_sigaction = fail;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (const int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) sigaction(number, &action, nullptr);
    std::signal(SIGINT, SIG_IGN);  // whoever launches ends this by leaving
    std::vector<EmulatedRegion> regions;
    for (Message message; hear(&message, sizeof message);) {
        void* const mapped = reinterpret_cast<void*>(message.mapped);
        if (message.kind == MESSAGE_MAP) {
            mmap(mapped, message.mapped_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, RUNNER_MEMORY,
                 static_cast<off_t>(message.mapped - EMULATED_ARENA));
            // The latest first: a launch is looked up in them, and mostly takes those.
            regions.insert(regions.begin(), {reinterpret_cast<const char*>(message.address), message.bytes});
        } else if (message.kind == MESSAGE_UNMAP) {
            munmap(mapped, message.mapped_bytes);
            std::erase_if(regions, [&](const EmulatedRegion& each) {
                return each.begin == reinterpret_cast<const char*>(message.address);
            });
        } else {
            answer(run(message, regions));
        }
    }
}
