// Errors on the way to a GPU, sorted by what the caller must do about it.
//
// Bad arguments are InputError and what this machine lacks is NotAvailable (check.h); the bindings make a Python
// exception of each class here.
#pragma once

#include <stdexcept>

namespace pyperf::cuda {

class CudaError : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

// The GPU has not that much memory left; the context lives on.
class OutOfMemory : public CudaError {
  public:
    using CudaError::CudaError;
};

// A kernel or the hardware failed and took the context with it: every later call fails, the process must be replaced.
class LaunchFailed : public CudaError {
  public:
    using CudaError::CudaError;
};

// NVRTC refused the source; the message holds its log.
class CompileError : public CudaError {
  public:
    using CudaError::CudaError;
};

// A launch waited for the device while the stopwatch held its stream, so there is nothing to time.
class QueueTimedOut : public CudaError {
  public:
    using CudaError::CudaError;
};

// Throws the class that fits a CUresult, saying the call, the result's name and what to do. `name` and `words` are the
// driver's own for the code, and may be null where it has none.
[[noreturn]] void throw_result(const char* call, int code, const char* name, const char* words);

}  // namespace pyperf::cuda
