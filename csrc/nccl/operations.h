// Collectives, their types, and the bytes they need: the table of operations, types and reductions.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace pyperf::nccl {

// Counts follow NCCL: `count` elements are what one rank sends to one other, so that a buffer below that holds a part
// for each rank holds ranks × count. In place, the smaller buffer is the rank's own part of the larger.
enum class Operation {
    all_reduce,      // sends count, receives count
    all_gather,      // sends count, receives ranks × count
    reduce_scatter,  // sends ranks × count, receives count
    broadcast,       // the root sends count, all receive count
    reduce,          // all send count, the root receives count
    all_to_all,      // sends and receives ranks × count; not in place
    gather,          // all send count, the root receives ranks × count
    scatter,         // the root sends ranks × count, all receive count
    send_receive,    // a ring: count to the next rank, count from the one before; not in place
    ping_pong,       // for each pair of the pattern: count there, then count back; not in place
    bisection,       // rank r and rank r + ⌊ranks / 2⌋ exchange count, an odd rank at the end rests; not in place
    pairs,           // each (source, destination) of the pattern: count; receives in order of the pattern; not in place
};

struct DataType {
    const char* name;
    int number;  // ncclDataType_t
    std::int64_t bytes;
    int oldest_version;
};

struct Pair {
    int first;  // source, or who serves
    int second;
};

struct CollectiveOptions {
    Operation operation = Operation::all_reduce;
    std::int64_t count = 0;
    const DataType* type = nullptr;
    std::string reduction = "sum";  // sum, prod, max, min, avg, premulsum: the sum of each rank's own factor × data
    double factor = 1;
    int root = 0;
    bool in_place = false;
    std::vector<Pair> pattern;
};

// Bytes that this rank needs of each buffer; 0 where it needs none.
struct Needs {
    std::int64_t send;
    std::int64_t receive;
};

Operation operation_named(const std::string& name);
const char* name_of(Operation operation);
const DataType& data_type_named(const std::string& name);
// ncclRedOp_t of a reduction but premulsum, which is made for each communicator.
int reduction_number(const std::string& name);

// Throws InputError where the options cannot be for that many ranks: counts, root, pattern, in place, reduction.
void check_options(const CollectiveOptions& options, int ranks);

// Needs of checked options. In place, the larger of the two is the one buffer's.
Needs needs_of(const CollectiveOptions& options, int rank, int ranks);

// The bytes of a factor in that type, rounded to the nearest. Throws InputError where the type cannot hold it, and for
// fp8.
std::vector<unsigned char> encode(double factor, const DataType& type);

}  // namespace pyperf::nccl
