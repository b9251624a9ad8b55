// Functions are looked up by their exported, versioned names: what cuda.h's macros would have chosen, without cuda.h.
#include "cuda/driver.h"

#include "check.h"
#include "cuda/errors.h"

#include <cstdio>

namespace pyperf::cuda {
namespace {

constexpr int oldest_version = 12000;        // cuTensorMapEncodeTiled came with CUDA 12.0
constexpr int oldest_compute_capability = 8;  // cp.async and bf16 mma came with sm_80

LibrarySearch libcuda() {
    return {"PYPERF_LIBCUDA", "libcuda", {}, {"libcuda.so.1", "libcuda.so"},
            "there is no NVIDIA driver here, so install the driver of this machine's GPU or ask for the CPU"};
}

std::string version_text(int version) { return text(version / 1000, ".", version % 1000 / 10); }

// The signature's type is lost through dlsym; this is where it is given back.
template <typename Function> void assign(Function& function, void* symbol) {
    function = reinterpret_cast<Function>(symbol);
}

std::string uuid_text(const CUuuid& uuid, const char* prefix) {
    std::string out = prefix;
    for (int byte = 0; byte < 16; ++byte) {
        char digits[4];
        const bool dash = byte == 0 || byte == 4 || byte == 6 || byte == 8 || byte == 10;
        std::snprintf(digits, sizeof digits, "%s%02x", dash ? "-" : "", uuid.bytes[byte]);
        out += digits;
    }
    return out;
}

}  // namespace

Driver::Driver() : library_(libcuda()) {
    // The version first: an old library lacks functions, and "too old" says more than the name of the first one.
    assign(api_.cuDriverGetVersion, library_.require("cuDriverGetVersion"));
    assign(api_.cuGetErrorName, library_.require("cuGetErrorName"));
    assign(api_.cuGetErrorString, library_.require("cuGetErrorString"));
    PYPERF_CALL(this, cuDriverGetVersion, &version_);
    if (version_ < oldest_version)
        throw NotAvailable(text("The NVIDIA driver supports CUDA up to ", version_text(version_),
                                " and the kernels need ", version_text(oldest_version), ": update the driver."));
#define PYPERF_REQUIRE(name, ...) assign(api_.name, library_.require(#name));
    PYPERF_DRIVER_FUNCTIONS(PYPERF_REQUIRE)
#undef PYPERF_REQUIRE
#define PYPERF_FIND(name, ...) assign(api_.name, library_.find(#name));
    PYPERF_OPTIONAL_DRIVER_FUNCTIONS(PYPERF_FIND)
#undef PYPERF_FIND
    PYPERF_CALL(this, cuInit, 0);
}

void Driver::fail(CUresult result, const char* call) const {
    const char* name = nullptr;
    const char* words = nullptr;
    if (api_.cuGetErrorName) api_.cuGetErrorName(result, &name);
    if (api_.cuGetErrorString) api_.cuGetErrorString(result, &words);
    throw_result(call, result, name, words);
}

int Driver::device_count() const {
    int count = 0;
    PYPERF_CALL(this, cuDeviceGetCount, &count);
    return count;
}

Context::Context(std::shared_ptr<const Driver> driver, int index) : driver_(std::move(driver)) {
    const int count = driver_->device_count();
    if (index < 0 || index >= count)
        throw NotAvailable(text("GPU ", index, " was asked for and the driver sees ", count,
                                ": ask for one that is there; CUDA_VISIBLE_DEVICES may hide some."));
    PYPERF_CALL(driver_, cuDeviceGet, &device_, index);
    properties_ = read_properties();
    const auto [major, minor] = properties_.compute_capability;
    if (major < oldest_compute_capability)
        throw NotAvailable(text("GPU ", index, " (", properties_.name, ") has compute capability ", major, ".", minor,
                                " and the kernels need 8.0 (Ampere) or later: take a newer GPU or the CPU."));
    PYPERF_CALL(driver_, cuDevicePrimaryCtxRetain, &handle_, device_);
}

// At the end of the process the driver may be gone before us: then it refuses, which harms nobody.
Context::~Context() { driver_->api().cuDevicePrimaryCtxRelease_v2(device_); }

int Context::attribute(DeviceAttribute attribute) const {
    int value = 0;
    PYPERF_CALL(driver_, cuDeviceGetAttribute, &value, attribute, device_);
    return value;
}

DeviceProperties Context::read_properties() const {
    DeviceProperties properties;
    char name[256] = {};
    PYPERF_CALL(driver_, cuDeviceGetName, name, static_cast<int>(sizeof name) - 1, device_);
    properties.name = name;
    CUuuid uuid;
    PYPERF_CALL(driver_, cuDeviceGetUuid_v2, &uuid, device_);
    properties.uuid = uuid_text(uuid, properties.name.find(" MIG ") == std::string::npos ? "GPU" : "MIG");
    char address[32];
    std::snprintf(address, sizeof address, "%08x:%02x:%02x.0", static_cast<unsigned>(attribute(pci_domain)),
                  static_cast<unsigned>(attribute(pci_bus)), static_cast<unsigned>(attribute(pci_device)));
    properties.pci_address = address;
    std::size_t bytes = 0;
    PYPERF_CALL(driver_, cuDeviceTotalMem_v2, &bytes, device_);
    properties.memory_bytes = static_cast<std::int64_t>(bytes);
    properties.compute_capability = {attribute(compute_capability_major), attribute(compute_capability_minor)};
    properties.multiprocessors = attribute(multiprocessor_count);
    properties.l2_bytes = attribute(l2_cache_bytes);
    properties.shared_bytes_per_block = attribute(max_shared_bytes_per_block_optin);
    properties.shared_bytes_per_multiprocessor = attribute(max_shared_bytes_per_multiprocessor);
    properties.reserved_shared_bytes_per_block = attribute(reserved_shared_bytes_per_block);
    properties.registers_per_multiprocessor = attribute(max_registers_per_multiprocessor);
    properties.threads_per_multiprocessor = attribute(max_threads_per_multiprocessor);
    properties.threads_per_block = attribute(max_threads_per_block);
    properties.blocks_per_multiprocessor = attribute(max_blocks_per_multiprocessor);
    properties.clusters = attribute(cluster_launch) != 0;
    properties.tensor_maps = attribute(tensor_map_access) != 0;
    return properties;
}

// From sm_90 on, the instructions this suite is about (wgmma, setmaxnreg) are the architecture's own: suffix a.
std::string Context::architecture() const {
    const auto [major, minor] = properties_.compute_capability;
    return text("sm_", major, minor, major >= 9 ? "a" : "");
}

std::pair<std::int64_t, std::int64_t> Context::free_and_total_bytes() const {
    const CurrentContext current(*this);
    std::size_t free_bytes = 0, total_bytes = 0;
    PYPERF_CALL(driver_, cuMemGetInfo_v2, &free_bytes, &total_bytes);
    return {static_cast<std::int64_t>(free_bytes), static_cast<std::int64_t>(total_bytes)};
}

void Context::synchronize() const {
    const CurrentContext current(*this);
    PYPERF_CALL(driver_, cuCtxSynchronize);
}

CurrentContext::CurrentContext(const Context& context) : context_(context) {
    PYPERF_CALL(context_.driver(), cuCtxPushCurrent_v2, context_.handle_);
}

CurrentContext::~CurrentContext() {
    CUcontext popped = nullptr;
    context_.driver()->api().cuCtxPopCurrent_v2(&popped);
}

}  // namespace pyperf::cuda
