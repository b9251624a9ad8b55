// Runs gemm_sm90.cu on the host.
//
// Usage: launch SIZES MAPS SCHEDULE SHARED_BYTES RESIDENT LAUNCHES SEED. SIZES are the bytes of A, B and C; MAPS, for
// each of them, element bytes, columns, rows, stride in bytes, columns and rows of the box, swizzle in bytes; SCHEDULE
// its numbers as a GPU takes them. A, B, C come from standard input; C as each launch leaves it and the flags go to standard output.
#include "gemm_sm90.cu"

#include "emulated_grid_sm90.h"

int main(int, char** arguments) {
    const auto next = [&arguments] { return std::atoll(*++arguments); };
    std::vector<char> memory[3];
    for (auto& bytes : memory) bytes.resize(static_cast<std::size_t>(next()));
    pyperf::ptx::TensorMap maps[3];
    for (int i = 0; i < 3; ++i) {
        if (std::fread(memory[i].data(), 1, memory[i].size(), stdin) != memory[i].size()) return 4;
        const int element_bytes = static_cast<int>(next());
        const long long columns = next(), rows = next(), stride_bytes = next();
        const int box_columns = static_cast<int>(next()), box_rows = static_cast<int>(next());
        static_cast<EmulatedTensorMap&>(maps[i]) = {memory[i].data(), element_bytes, columns,  rows,
                                                   stride_bytes,     box_columns,   box_rows, static_cast<int>(next()),
                                                   EMULATED_MAP,      0,             0};
    }
    pyperf::Schedule schedule;
    int numbers[sizeof schedule / sizeof(int)];
    for (int& number : numbers) number = static_cast<int>(next());
    std::memcpy(&schedule, numbers, sizeof schedule);
    emulation::shared_bytes = static_cast<std::size_t>(next());
    const int resident = static_cast<int>(next()), launches = static_cast<int>(next());
    emulation::generator.seed(static_cast<unsigned>(next()));

    const auto shared_tiles = static_cast<std::size_t>(schedule.shared_tiles());
    std::vector<float4> workspace(shared_tiles * pyperf::spec.partial_floats() / 4 + 1);
    std::vector<int> flags(shared_tiles * pyperf::spec.cluster() * pyperf::spec.consumer_warps());
    emulation::regions = {{reinterpret_cast<char*>(workspace.data()), (workspace.size() - 1) * sizeof(float4)},
                          {reinterpret_cast<char*>(flags.data()), flags.size() * sizeof(int)}};
    emulation::kernel = [&] {
        pyperf_gemm(maps[0], maps[1], maps[2], schedule, reinterpret_cast<float*>(workspace.data()), flags.data());
    };
    const std::vector<char> poisoned = memory[2];
    for (int launch = 0; launch < launches; ++launch) {
        std::copy(poisoned.begin(), poisoned.end(), memory[2].begin());
        std::fill(workspace.begin(), workspace.end(), float4{NAN, NAN, NAN, NAN});
        emulation::run_grid(schedule.units(), resident);
        std::fwrite(memory[2].data(), 1, memory[2].size(), stdout);
    }
    std::fwrite(flags.data(), sizeof(int), flags.size(), stdout);
}
