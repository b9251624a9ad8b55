// Errors between ranks, sorted by what the caller must do about it.
//
// Bad arguments are InputError and what this machine lacks is NotAvailable (check.h); the bindings make a Python
// exception of each class here.
#pragma once

#include <stdexcept>

namespace pyperf::nccl {

class NcclError : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

// Something did not end in time; the communicator has been aborted, and whether a peer lives must be asked elsewhere.
class DeadlineExceeded : public NcclError {
  public:
    using NcclError::NcclError;
};

// The communicator was aborted, here or at another thread's request, or finalized: it takes no more work.
class Aborted : public NcclError {
  public:
    using NcclError::NcclError;
};

// Throws NcclError that says the call, the result's name and what to do. `detail` is the library's last error; it and
// `words` are the library's own and may be null or empty.
[[noreturn]] void throw_result(const char* call, int code, const char* words, const char* detail);

}  // namespace pyperf::nccl
