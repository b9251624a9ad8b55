// cuLaunchKernelEx is the one way to launch: it takes clusters, and without attributes it is cuLaunchKernel.
#include "cuda/launch.h"

#include "check.h"

#include <algorithm>
#include <climits>
#include <cstring>

namespace pyperf::cuda {
namespace {

constexpr std::int64_t portable_cluster = 8;  // blocks that every GPU with clusters takes; 16 must be asked for
constexpr std::int64_t largest_cluster = 16;

std::int64_t product(const Dimensions& dimensions) { return dimensions[0] * dimensions[1] * dimensions[2]; }

std::string sizes(const Dimensions& dimensions) {
    return text(dimensions[0], "x", dimensions[1], "x", dimensions[2]);
}

// The limits of all GPUs taken (CUDA C++ Programming Guide, "Technical Specifications per Compute Capability").
void check_dimensions(const char* what, const Dimensions& dimensions, const Dimensions& limits) {
    for (int axis = 0; axis < 3; ++axis)
        CHECK_INPUT(dimensions[axis] >= 1 && dimensions[axis] <= limits[axis], "A ", what, " of ", sizes(dimensions),
                    " was asked for: each side must be at least 1 and at most ", sizes(limits), ".");
}

CUlaunchAttribute cluster_attribute(const Dimensions& cluster) {
    CUlaunchAttribute attribute{};
    attribute.id = launch_attribute_cluster;
    attribute.value.cluster = {static_cast<unsigned>(cluster[0]), static_cast<unsigned>(cluster[1]),
                               static_cast<unsigned>(cluster[2])};
    return attribute;
}

}  // namespace

Module::Module(std::shared_ptr<const Context> context, const std::string& cubin) : context_(std::move(context)) {
    CHECK_INPUT(!cubin.empty(), "A module was asked for without machine code: compile a source first.");
    const CurrentContext current(*context_);
    PYPERF_CALL(context_->driver(), cuModuleLoadData, &handle_, cubin.data());
}

Module::~Module() {
    try {
        const CurrentContext current(*context_);
        context_->driver()->api().cuModuleUnload(handle_);
    } catch (const std::runtime_error&) {  // the context is lost, and its modules with it
    }
}

Kernel::Kernel(std::shared_ptr<const Module> module, const std::string& name)
    : module_(std::move(module)), name_(name) {
    const CurrentContext current(context());
    const CUresult result = context().driver()->api().cuModuleGetFunction(&handle_, module_->handle(), name_.c_str());
    context().driver()->check(result, text("Looking up the kernel ", name_, " (cuModuleGetFunction)").c_str());
}

int Kernel::attribute(FunctionAttribute attribute) const {
    const CurrentContext current(context());
    int value = 0;
    PYPERF_CALL(context().driver(), cuFuncGetAttribute, &value, attribute, handle_);
    return value;
}

void Kernel::allow_dynamic_shared_bytes(std::int64_t bytes) {
    const std::int64_t limit = context().properties().shared_bytes_per_block - static_shared_bytes();
    CHECK_INPUT(bytes >= 0 && bytes <= limit, "Kernel ", name_, " was asked to run with ", bytes,
                " bytes of dynamic shared memory and ", context().properties().name, " has ", limit,
                " for it: take a smaller tile or fewer stages.");
    if (bytes <= allowed_dynamic_shared_bytes_) return;  // never less: another launch of this kernel may need it
    const CurrentContext current(context());
    PYPERF_CALL(context().driver(), cuFuncSetAttribute, handle_, function_max_dynamic_shared_bytes,
                static_cast<int>(bytes));
    allowed_dynamic_shared_bytes_ = bytes;
}

// Refused before the driver is asked, whose answer would name no limit.
void Kernel::allow_cluster(std::int64_t cluster) {
    CHECK_INPUT(cluster >= 1 && cluster <= largest_cluster, "A cluster of ", cluster,
                " blocks was asked for: it can have 1 to ", largest_cluster, ".");
    if (cluster > 1 && !context().properties().clusters)
        throw NotAvailable(text(context().properties().name,
                                " has no thread block clusters, which came with sm_90: take a cluster of 1."));
    if (cluster <= portable_cluster) return;
    const CurrentContext current(context());
    PYPERF_CALL(context().driver(), cuFuncSetAttribute, handle_, function_non_portable_cluster, 1);
}

void Kernel::check_threads(std::int64_t threads) const {
    const int limit = max_threads_per_block();
    CHECK_INPUT(threads >= 1 && threads <= limit, "Kernel ", name_, " was asked for with blocks of ", threads,
                " threads and can have 1 to ", limit, ".");
}

int Kernel::max_active_blocks(std::int64_t threads, std::int64_t dynamic_shared_bytes) {
    check_threads(threads);
    allow_dynamic_shared_bytes(dynamic_shared_bytes);
    const CurrentContext current(context());
    int blocks = 0;
    PYPERF_CALL(context().driver(), cuOccupancyMaxActiveBlocksPerMultiprocessor, &blocks, handle_,
                static_cast<int>(threads), static_cast<std::size_t>(dynamic_shared_bytes));
    return blocks;
}

int Kernel::max_active_clusters(std::int64_t threads, std::int64_t cluster, std::int64_t dynamic_shared_bytes) {
    check_threads(threads);
    allow_cluster(std::max<std::int64_t>(cluster, 2));  // where there are no clusters, there are none of 1 either
    allow_cluster(cluster);
    allow_dynamic_shared_bytes(dynamic_shared_bytes);
    CUlaunchAttribute attribute = cluster_attribute({cluster, 1, 1});
    CUlaunchConfig config{};
    config.grid_x = static_cast<unsigned>(cluster);
    config.grid_y = config.grid_z = config.block_y = config.block_z = 1;
    config.block_x = static_cast<unsigned>(threads);
    config.shared_bytes = static_cast<unsigned>(dynamic_shared_bytes);
    config.attributes = &attribute;
    config.attribute_count = 1;
    const CurrentContext current(context());
    int clusters = 0;
    PYPERF_CALL(context().driver(), cuOccupancyMaxActiveClusters, &clusters, handle_, &config);
    return clusters;
}

std::vector<std::size_t> Kernel::parameter_bytes() const {
    std::vector<std::size_t> sizes;
    const auto get = context().driver()->api().cuFuncGetParamInfo;
    if (!get) return sizes;
    const CurrentContext current(context());
    std::size_t offset = 0, bytes = 0;
    while (get(handle_, sizes.size(), &offset, &bytes) == 0) sizes.push_back(bytes);  // until there is no such index
    return sizes;
}

Launch::Launch(std::shared_ptr<Kernel> kernel, const LaunchShape& shape, const std::vector<std::string>& arguments)
    : kernel_(std::move(kernel)) {
    check_dimensions("grid", shape.grid, {INT_MAX, 65535, 65535});
    check_dimensions("block", shape.block, {1024, 1024, 64});
    check_dimensions("cluster", shape.cluster, {largest_cluster, largest_cluster, largest_cluster});
    kernel_->check_threads(product(shape.block));
    for (int axis = 0; axis < 3; ++axis)
        CHECK_INPUT(shape.grid[axis] % shape.cluster[axis] == 0, "A grid of ", sizes(shape.grid),
                    " blocks does not divide into clusters of ", sizes(shape.cluster), ".");
    kernel_->allow_cluster(product(shape.cluster));
    kernel_->allow_dynamic_shared_bytes(shape.dynamic_shared_bytes);
    copy_arguments(arguments);

    config_.grid_x = static_cast<unsigned>(shape.grid[0]);
    config_.grid_y = static_cast<unsigned>(shape.grid[1]);
    config_.grid_z = static_cast<unsigned>(shape.grid[2]);
    config_.block_x = static_cast<unsigned>(shape.block[0]);
    config_.block_y = static_cast<unsigned>(shape.block[1]);
    config_.block_z = static_cast<unsigned>(shape.block[2]);
    config_.shared_bytes = static_cast<unsigned>(shape.dynamic_shared_bytes);
    cluster_ = cluster_attribute(shape.cluster);
    config_.attributes = &cluster_;
    config_.attribute_count = product(shape.cluster) > 1 ? 1 : 0;
}

std::size_t Launch::slots_of(const std::string& argument) {
    return (argument.size() + sizeof(Slot) - 1) / sizeof(Slot);
}

void Launch::copy_arguments(const std::vector<std::string>& arguments) {
    const std::vector<std::size_t> wanted = kernel_->parameter_bytes();
    CHECK_INPUT(wanted.empty() || wanted.size() == arguments.size(), "Kernel ", kernel_->name(), " was given ",
                arguments.size(), " arguments and has ", wanted.size(), " parameters.");
    std::size_t slots = 0;
    for (std::size_t index = 0; index < arguments.size(); ++index) {
        CHECK_INPUT(wanted.empty() || wanted[index] == arguments[index].size(), "Argument ", index, " of kernel ",
                    kernel_->name(), " has ", arguments[index].size(), " bytes and its parameter ", wanted[index], ".");
        slots += slots_of(arguments[index]);
    }
    slots_.resize(slots);
    Slot* slot = slots_.data();
    for (const std::string& argument : arguments) {
        std::memcpy(slot, argument.data(), argument.size());
        arguments_.push_back(slot);
        slot += slots_of(argument);
    }
}

void Launch::run(std::uintptr_t stream) {
    const CurrentContext current(kernel_->context());
    config_.stream = reinterpret_cast<CUstream>(stream);
    PYPERF_CALL(kernel_->context().driver(), cuLaunchKernelEx, &config_, kernel_->handle(), arguments_.data(), nullptr);
}

}  // namespace pyperf::cuda
