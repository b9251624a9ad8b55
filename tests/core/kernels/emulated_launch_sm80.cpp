// Runs gemm_sm80.cu on the host.
//
// Usage: launch A_BYTES B_BYTES C_BYTES A_OFFSET B_OFFSET C_OFFSET LDA LDB LDC M N K SCHEDULE SHARED_BYTES ORDER LATE;
// SCHEDULE its numbers as a GPU takes them. The operands come from standard input, and C followed by the flags goes to
// standard output. An offset is that of the first element from a 128-byte boundary.
#include "gemm_sm80.cu"

#include "emulated_grid_sm80.h"

constexpr char untouched = 0x5a;

int main(int, char** arguments) {
    const auto next = [&arguments] { return std::atoll(*++arguments); };
    struct Operand {
        std::size_t bytes;
        char* data;
    } operands[3];
    std::vector<char> memory[3];
    for (Operand& operand : operands) operand.bytes = next();
    for (int i = 0; i < 3; ++i) {
        memory[i].assign(operands[i].bytes + 512, untouched);
        const auto address = reinterpret_cast<std::uintptr_t>(memory[i].data());
        operands[i].data = memory[i].data() + (128 - address % 128) + next();
        if (std::fread(operands[i].data, 1, operands[i].bytes, stdin) != operands[i].bytes) return 4;
        emulation::regions.push_back({operands[i].data, operands[i].bytes});
    }
    const long long lda = next(), ldb = next(), ldc = next();
    const int m = next(), n = next(), k = next();
    pyperf::Schedule schedule;
    int numbers[sizeof schedule / sizeof(int)];
    for (int& number : numbers) number = static_cast<int>(next());
    std::memcpy(&schedule, numbers, sizeof schedule);
    emulation::shared_bytes = next();
    const int order = next();
    emulation::copies_arrive_late = next() != 0;

    const std::size_t shared_tiles = schedule.shared_tiles();
    const std::size_t sums = shared_tiles * pyperf::spec.tile.m * pyperf::spec.tile.n;
    std::vector<uint4> workspace(sums / 4 + 1, uint4{~0u, ~0u, ~0u, ~0u});
    std::vector<int> flags(shared_tiles);
    emulation::regions.push_back({reinterpret_cast<char*>(workspace.data()), sums * sizeof(float)});
    emulation::regions.push_back({reinterpret_cast<char*>(flags.data()), shared_tiles * sizeof(int)});
    emulation::kernel = [&] {
        pyperf_gemm(operands[0].data, operands[1].data, operands[2].data, lda, ldb, ldc, m, n, k, schedule,
                    reinterpret_cast<float*>(workspace.data()), flags.data());
    };
    std::mt19937 random(0);
    for (long long unit = 0; unit < schedule.units(); ++unit) {
        emulation::block_index.x = static_cast<int>(unit);
        emulation::run_block(random, order);
    }
    const char* c_end = operands[2].data + operands[2].bytes;
    for (const char& byte : memory[2])
        if ((&byte < operands[2].data || &byte >= c_end) && byte != untouched) emulation::fault("wrote beyond C");
    std::fwrite(operands[2].data, 1, operands[2].bytes, stdout);
    if (!flags.empty()) std::fwrite(flags.data(), sizeof(int), flags.size(), stdout);
}
