// Check macros that throw: CHECK_INPUT speaks to the person who asked, CHECK_INTERNAL to the one who maintains this.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace pyperf {

// Something was asked for that cannot be; the bindings turn it into Python's ValueError.
class InputError : public std::invalid_argument {
  public:
    using std::invalid_argument::invalid_argument;
};

// This machine has no way: no driver or library, one too old, a GPU without the feature. Record it as unsupported.
class NotAvailable : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

// Streams its arguments into one string: text("m = ", 3).
template <typename... Parts> std::string text(const Parts&... parts) {
    std::ostringstream stream;
    (stream << ... << parts);
    return stream.str();
}

}  // namespace pyperf

// The arguments after the condition are streamed into one sentence: what was asked, what is allowed.
#define CHECK_INPUT(condition, ...)                                                                                  \
    do {                                                                                                             \
        if (!(condition)) throw ::pyperf::InputError(::pyperf::text(__VA_ARGS__));                                   \
    } while (0)

#define CHECK_INTERNAL(condition, ...)                                                                               \
    do {                                                                                                             \
        if (!(condition))                                                                                            \
            throw std::logic_error(::pyperf::text(__FILE__, ":", __LINE__, ": ", #condition, " does not hold: ",     \
                                                  __VA_ARGS__));                                                     \
    } while (0)
