// Check macros that throw: CHECK_INPUT speaks to the person who asked, CHECK_INTERNAL to the one who maintains this.
#pragma once

#include <cstdio>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

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

// Its arguments in one string: text("m = ", 3).
template <typename... Parts> std::string text(const Parts&... parts) {
    std::string out;
    const auto append = [&out](const auto& part) {
        using Part = std::decay_t<decltype(part)>;
        if constexpr (std::is_convertible_v<const Part&, std::string_view>)
            out += std::string_view(part);
        else if constexpr (std::is_same_v<Part, char>)
            out += part;
        else if constexpr (std::is_floating_point_v<Part>) {
            char digits[32];
            out.append(digits, static_cast<std::size_t>(std::snprintf(digits, sizeof digits, "%g", double{part})));
        } else
            out += std::to_string(part);
    };
    (append(parts), ...);
    return out;
}

}  // namespace pyperf

// The arguments after the condition make one sentence: what was asked, what is allowed.
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
