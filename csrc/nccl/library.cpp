// The version is read before the functions are looked up: "too old" says more than the first symbol that is missing.
#include "nccl/library.h"

#include "check.h"
#include "nccl/errors.h"

namespace pyperf::nccl {
namespace {

constexpr int oldest_version = 21400;

constexpr struct Setting {
    const char* name;
    int ncclConfig_t::*member;
    int oldest_version;
} all_settings[] = {
#define PYPERF_SETTING(name, oldest_version) {#name, &ncclConfig_t::name, oldest_version},
    PYPERF_NCCL_SETTINGS(PYPERF_SETTING)
#undef PYPERF_SETTING
};

const Setting& setting_named(const std::string& asked) {
    std::string choices;
    for (const Setting& setting : all_settings) {
        if (asked == setting.name) return setting;
        choices += (choices.empty() ? "" : ", ") + std::string(setting.name);
    }
    throw InputError(text("NCCL's setting '", asked, "' is unknown: choose ", choices, "."));
}

LibrarySearch libnccl(const std::vector<std::string>& candidates) {
    return {"PYPERF_LIBNCCL", "libnccl", candidates, {"libnccl.so.2"},
            "install it (pip install nvidia-nccl-cu13) or let PYPERF_LIBNCCL name a copy, or ask for gloo"};
}

// Major, minor and patch have had two decimals each since 2.9; before, minor and patch had one and two.
std::string text_of(int version) {
    const int major = version >= 10000 ? version / 10000 : version / 1000;
    const int minor = version >= 10000 ? version / 100 % 100 : version / 100 % 10;
    return text(major, ".", minor, ".", version % 100);
}

// The signature's type is lost through dlsym; this is where it is given back.
template <typename Function> void assign(Function& function, void* symbol) {
    function = reinterpret_cast<Function>(symbol);
}

}  // namespace

std::map<std::string, int> known_settings() {
    std::map<std::string, int> out;
    for (const Setting& setting : all_settings) out[setting.name] = setting.oldest_version;
    return out;
}

Library::Library(const std::vector<std::string>& candidates) : library_(libnccl(candidates)) {
    ncclResult_t (*get_version)(int*) = nullptr;
    assign(get_version, library_.require("ncclGetVersion"));
    check(get_version(&version_), "ncclGetVersion");
    if (version_ < oldest_version)
        throw NotAvailable(text(path(), " is NCCL ", version_text(), " and ", text_of(oldest_version),
                                " or later is needed, whose communicators can be given up: update it."));
#define PYPERF_REQUIRE(name, ...) assign(api_.name, library_.require(#name));
    PYPERF_NCCL_FUNCTIONS(PYPERF_REQUIRE)
#undef PYPERF_REQUIRE
#define PYPERF_FIND(name, ...) assign(api_.name, library_.find(#name));
    PYPERF_OPTIONAL_NCCL_FUNCTIONS(PYPERF_FIND)
#undef PYPERF_FIND
}

std::string Library::version_text() const { return text_of(version_); }

std::map<std::string, bool> Library::optional_symbols() const {
    return {
#define PYPERF_PRESENT(name, ...) {#name, api_.name != nullptr},
        PYPERF_OPTIONAL_NCCL_FUNCTIONS(PYPERF_PRESENT)
#undef PYPERF_PRESENT
    };
}

ncclUniqueId Library::unique_id() const {
    ncclUniqueId id{};
    check(api_.ncclGetUniqueId(&id), "ncclGetUniqueId");
    return id;
}

ncclConfig_t Library::configuration(const Settings& settings) const {
    ncclConfig_t config;
    config.blocking = 0;
    for (const auto& [name, value] : settings) {
        const Setting& setting = setting_named(name);
        if (version_ < setting.oldest_version)
            throw NotAvailable(text("NCCL ", version_text(), " has no setting ", name, ", ",
                                    text_of(setting.oldest_version), " or later has: update it, or leave it out."));
        config.*setting.member = value;
    }
    return config;
}

void Library::fail(ncclResult_t result, const char* call, ncclComm_t communicator) const {
    const char* words = api_.ncclGetErrorString ? api_.ncclGetErrorString(result) : nullptr;
    const char* detail = api_.ncclGetLastError ? api_.ncclGetLastError(communicator) : nullptr;
    throw_result(call, result, words, detail);
}

}  // namespace pyperf::nccl
