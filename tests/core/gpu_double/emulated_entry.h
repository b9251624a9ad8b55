// The last of what a kernel is compiled with: the table of its functions, by their types, which launches are read from.
// Before it stand the source and a header that defines emulation::run.
#pragma once

#include "emulated_kernel.h"

#include <type_traits>
#include <utility>

namespace emulation {

template <class... Parameters, std::size_t... index>
void call(void (*function)(Parameters...), void** arguments, std::index_sequence<index...>) {
    function(*static_cast<std::remove_cvref_t<Parameters>*>(arguments[index])...);
}

template <auto function> struct Entry;
template <class... Parameters, void (*function)(Parameters...)> struct Entry<function> {
    static_assert(sizeof...(Parameters) <= EMULATED_PARAMETERS, "the double takes no more parameters");
    static void run(EmulatedLaunch* launch) {
        emulation::run(launch, [launch] {
            call(function, launch->arguments, std::index_sequence_for<Parameters...>{});
        });
    }
    static EmulatedKernel described(const char* name, unsigned max_threads, unsigned shared_bytes) {
        return {name, sizeof...(Parameters), {sizeof(Parameters)...}, max_threads, shared_bytes, run};
    }
};

}  // namespace emulation
