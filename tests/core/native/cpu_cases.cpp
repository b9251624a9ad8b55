// Computes products and attentions of csrc/cpu and compares them with float64: one case a line of standard
// input, one answer a line of output. It needs no Python, so it runs under an emulator and under sanitizers.
//
//   isas
//     → each usable set, best first, with the unit of each dtype: name:float32,bfloat16 ...
//   product ISA DTYPE OUT A_TRANSPOSED B_TRANSPOSED M N K TILE_M TILE_N TILE_K SCHEDULE SPLITS WORKERS GROUP
//           PAD_A PAD_B PAD_C SEED
//   attention ISA DTYPE CAUSAL BATCH HEADS KV_HEADS SEQ_Q SEQ_K HEAD_DIM BLOCK_M BLOCK_N WORKERS SEED
//     → worst X    the largest error as a share of what was summed, |A|·|B| or weights·|V|
//     → refused SENTENCE
//   peak ISA DTYPE
//     → flop_per_s X    of a loop on registers
// TILE_N and BLOCK_N count panels of that set; a TILE_M or BLOCK_M of 0 leaves it to the default.
//
// Operands end where their memory ends, so that a sanitizer sees any read beyond; a seed decides how they are aligned.
// Rows of C are padded with canaries.
#include "check.h"
#include "cpu/attention.h"
#include "cpu/default_tile.h"
#include "cpu/gemm.h"
#include "cpu/peak.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iostream>
#include <limits>
#include <memory>
#include <random>
#include <sstream>

namespace {

using namespace pyperf;
using namespace pyperf::cpu;

constexpr unsigned char canary = 0x43;
constexpr double infinite = std::numeric_limits<double>::infinity();

DataType type_named(const std::string& name) {
    return name == "bfloat16" ? DataType::bfloat16 : DataType::float32;
}

// Elements of one type that end where their memory ends, and begin a few elements after it does.
struct Elements {
    DataType type;
    std::int64_t count;
    std::unique_ptr<char[]> memory;
    char* data;

    Elements(DataType type, std::int64_t count, std::int64_t shift)
        : type(type),
          count(count),
          memory(new char[static_cast<std::size_t>((count + shift) * bytes_of(type))]),
          data(memory.get() + shift * bytes_of(type)) {}

    template <typename Element> Element get(std::int64_t index) const {
        Element value;
        std::memcpy(&value, data + index * static_cast<std::int64_t>(sizeof value), sizeof value);
        return value;
    }
    template <typename Element> void set(std::int64_t index, Element value) {
        std::memcpy(data + index * static_cast<std::int64_t>(sizeof value), &value, sizeof value);
    }
    double operator[](std::int64_t index) const {
        std::uint32_t bits = type == DataType::float32 ? get<std::uint32_t>(index) : get<std::uint16_t>(index) << 16u;
        float value;
        std::memcpy(&value, &bits, sizeof value);
        return value;
    }
    void put(std::int64_t index, double value) {
        const float narrow = static_cast<float>(value);
        std::uint32_t bits;
        std::memcpy(&bits, &narrow, sizeof bits);
        if (type == DataType::float32) return set(index, bits);
        set(index, static_cast<std::uint16_t>(bits >> 16));  // a bfloat16 like any other; and a NaN stays one
    }
};

// Rows of an operand, `ld` elements apart but for the last, which ends with its elements. What lies between is a NaN,
// which no sum may take in.
struct Operand {
    std::int64_t rows, columns, ld;
    bool transposed;
    Elements elements;

