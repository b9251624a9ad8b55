// Vendor libraries opened at run time, so that the package builds and imports where there is none.
#pragma once

#include <string>
#include <vector>

namespace pyperf {

// Places where a library is looked for, in this order.
struct LibrarySearch {
    const char* override_variable;        // an environment variable holding an absolute path; set, it must open
    const char* stem;                     // "libcuda": a copy that is already in the process, whatever its version
    std::vector<std::string> candidates;  // paths where a Python package keeps it
    std::vector<std::string> sonames;     // what the system's loader is asked for
    const char* how_to_get;               // ends the sentence that says it is missing
};

// An open library. It is never closed: a driver may keep threads running inside it.
class SharedLibrary {
  public:
    // Throws NotAvailable, with one sentence, where nothing opens.
    explicit SharedLibrary(const LibrarySearch& search);

    const std::string& path() const { return path_; }
    // The function of that name, or null where this version of the library has none.
    void* find(const char* symbol) const;
    // The same, but throws NotAvailable where there is none.
    void* require(const char* symbol) const;
    // Opens a library that lies in the same folder, if it does, so that this one finds it by its name alone.
    void open_companion(const std::string& file) const;

  private:
    void* handle_ = nullptr;
    std::string path_;
};

}  // namespace pyperf
