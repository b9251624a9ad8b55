// Runs attention_sm90.cu on the host, one problem after the other.
//
// Of each the standard input has 64-bit numbers: the bytes of Q, K, V, O and lse; for each of the first four the bytes
// before its first element, columns, rows, stride, columns and rows of the box, swizzle, matrices and the bytes between
// them; the bytes before lse; the schedule and what else the kernel takes, each as its 32-bit words; the bytes of shared
// memory, how many blocks run at once, the seed. Then the five, poisoned as they are to be found. O and lse as the launch
// leaves them go to the standard output.
#include "attention_sm90.cu"

#include "emulated_grid_sm90.h"

static std::int64_t next() {
    std::int64_t number = 0;
    if (std::fread(&number, sizeof number, 1, stdin) != 1) std::exit(0);
    return number;
}

template <class Words>
void read(Words& words) {
    int numbers[sizeof words / sizeof(int)];
    for (int& number : numbers) number = static_cast<int>(next());
    std::memcpy(&words, numbers, sizeof words);
}

int main() {
    for (;;) {
        std::vector<char> memory[5];
        for (auto& bytes : memory) bytes.resize(static_cast<std::size_t>(next()));
        pyperf::ptx::TensorMap maps[4];
        for (int i = 0; i < 4; ++i) {
            char* const base = memory[i].data() + next();
            const long long columns = next(), rows = next(), stride_bytes = next();
            const int box_columns = static_cast<int>(next()), box_rows = static_cast<int>(next());
            const int swizzle_bytes = static_cast<int>(next());
            const long long matrices = next(), matrix_bytes = next();
            static_cast<EmulatedTensorMap&>(maps[i]) = {base,     2,        columns,       rows,         stride_bytes, box_columns,
                                                       box_rows, swizzle_bytes, EMULATED_MAP, matrices,     matrix_bytes};
        }
        float* const lse = reinterpret_cast<float*>(memory[4].data() + next());
        pyperf::Schedule schedule;
        pyperf::Attention attention;
        read(schedule);
        read(attention);
        emulation::shared_bytes = static_cast<std::size_t>(next());
        const int resident = static_cast<int>(next());
        emulation::generator.seed(static_cast<unsigned>(next()));
        for (auto& bytes : memory)
            if (std::fread(bytes.data(), 1, bytes.size(), stdin) != bytes.size()) return 4;
        emulation::kernel = [&] { pyperf_attention(maps[0], maps[1], maps[2], maps[3], schedule, attention, lse); };
        emulation::run_grid(schedule.units(), resident);
        for (int i : {3, 4}) std::fwrite(memory[i].data(), 1, memory[i].size(), stdout);
        std::fflush(stdout);
    }
}