    Operand(DataType type, std::int64_t rows_meant, std::int64_t columns_meant, bool transposed, std::int64_t padding,
            std::int64_t shift, std::mt19937_64& random)
        : rows(transposed ? columns_meant : rows_meant),
          columns(transposed ? rows_meant : columns_meant),
          ld(columns + padding),
          transposed(transposed),
          elements(type, (rows - 1) * ld + columns, shift) {
        std::normal_distribution<double> normal;
        for (std::int64_t index = 0; index < elements.count; ++index)
            elements.put(index, index % ld >= columns ? std::nan("") : normal(random));
    }
    double at(std::int64_t row, std::int64_t column) const {
        return elements[transposed ? column * ld + row : row * ld + column];
    }
};

// A result's share of the error; infinite where it is no number.
double share(double found, double due, double magnitude) {
    const double error = std::abs(found - due);
    if (!(error < infinite)) return infinite;
    return error == 0 ? 0 : error / magnitude;
}

void require_untouched(const Elements& elements, std::int64_t index) {
    const char* element = elements.data + index * bytes_of(elements.type);
    for (int byte = 0; byte < bytes_of(elements.type); ++byte)
        if (static_cast<unsigned char>(element[byte]) != canary)
            throw std::logic_error("memory outside of C was written");
}

double product(std::istream& line) {
    std::string type, out_type;
    GemmOptions options;
    int schedule;
    std::int64_t pad_a, pad_b, pad_c, seed;
    line >> options.isa >> type >> out_type >> options.a_transposed >> options.b_transposed >> options.m >> options.n >>
        options.k >> options.tile.m >> options.tile.n >> options.tile.k >> schedule >> options.splits >>
        options.workers >> options.group >> pad_a >> pad_b >> pad_c >> seed;
    if (!line) throw pyperf::InputError("a product has 19 words");
    options.type = type_named(type);
    options.out_type = type_named(out_type);
    options.schedule = static_cast<ScheduleKind>(schedule);
    const ProductKernels& kernels = kernels_named(options.isa).of(options.type);
    options.tile.n *= kernels.nr;
    if (options.tile.m == 0) options.tile = default_tile(options.m, options.n, options.k, options.workers, kernels);
    Gemm gemm(options);

    std::mt19937_64 random(static_cast<std::uint64_t>(seed));
    const std::int64_t shift = seed & 3;
    const Operand a(options.type, options.m, options.k, options.a_transposed, pad_a, shift, random);
    const Operand b(options.type, options.k, options.n, options.b_transposed, pad_b, shift, random);
    const std::int64_t ldc = options.n + pad_c;
    Elements c(options.out_type, (options.m - 1) * ldc + options.n, shift);
    std::memset(c.data, canary, static_cast<std::size_t>(c.count * bytes_of(c.type)));
    const GemmOperands operands{a.elements.data, a.ld, b.elements.data, b.ld, c.data, ldc};
    gemm.run(operands);

    double worst = 0;
    for (std::int64_t row = 0; row < options.m; ++row)
        for (std::int64_t column = 0; column < ldc; ++column) {
            if (row * ldc + column >= c.count) continue;
            if (column >= options.n) {
                require_untouched(c, row * ldc + column);
                continue;
            }
            double due = 0, magnitude = 0;
            for (std::int64_t k = 0; k < options.k; ++k) {
                const double term = a.at(row, k) * b.at(k, column);
                due += term;
                magnitude += std::abs(term);
            }
            worst = std::max(worst, share(c[row * ldc + column], due, magnitude));
        }
    return worst;
}

double attention(std::istream& line) {
    std::string type;
    AttentionOptions options;
    std::int64_t seed;
    line >> options.isa >> type >> options.causal >> options.batch >> options.heads >> options.kv_heads >>
        options.seq_q >> options.seq_k >> options.head_dim >> options.blocks.m >> options.blocks.n >> options.workers >> seed;
    if (!line) throw pyperf::InputError("an attention has 13 words");
    options.type = type_named(type);
    options.blocks.n *= kernels_named(options.isa).of(options.type).nr;
    if (options.blocks.m == 0) options.blocks = default_blocks(options);
    Attention attention(options);

    std::mt19937_64 random(static_cast<std::uint64_t>(seed));
    const std::int64_t d = options.head_dim, batches = options.batch;
    const auto drawn = [&](std::int64_t heads, std::int64_t tokens) {
        return Operand(options.type, batches * heads * tokens, d, false, 0, seed & 3, random);
    };
    const Operand q = drawn(options.heads, options.seq_q), k = drawn(options.kv_heads, options.seq_k),
                  v = drawn(options.kv_heads, options.seq_k);
    Elements o(options.type, q.elements.count, seed & 3);
    std::memset(o.data, 0xff, static_cast<std::size_t>(o.count * bytes_of(o.type)));  // NaN
    attention.run({q.elements.data, k.elements.data, v.elements.data, o.data});

    double worst = 0;
    std::vector<double> weights(static_cast<std::size_t>(options.seq_k));
    for (std::int64_t row = 0; row < q.rows; ++row) {
        // A row of Q counts batches, heads and tokens; its keys begin at those of its batch and group of heads.
        const std::int64_t head = row / options.seq_q, token = row % options.seq_q;
        const std::int64_t first = head / (options.heads / options.kv_heads) * options.seq_k;
        const std::int64_t keys = options.causal ? token + options.seq_k - options.seq_q + 1 : options.seq_k;
        double largest = -infinite, sum = 0;
        for (std::int64_t key = 0; key < keys; ++key) {
            double score = 0;
            for (std::int64_t i = 0; i < d; ++i) score += q.at(row, i) * k.at(first + key, i);
            weights[key] = score / std::sqrt(static_cast<double>(d));
            largest = std::max(largest, weights[key]);
        }
        for (std::int64_t key = 0; key < keys; ++key) sum += weights[key] = std::exp(weights[key] - largest);
        for (std::int64_t i = 0; i < d; ++i) {
            double due = 0, magnitude = 0;
            for (std::int64_t key = 0; key < keys; ++key) {
                const double term = weights[key] / sum * v.at(first + key, i);
                due += term;
                magnitude += std::abs(term);
            }
            worst = std::max(worst, share(o[row * d + i], due, magnitude));
        }
    }
    return worst;
}

std::string usable() {
    std::string all;
    for (const KernelSet* set : usable_kernels())
        all += text(set->name, ":", set->products[0].unit, ",", set->products[1].unit, " ");
    return all;
}

std::string peak(std::istream& line) {
    std::string isa, type;
    line >> isa >> type;
    return text("flop_per_s ", measure_peak(kernels_named(isa), type_named(type), 1, 0.001)[0].flop_per_s);
}

}  // namespace

int main() {
    for (std::string line, what; std::getline(std::cin, line);) {
        std::istringstream words(line);
        words >> what;
        try {
            const std::string answer = what == "isas"      ? usable()
                                       : what == "peak"    ? peak(words)
                                       : what == "product" ? text("worst ", product(words))
                                                           : text("worst ", attention(words));
            std::cout << answer << std::endl;
        } catch (const pyperf::InputError& error) {
            std::cout << "refused " << error.what() << std::endl;
        }
    }
}
