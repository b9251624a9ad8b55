// Headers are handed over as text: NVRTC then reads no file, and whoever keeps its output knows all that it saw.
#include "cuda/compiler.h"

#include "check.h"
#include "cuda/errors.h"

#include <algorithm>
#include <cstdlib>

namespace pyperf::cuda {
namespace {

LibrarySearch libnvrtc(const std::vector<std::string>& candidates) {
    return {"PYPERF_LIBNVRTC", "libnvrtc", candidates,
            {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"},
            "install NVRTC, which compiles the kernels, with pip install nvidia-cuda-nvrtc (nvidia-cuda-nvrtc-cu12 for "
            "a driver of CUDA 12)"};
}

template <typename Function> void assign(Function& function, void* symbol) {
    function = reinterpret_cast<Function>(symbol);
}

std::vector<const char*> pointers(const std::vector<std::string>& strings) {
    std::vector<const char*> out;
    for (const std::string& string : strings) out.push_back(string.c_str());
    return out;
}

// A text that NVRTC counts with its closing zero.
template <typename Size, typename Get> std::string fetch(Size size_of, Get get) {
    std::size_t bytes = 0;
    size_of(&bytes);
    std::string out(bytes, '\0');
    if (bytes > 0) get(out.data());
    return out;
}

}  // namespace

Compiler::Compiler(const std::vector<std::string>& candidates) : library_(libnvrtc(candidates)) {
#define PYPERF_REQUIRE(name, ...) assign(api_.name, library_.require(#name));
    PYPERF_NVRTC_FUNCTIONS(PYPERF_REQUIRE)
#undef PYPERF_REQUIRE
    check(api_.nvrtcVersion(&version_.first, &version_.second), "nvrtcVersion");
    library_.open_companion("libnvrtc-builtins.so." + version());  // a wheel's folder is not in the loader's path
}

std::string Compiler::version() const { return text(version_.first, ".", version_.second); }

Compiled Compiler::compile(const Source& source, const std::string& architecture,
                           const std::vector<std::string>& options) const {
    check_architecture(architecture);
    std::vector<const char*> header_names, header_texts;
    for (const auto& [name, content] : source.headers) {
        header_names.push_back(name.c_str());
        header_texts.push_back(content.c_str());
    }
    nvrtcProgram program = nullptr;
    check(api_.nvrtcCreateProgram(&program, source.text.c_str(), source.name.c_str(),
                                  static_cast<int>(header_names.size()), header_texts.data(), header_names.data()),
          "nvrtcCreateProgram");
    const auto destroy = [this](nvrtcProgram handle) { api_.nvrtcDestroyProgram(&handle); };
    const std::unique_ptr<NvrtcProgram_st, decltype(destroy)> owner(program, destroy);

    std::vector<std::string> all = options;
    all.push_back("--gpu-architecture=" + architecture);
    const std::vector<const char*> arguments = pointers(all);
    const nvrtcResult result = api_.nvrtcCompileProgram(program, static_cast<int>(arguments.size()), arguments.data());
    std::string log = fetch([&](std::size_t* bytes) { api_.nvrtcGetProgramLogSize(program, bytes); },
                            [&](char* out) { api_.nvrtcGetProgramLog(program, out); });
    while (!log.empty() && (log.back() == '\0' || log.back() == '\n')) log.pop_back();
    if (result != 0)
        throw CompileError(text("NVRTC ", version(), " cannot compile ", source.name, " for ", architecture, " (",
                                api_.nvrtcGetErrorString(result), "):\n", log));
    Compiled kernel{{}, log};
    std::size_t bytes = 0;
    check(api_.nvrtcGetCUBINSize(program, &bytes), "nvrtcGetCUBINSize");
    kernel.cubin.resize(bytes);
    check(api_.nvrtcGetCUBIN(program, kernel.cubin.data()), "nvrtcGetCUBIN");
    return kernel;
}

void Compiler::check(nvrtcResult result, const char* call) const {
    if (result != 0)
        throw CudaError(text(call, " of ", library_.path(), " failed: ", api_.nvrtcGetErrorString(result), "."));
}

// sm_90a is sm_90 with the architecture's own instructions: NVRTC lists the number alone.
void Compiler::check_architecture(const std::string& architecture) const {
    CHECK_INPUT(architecture.rfind("sm_", 0) == 0 && architecture.size() > 3, "Architecture '", architecture,
                "' is not one: ask for sm_80, sm_90a or another of that form.");
    int count = 0;
    check(api_.nvrtcGetNumSupportedArchs(&count), "nvrtcGetNumSupportedArchs");
    std::vector<int> known(static_cast<std::size_t>(count));
    check(api_.nvrtcGetSupportedArchs(known.data()), "nvrtcGetSupportedArchs");
    const int asked = std::atoi(architecture.c_str() + 3);
    if (std::find(known.begin(), known.end(), asked) != known.end()) return;
    std::string list;
    for (const int number : known) list += text(list.empty() ? "" : ", ", "sm_", number);
    throw NotAvailable(text("NVRTC ", version(), " does not know ", architecture, ", only ", list,
                            ": install the NVRTC of another CUDA version."));
}

}  // namespace pyperf::cuda
