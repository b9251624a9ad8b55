// Modules, kernels and launches made ready: all that can be wrong is found when a launch is made, none of it when it
// runs.
#pragma once

#include "cuda/driver.h"

#include <array>
#include <string>
#include <vector>

namespace pyperf::cuda {

using Dimensions = std::array<std::int64_t, 3>;  // x, y, z

class Module {
  public:
    // Loads machine code onto a device. Throws NotAvailable where it is another architecture's.
    Module(std::shared_ptr<const Context> context, const std::string& cubin);
    ~Module();
    Module(const Module&) = delete;
    Module& operator=(const Module&) = delete;

    CUmodule handle() const { return handle_; }
    const std::shared_ptr<const Context>& context() const { return context_; }

  private:
    std::shared_ptr<const Context> context_;
    CUmodule handle_ = nullptr;
};

class Kernel {
  public:
    // Throws CudaError where the module has no `extern "C" __global__` function of that name.
    Kernel(std::shared_ptr<const Module> module, const std::string& name);

    const std::string& name() const { return name_; }
    const Context& context() const { return *module_->context(); }
    CUfunction handle() const { return handle_; }
    int registers() const { return attribute(function_registers); }                      // per thread
    int static_shared_bytes() const { return attribute(function_static_shared_bytes); }  // per block
    int local_bytes() const { return attribute(function_local_bytes); }  // per thread: spills, and arrays
    int max_threads_per_block() const { return attribute(function_max_threads_per_block); }

    // Throws InputError, with the limit it was compiled for, where a block cannot have that many threads.
    void check_threads(std::int64_t threads) const;

    // Opts in to at least that much dynamic shared memory a block. Throws InputError with the device's limit.
    void allow_dynamic_shared_bytes(std::int64_t bytes);

    // Opts in to clusters of more than 8 blocks. Throws InputError or NotAvailable where there can be none so large.
    void allow_cluster(std::int64_t cluster);

    // Blocks of that many threads that one multiprocessor holds at once; 0 where it cannot hold one.
    int max_active_blocks(std::int64_t threads, std::int64_t dynamic_shared_bytes);

    // Clusters of `cluster` blocks along x that the whole device holds at once: fewer than the blocks per
    // multiprocessor suggest, as a cluster must fit in one GPC. Throws NotAvailable before sm_90.
    int max_active_clusters(std::int64_t threads, std::int64_t cluster, std::int64_t dynamic_shared_bytes);

    // Sizes of the parameters in order; empty where the driver (before CUDA 12.4) does not tell.
    std::vector<std::size_t> parameter_bytes() const;

  private:
    int attribute(FunctionAttribute attribute) const;

    std::shared_ptr<const Module> module_;
    std::string name_;
    CUfunction handle_ = nullptr;
    std::int64_t allowed_dynamic_shared_bytes_ = 0;
};

struct LaunchShape {
    Dimensions grid;  // in blocks, also where there are clusters
    Dimensions block;
    Dimensions cluster{1, 1, 1};
    std::int64_t dynamic_shared_bytes = 0;
};

// A kernel with its shape and arguments: run() only hands it to the driver.
class Launch {
  public:
    // Each argument holds the bytes of one parameter, in order; they are copied. Throws InputError where the shape or
    // an argument cannot be, opts in to the shared memory it needs.
    Launch(std::shared_ptr<Kernel> kernel, const LaunchShape& shape, const std::vector<std::string>& arguments);
    Launch(const Launch&) = delete;
    Launch& operator=(const Launch&) = delete;

    // Queues the kernel on a stream, 0 being the default one. Errors of the kernel itself show at a later call.
    void run(std::uintptr_t stream);

  private:
    // Aligned as the strictest parameter, a tensor map.
    struct alignas(128) Slot {
        unsigned char bytes[128];
    };

    static std::size_t slots_of(const std::string& argument);
    void copy_arguments(const std::vector<std::string>& arguments);

    std::shared_ptr<Kernel> kernel_;
    std::vector<Slot> slots_;
    std::vector<void*> arguments_;
    CUlaunchAttribute cluster_{};
    CUlaunchConfig config_{};
};

}  // namespace pyperf::cuda
