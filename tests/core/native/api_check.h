// Checks of properties that a declaration of ours shares with one of NVIDIA's; for files that are compiled and never
// run.
//
// `ours` has to name the namespace of our declarations before the macros are used.
#pragma once

#include <cstddef>
#include <type_traits>

// Bytes of a number, an enumeration or a pointer; 0 for anything else, whose layout is compared by itself.
template <typename T> constexpr std::size_t scalar_bytes() {
    if constexpr (std::is_scalar_v<T>)
        return sizeof(T);
    else
        return 0;
}

// Two prototypes agree if they return the same size and take as many parameters, each of the same size and kind, and what
// is written to through a pointer too: our handles are other types than theirs, and our enumerations are int.
template <typename A, typename B>
constexpr bool same_kind = sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B> &&
                           (scalar_bytes<std::remove_pointer_t<A>>() == scalar_bytes<std::remove_pointer_t<B>>() ||
                            scalar_bytes<std::remove_pointer_t<A>>() == 0 ||
                            scalar_bytes<std::remove_pointer_t<B>>() == 0);

template <typename A, typename B> struct Agree : std::false_type {};
template <typename R, typename... A, typename S, typename... B> struct Agree<R (*)(A...), S (*)(B...)> {
    static constexpr bool all() {
        if constexpr (sizeof...(A) == sizeof...(B))
            return same_kind<R, S> && (same_kind<A, B> && ...);
        else
            return false;
    }
    static constexpr bool value = all();
};

#define CHECK_NUMBER(mine, theirs) static_assert(static_cast<long long>(ours::mine) == static_cast<long long>(theirs))
