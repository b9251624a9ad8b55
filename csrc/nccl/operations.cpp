#include "nccl/operations.h"

#include "check.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>

namespace pyperf::nccl {
namespace {

constexpr std::pair<const char*, Operation> operations[] = {
    {"all_reduce", Operation::all_reduce},     {"all_gather", Operation::all_gather},
    {"reduce_scatter", Operation::reduce_scatter}, {"broadcast", Operation::broadcast},
    {"reduce", Operation::reduce},             {"all_to_all", Operation::all_to_all},
    {"gather", Operation::gather},             {"scatter", Operation::scatter},
    {"send_receive", Operation::send_receive}, {"ping_pong", Operation::ping_pong},
    {"bisection", Operation::bisection},       {"pairs", Operation::pairs},
};

// Numbers from nccl.h, ncclDataType_t; fp8 came with NCCL 2.24.
constexpr DataType types[] = {
    {"int8", 0, 1, 0},    {"uint8", 1, 1, 0},   {"int32", 2, 4, 0},   {"uint32", 3, 4, 0},
    {"int64", 4, 8, 0},   {"uint64", 5, 8, 0},  {"float16", 6, 2, 0}, {"float32", 7, 4, 0},
    {"float64", 8, 8, 0}, {"bfloat16", 9, 2, 0}, {"float8_e4m3", 10, 1, 22400}, {"float8_e5m2", 11, 1, 22400},
};

// Numbers from nccl.h, ncclRedOp_t.
constexpr std::pair<const char*, int> reductions[] = {{"sum", 0}, {"prod", 1}, {"max", 2}, {"min", 3}, {"avg", 4}};

template <typename Table, typename Name> std::string choices(const Table& table, Name name) {
    std::string out;
    for (const auto& row : table) out += (out.empty() ? "" : ", ") + std::string(name(row));
    return out;
}

bool reduces(Operation operation) {
    return operation == Operation::all_reduce || operation == Operation::reduce_scatter ||
           operation == Operation::reduce;
}

bool has_root(Operation operation) {
    return operation == Operation::broadcast || operation == Operation::reduce || operation == Operation::gather ||
           operation == Operation::scatter;
}

bool can_be_in_place(Operation operation) {
    return operation <= Operation::reduce || operation == Operation::gather || operation == Operation::scatter;
}

void check_pattern(const CollectiveOptions& options, int ranks) {
    const bool takes_one = options.operation == Operation::pairs || options.operation == Operation::ping_pong;
    CHECK_INPUT(takes_one || options.pattern.empty(), name_of(options.operation),
                " was asked for with a pattern: only pairs and ping_pong take one.");
    CHECK_INPUT(!takes_one || !options.pattern.empty(), name_of(options.operation),
                " was asked for without a pattern: give it (source, destination) pairs.");
    std::set<int> seen;
    for (const auto& [first, second] : options.pattern) {
        CHECK_INPUT(first >= 0 && first < ranks && second >= 0 && second < ranks && first != second, "The pair (",
                    first, ", ", second, ") was asked for among ", ranks,
                    " ranks: give two different ones, counted from 0.");
        CHECK_INPUT(options.operation == Operation::pairs || (seen.insert(first).second && seen.insert(second).second),
                    "The ping_pong pair (", first, ", ", second,
                    ") has a rank of another pair: each can be in one only.");
    }
}

template <typename Integer> void put(std::vector<unsigned char>& out, Integer value) {
    out.resize(sizeof value);
    std::memcpy(out.data(), &value, sizeof value);
}

template <typename Integer> void put_whole(std::vector<unsigned char>& out, double factor) {
    using Limits = std::numeric_limits<Integer>;
    // The upper limit is one more than the largest value, a power of two, which a double holds.
    CHECK_INPUT(factor == std::nearbyint(factor) && factor >= static_cast<double>(Limits::min()) &&
                    factor < std::ldexp(1.0, Limits::digits),
                "A factor of ", factor, " was asked for and the type cannot hold it: take a whole one in its range.");
    put(out, static_cast<Integer>(factor));
}

// IEEE binary16, rounded to nearest, ties to even (nearbyint's own mode).
std::uint16_t half_bits(double value) {
    const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    const double size = std::abs(value);
    if (std::isnan(value)) return 0x7e00;
    if (size >= 65520) return sign | 0x7c00;
    const int exponent = size > 0 ? std::max(std::ilogb(size), -14) : -14;
    // In units of the last place: 1024 and more are normal, and what rounds up to 2048 carries into the exponent.
    const auto units = static_cast<std::uint16_t>(std::nearbyint(std::ldexp(size, 10 - exponent)));
    return sign | static_cast<std::uint16_t>(((exponent + 14) << 10) + units);
}

std::uint16_t bfloat16_bits(double value) {
    const auto narrow = static_cast<float>(value);
    std::uint32_t bits;
    std::memcpy(&bits, &narrow, sizeof bits);
    if (std::isnan(value)) return 0x7fc0;
    return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace

Operation operation_named(const std::string& asked) {
    for (const auto& [name, operation] : operations)
        if (asked == name) return operation;
    throw InputError(text("Operation '", asked, "' is unknown: choose ",
                          choices(operations, [](const auto& row) { return row.first; }), "."));
}

const char* name_of(Operation asked) {
    for (const auto& [name, operation] : operations)
        if (asked == operation) return name;
    return "";
}

const DataType& data_type_named(const std::string& asked) {
    for (const DataType& type : types)
        if (asked == type.name) return type;
    throw InputError(text("dtype '", asked, "' is unknown: choose ",
                          choices(types, [](const DataType& type) { return type.name; }), "."));
}

int reduction_number(const std::string& asked) {
    for (const auto& [name, number] : reductions)
        if (asked == name) return number;
    throw InputError(text("Reduction '", asked, "' is unknown: choose ",
                          choices(reductions, [](const auto& row) { return row.first; }), ", premulsum."));
}

void check_options(const CollectiveOptions& options, int ranks) {
    const char* name = name_of(options.operation);
    const std::int64_t most = (std::int64_t{1} << 62) / ranks / options.type->bytes;
    CHECK_INPUT(options.count >= 1 && options.count <= most, name, " of ", options.count,
                " elements was asked for: ask for 1 to ", most, ".");
    CHECK_INPUT(options.root >= 0 && options.root < ranks, name, " from or to rank ", options.root,
                " was asked for and there are ", ranks, ": they count from 0.");
    CHECK_INPUT(has_root(options.operation) || options.root == 0, name, " was asked for with root ", options.root,
                ": it has none, so leave it out.");
    if (options.reduction != "premulsum") reduction_number(options.reduction);
    CHECK_INPUT(reduces(options.operation) || options.reduction == "sum", name, " was asked for with reduction ",
                options.reduction, ": it reduces nothing, so leave it out.");
    CHECK_INPUT(options.factor == 1 || options.reduction == "premulsum", "A factor of ", options.factor,
                " was asked for with reduction ", options.reduction, ": only premulsum takes one.");
    CHECK_INPUT(!options.in_place || can_be_in_place(options.operation), name,
                " was asked for in place and cannot be: give it two buffers.");
    check_pattern(options, ranks);
}

Needs needs_of(const CollectiveOptions& options, int rank, int ranks) {
    const std::int64_t one = options.count * options.type->bytes;
    const std::int64_t all = one * ranks;
    const bool root = rank == options.root;
    Needs needs{one, one};
    switch (options.operation) {
        case Operation::all_reduce:
        case Operation::send_receive: break;
        case Operation::all_gather: needs = {one, all}; break;
        case Operation::reduce_scatter: needs = {all, one}; break;
        case Operation::broadcast: needs = {root ? one : 0, one}; break;
        case Operation::reduce: needs = {one, root ? one : 0}; break;
        case Operation::all_to_all: needs = {all, all}; break;
        case Operation::gather: needs = {one, root ? all : 0}; break;
        case Operation::scatter: needs = {root ? all : 0, one}; break;
        case Operation::bisection:
            if (rank >= ranks / 2 * 2) needs = {0, 0};
            break;
        case Operation::ping_pong:
        case Operation::pairs:
            needs = {0, 0};
            for (const auto& [first, second] : options.pattern) {
                const bool both_ways = options.operation == Operation::ping_pong;
                if (rank == first || (both_ways && rank == second)) needs.send = one;
                if (rank == second || (both_ways && rank == first)) needs.receive += one;
            }
            break;
    }
    if (options.in_place) needs = {std::max(needs.send, needs.receive), 0};
    return needs;
}

std::vector<unsigned char> encode(double factor, const DataType& type) {
    const std::string name = type.name;
    std::vector<unsigned char> out;
    if (name == "float32") put(out, static_cast<float>(factor));
    else if (name == "float64") put(out, factor);
    else if (name == "float16") put(out, half_bits(factor));
    else if (name == "bfloat16") put(out, bfloat16_bits(factor));
    else if (name == "int8") put_whole<std::int8_t>(out, factor);
    else if (name == "uint8") put_whole<std::uint8_t>(out, factor);
    else if (name == "int32") put_whole<std::int32_t>(out, factor);
    else if (name == "uint32") put_whole<std::uint32_t>(out, factor);
    else if (name == "int64") put_whole<std::int64_t>(out, factor);
    else if (name == "uint64") put_whole<std::uint64_t>(out, factor);
    else throw InputError(text("premulsum of ", name, " was asked for: take one of the other types."));
    return out;
}

}  // namespace pyperf::nccl
