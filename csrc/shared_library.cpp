// A copy already in the process comes before any other: two copies of a driver or compiler in one process would not
// share their state, and torch may have loaded one already.
#include "shared_library.h"

#include "check.h"

#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#if defined(__linux__)
#include <link.h>
#endif

namespace pyperf {
namespace {

#if defined(__linux__)
struct LoadedSearch {
    std::string stem;
    std::string path;
};

// "libnvrtc.so.13" and "libnvrtc-0a1b2c.so.12" bear the stem libnvrtc; "libnvrtc-builtins.so.13" and "libcudart.so"
// are other libraries.
bool bears_stem(const std::string& file, const std::string& stem) {
    if (file.compare(0, stem.size(), stem) != 0 || file.size() == stem.size()) return false;
    const char next = file[stem.size()];
    return (next == '.' || next == '-') && file.find(".so") != std::string::npos &&
           file.find("builtins") == std::string::npos;
}

int visit_loaded(dl_phdr_info* info, std::size_t, void* data) {
    auto& search = *static_cast<LoadedSearch*>(data);
    const std::string path = info->dlpi_name ? info->dlpi_name : "";
    if (!bears_stem(path.substr(path.rfind('/') + 1), search.stem)) return 0;
    search.path = path;
    return 1;
}

std::string already_loaded(const char* stem) {
    LoadedSearch search{stem, {}};
    dl_iterate_phdr(visit_loaded, &search);
    return search.path;
}
#else
std::string already_loaded(const char*) { return {}; }
#endif

std::string last_error() {
    const char* words = dlerror();
    return words ? words : "unknown reason";
}

}  // namespace

SharedLibrary::SharedLibrary(const LibrarySearch& search) {
    const auto open = [this](const std::string& path) {
        handle_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
        if (handle_) path_ = path;
        return handle_ != nullptr;
    };
    const char* asked = std::getenv(search.override_variable);
    if (asked && *asked) {
        if (asked[0] != '/')
            throw NotAvailable(
                text(search.override_variable, "=", asked, " is no absolute path: correct it or unset it."));
        if (!open(asked))
            throw NotAvailable(text(search.override_variable, "=", asked, " cannot be opened (", last_error(),
                                    "): correct it or unset it."));
        return;
    }
    const std::string loaded = already_loaded(search.stem);
    if (!loaded.empty() && open(loaded)) return;
    for (const std::string& path : search.candidates)
        if (open(path)) return;
    for (const std::string& name : search.sonames)
        if (open(name)) return;
    throw NotAvailable(text(search.sonames.front(), " cannot be opened: ", search.how_to_get, "."));
}

void* SharedLibrary::find(const char* symbol) const { return dlsym(handle_, symbol); }

void* SharedLibrary::require(const char* symbol) const {
    void* function = find(symbol);
    if (!function) throw NotAvailable(text(path_, " has no ", symbol, ": it is too old or not what its name says."));
    return function;
}

void SharedLibrary::open_companion(const std::string& file) const {
    const std::size_t slash = path_.rfind('/');
    if (slash != std::string::npos) dlopen((path_.substr(0, slash + 1) + file).c_str(), RTLD_NOW | RTLD_LOCAL);
}

}  // namespace pyperf
