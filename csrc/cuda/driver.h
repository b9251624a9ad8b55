// libcuda and a device's primary context, which is retained rather than made: memory and streams of torch, when it is
// in the process, are then also ours.
#pragma once

#include "cuda/driver_api.h"
#include "shared_library.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace pyperf::cuda {

// An initialised driver; shared by all that was made through it.
class Driver {
  public:
    // PYPERF_LIBCUDA names the library, else it is searched for. Throws NotAvailable: none there, too old, no device.
    Driver();

    const DriverApi& api() const { return api_; }
    int version() const { return version_; }  // the newest CUDA it supports: 13000 is 13.0
    const std::string& path() const { return library_.path(); }
    int device_count() const;

    // Throws what a result other than success means; `call` is the function that returned it.
    void check(CUresult result, const char* call) const {
        if (result != 0) fail(result, call);
    }

  private:
    [[noreturn]] void fail(CUresult result, const char* call) const;

    SharedLibrary library_;
    DriverApi api_;
    int version_ = 0;
};

// `driver.check(api.cuX(...), "cuX")` without saying cuX twice; the driver may be a pointer of any kind.
#define PYPERF_CALL(driver, function, ...) (driver)->check((driver)->api().function(__VA_ARGS__), #function)

struct DeviceProperties {
    std::string name;
    std::string uuid;         // as nvidia-smi prints it: GPU-... or MIG-...
    std::string pci_address;  // domain:bus:device.0, hexadecimal
    std::pair<int, int> compute_capability;
    int multiprocessors;
    std::int64_t memory_bytes;
    std::int64_t l2_bytes;
    int shared_bytes_per_block;  // the most a kernel can opt in to
    int shared_bytes_per_multiprocessor;
    int reserved_shared_bytes_per_block;  // taken by the system from each block's share of the multiprocessor
    int registers_per_multiprocessor;
    int threads_per_multiprocessor;
    int threads_per_block;
    int blocks_per_multiprocessor;
    bool clusters;     // thread block clusters (sm_90 and later)
    bool tensor_maps;  // the bulk tensor copy engine, TMA
};

class Context {
  public:
    // Retains the primary context of a device. Throws NotAvailable where there is no such device, or it is older than
    // sm_80.
    Context(std::shared_ptr<const Driver> driver, int index);
    ~Context();
    Context(const Context&) = delete;
    Context& operator=(const Context&) = delete;

    const Driver* driver() const { return driver_.get(); }
    const DeviceProperties& properties() const { return properties_; }
    std::string architecture() const;  // what NVRTC is asked for: "sm_80", "sm_90a"
    std::pair<std::int64_t, std::int64_t> free_and_total_bytes() const;
    void synchronize() const;

  private:
    friend class CurrentContext;
    int attribute(DeviceAttribute attribute) const;
    DeviceProperties read_properties() const;

    std::shared_ptr<const Driver> driver_;
    CUdevice device_ = 0;
    DeviceProperties properties_;
    CUcontext handle_ = nullptr;
};

// Makes a context the calling thread's own for a scope, and gives back the one it had.
class CurrentContext {
  public:
    explicit CurrentContext(const Context& context);
    ~CurrentContext();
    CurrentContext(const CurrentContext&) = delete;
    CurrentContext& operator=(const CurrentContext&) = delete;

  private:
    const Context& context_;
};

}  // namespace pyperf::cuda
