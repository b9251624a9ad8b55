// Parts of a plain kernel that the host's compiler cannot read: inline PTX, and shared memory whose size the launch
// gives.
#pragma once

#include <regex>
#include <string>

namespace {

// The same source for cuda_on_host.h.
inline std::string on_host(std::string text) {
    static const std::regex dynamic_shared(
        R"(extern\s+__shared__\s+(?:(?:__align__|alignas)\s*\(\s*\d+\s*\)\s*)?([\w:]+(?:\s+[\w:]+)*)\s+(?:__align__\s*\(\s*\d+\s*\)\s*)?(\w+)\s*\[\s*\]\s*;)");
    text = std::regex_replace(text, dynamic_shared, "$1* const $2 = reinterpret_cast<$1*>(emulation::dynamic_memory);");
    static const std::regex special_register(
        R"re((?:asm|__asm__)\s+volatile\s*\(\s*"mov\.[ub]\d+ %0, %%(\w+);"\s*:\s*"=[rl]"\s*\(\s*(\w+)\s*\)\s*\))re");
    return std::regex_replace(text, special_register, "$2 = emulation::special_$1()");
}

}  // namespace
