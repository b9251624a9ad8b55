// A double of libnvrtc: what it compiles runs on the host. The "machine code" is a shared library that the double of libcuda
// loads, made by the host's compiler of the same source and the same options.
//
// Where the source includes the headers that wrap our kernels' PTX, their emulation in tests/core/kernels takes their place; all
// other sources get cuda_on_host.h. PTX that neither knows is an error, as an instruction is that a target lacks.
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <spawn.h>
#include <sstream>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "emulated_instructions.h"

namespace fs = std::filesystem;
extern char** environ;

namespace {

enum { SUCCESS = 0, INVALID_INPUT = 3, INVALID_PROGRAM = 4, COMPILATION = 6 };
constexpr int architectures[] = {75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121};
const fs::path here = SOURCES;     // this folder
const fs::path built = fs::path(BUILT);  // where standard.h is, and what the compiler made of it

struct Program {
    std::string source, name;
    std::map<std::string, std::string> headers;
    std::string log, library;
};

std::string read(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

void write(const fs::path& path, const std::string& text) {
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
}

// Runs the host's compiler; what it says is appended to `said`.
bool compiler(std::vector<std::string> arguments, const fs::path& folder, std::string& said) {
    const char* named = std::getenv("CXX");
    arguments.insert(arguments.begin(), named && *named ? named : "c++");
    std::vector<char*> words;
    for (std::string& argument : arguments) words.push_back(argument.data());
    words.push_back(nullptr);
    const fs::path messages = folder / "messages";
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 2, messages.c_str(), 0x241 /* write, create, truncate */, 0600);
    pid_t process;
    const int refused = posix_spawnp(&process, words[0], &actions, nullptr, words.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    if (refused) {
        said += "the host's compiler " + arguments[0] + " does not start: set CXX\n";
        return false;
    }
    int status = 0;
    waitpid(process, &status, 0);
    said += read(messages);
    return status == 0;
}

// Name in an `extern "C" __global__` declaration, and the threads that a block of it may have.
struct Function {
    std::string name, threads = "1024";
};

std::vector<Function> functions_in(const std::string& text) {
    static const std::regex begin(R"(extern\s+"C"\s+__global__)");
    std::vector<Function> found;
    for (std::sregex_iterator at(text.begin(), text.end(), begin), end; at != end; ++at) {
        Function function;
        std::string word;
        for (std::size_t place = static_cast<std::size_t>(at->position() + at->length()); place < text.size(); ++place) {
            const char letter = text[place];
            if (std::isalnum(static_cast<unsigned char>(letter)) || letter == '_') {
                word += letter;
            } else if (letter != '(') {
                if (std::isspace(static_cast<unsigned char>(letter)) && !word.empty() && word != "void") function.name = word;
                word.clear();
            } else {
                if (!word.empty()) function.name = word;
                if (function.name != "__launch_bounds__") break;
                // The first of its arguments, which may have parentheses of their own.
                std::string threads;
                int depth = 0;
                bool first = true;
                for (; place < text.size(); ++place) {
                    if (text[place] == ')' && --depth == 0) break;
                    if (text[place] == ',' && depth == 1) first = false;
                    if (first && (depth > 0 || text[place] != '(')) threads += text[place];
                    if (text[place] == '(') ++depth;
                }
                function.threads = threads;
                word.clear();
            }
        }
        found.push_back(function);
    }
    return found;
}

int compile(Program& program, const std::vector<std::string>& options) {
    std::string architecture;
    std::vector<std::string> macros;
    for (const std::string& option : options) {
        if (option.rfind("--gpu-architecture=", 0) == 0) architecture = option.substr(19);
        if (option.rfind("-D", 0) == 0 || option.rfind("-I", 0) == 0) macros.push_back(option);
    }
    const bool sm90 = program.headers.count("wgmma.cuh"), sm80 = program.headers.count("ptx_sm80.cuh");
    if (sm90 && architecture != "sm_90a") {
        program.log = "wgmma is not supported on target '" + architecture + "'";
        return COMPILATION;
    }
    char made[] = "/tmp/fake_libnvrtc.XXXXXX";
    if (!mkdtemp(made)) return INVALID_INPUT;
    const fs::path folder = made;
    const fs::path source = folder / "plain" / program.name;
    std::string& log = program.log;
    const auto build = [&] {
        // The kernels show once macros are replaced.
        write(source, program.source);
        for (const auto& [name, text] : program.headers) write(folder / "plain" / name, text);
        std::vector<std::string> preprocess{"-x", "c++", "-std=c++20", "-E", "-P", "-nostdinc", "-I", folder / "plain",
                                            source, "-o", folder / "preprocessed"};
        preprocess.insert(preprocess.end(), macros.begin(), macros.end());
        if (!compiler(preprocess, folder, log)) return COMPILATION;

        const fs::path emulated = here.parent_path() / "kernels";
        auto headers = program.headers;
        if (sm90) {
            headers["ptx.cuh"] = read(emulated / "emulated_ptx_sm90.cuh");
            headers["wgmma.cuh"] = "#pragma once\n";
        }
        if (sm80) headers["ptx_sm80.cuh"] = read(emulated / "emulated_ptx_sm80.cuh");
        const bool plain = !sm80 && !sm90;
        for (const auto& [name, text] : headers) write(folder / "emulated" / name, plain ? on_host(text) : text);
        write(folder / "emulated" / program.name, plain ? on_host(program.source) : program.source);
        std::string text = plain ? "#include \"cuda_on_host.h\"\n" : "";
        text += "#include \"" + program.name + "\"\n";
        if (sm90) text += "#include \"emulated_grid_sm90.h\"\n";
        if (sm80) text += "#include \"emulated_grid_sm80.h\"\n";
        text += "#include \"emulated_entry.h\"\nextern \"C\" const char* const emulated_architecture = \"" + architecture +
                "\";\nextern \"C\" const EmulatedKernel emulated_kernels[] = {\n";
        const std::string shared = plain ? "emulation::static_bytes()" : "0";
        for (const Function& each : functions_in(read(folder / "preprocessed")))
            text += "    emulation::Entry<" + each.name + ">::described(\"" + each.name + "\", " + each.threads +
                    ", static_cast<unsigned>(" + shared + ")),\n";
        text += "    {nullptr, 0, {}, 0, 0, nullptr}};\n";
        write(folder / "emulated" / "entry.cpp", text);
        // Libraries of several kernels are loaded into one process: none may take a variable for its own that another has.
        std::vector<std::string> arguments{"-std=c++20", "-O1", "-fPIC", "-w", "-fno-gnu-unique", "-Wl,-Bsymbolic", "-shared", "-s",
                                           "-I", built, "-include", "standard.h", "-I", folder / "emulated",
                                           "-I", here, "-I", emulated, "-o", folder / "library.so",
                                           folder / "emulated" / "entry.cpp"};
        arguments.insert(arguments.end(), macros.begin(), macros.end());
        if (!compiler(arguments, folder, log)) return COMPILATION;
        program.library = read(folder / "library.so");
        log.clear();
        return SUCCESS;
    };
    int result = COMPILATION;
    try {
        result = build();
    } catch (const std::exception& failure) {
        log += failure.what();
    }
    // Messages name the source as NVRTC would.
    for (const fs::path& where : {folder / "emulated", folder / "plain"}) {
        const std::string prefix = where.string() + "/";
        for (std::size_t at; (at = log.find(prefix)) != std::string::npos;) log.erase(at, prefix.size());
    }
    std::error_code ignored;
    fs::remove_all(folder, ignored);
    return result;
}

}  // namespace

extern "C" {

// A version of no NVRTC, so that nothing compiled by it is taken for machine code of one.
int nvrtcVersion(int* major, int* minor) {
    *major = 13;
    *minor = 99;
    return SUCCESS;
}
const char* nvrtcGetErrorString(int result) {
    return result == SUCCESS ? "NVRTC_SUCCESS" : result == COMPILATION ? "NVRTC_ERROR_COMPILATION" : "NVRTC_ERROR_INVALID_INPUT";
}
int nvrtcGetNumSupportedArchs(int* count) {
    *count = static_cast<int>(std::size(architectures));
    return SUCCESS;
}
int nvrtcGetSupportedArchs(int* archs) {
    std::memcpy(archs, architectures, sizeof architectures);
    return SUCCESS;
}
int nvrtcCreateProgram(Program** program, const char* source, const char* name, int count, const char* const* headers,
                       const char* const* names) {
    *program = new Program{source, name && *name ? fs::path(name).filename().string() : "default_program", {}, {}, {}};
    for (int each = 0; each < count; ++each) (*program)->headers[names[each]] = headers[each];
    return SUCCESS;
}
int nvrtcDestroyProgram(Program** program) {
    delete *program;
    *program = nullptr;
    return SUCCESS;
}
int nvrtcCompileProgram(Program* program, int count, const char* const* options) {
    return compile(*program, {options, options + count});
}
int nvrtcGetCUBINSize(const Program* program, std::size_t* bytes) {
    *bytes = program->library.size();
    return program->library.empty() ? INVALID_PROGRAM : SUCCESS;
}
int nvrtcGetCUBIN(const Program* program, char* cubin) {
    std::memcpy(cubin, program->library.data(), program->library.size());
    return SUCCESS;
}
int nvrtcGetProgramLogSize(const Program* program, std::size_t* bytes) {
    *bytes = program->log.size() + 1;
    return SUCCESS;
}
int nvrtcGetProgramLog(const Program* program, char* log) {
    std::memcpy(log, program->log.c_str(), program->log.size() + 1);
    return SUCCESS;
}

}  // extern "C"
