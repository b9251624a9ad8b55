// A file is: magic, then key, log and cubin, each behind its length, then a checksum of all before it. The whole key is
// kept and compared, so that its hash need only spread file names and cannot mix up two kernels.
#include "cuda/kernel_cache.h"

#include "check.h"

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string_view>

#include <sys/stat.h>
#include <unistd.h>

namespace pyperf::cuda {
namespace {

constexpr std::string_view magic = "pyperf_suite kernel 1\n";

// FNV-1a, 64 bits (Fowler, Noll, Vo).
std::uint64_t hash(std::string_view text) {
    std::uint64_t value = 14695981039346656037u;
    for (const char character : text) value = (value ^ static_cast<unsigned char>(character)) * 1099511628211u;
    return value;
}

void append_number(std::string& out, std::uint64_t number) {
    for (int byte = 0; byte < 8; ++byte) out.push_back(static_cast<char>(number >> (8 * byte)));
}

void append_text(std::string& out, const std::string& text) {
    append_number(out, text.size());
    out += text;
}

// Takes numbers and texts off the front of a file's content; once one is cut short, all that follow are absent.
class Reader {
  public:
    explicit Reader(std::string_view content) : rest_(content) {}

    std::optional<std::uint64_t> number() {
        const std::optional<std::string_view> bytes = take(8);
        if (!bytes) return std::nullopt;
        std::uint64_t value = 0;
        for (int byte = 0; byte < 8; ++byte)
            value |= static_cast<std::uint64_t>(static_cast<unsigned char>((*bytes)[byte])) << (8 * byte);
        return value;
    }

    std::optional<std::string_view> text() {
        const std::optional<std::uint64_t> length = number();
        return length ? take(*length) : std::nullopt;
    }

    std::optional<std::string_view> take(std::uint64_t length) {
        if (length > rest_.size()) {
            rest_ = {};
            return std::nullopt;
        }
        const std::string_view taken = rest_.substr(0, length);
        rest_.remove_prefix(length);
        return taken;
    }

  private:
    std::string_view rest_;
};

std::optional<std::string> read_file(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) return std::nullopt;
    std::ostringstream content;
    content << file.rdbuf();
    return content.str();
}

// mkdir -p, for this user alone where a folder is new. Whether it is there in the end is seen by writing to it.
void make_folders(const std::string& folder) {
    for (std::size_t slash = folder.find('/', 1);; slash = folder.find('/', slash + 1)) {
        mkdir(folder.substr(0, slash).c_str(), 0700);
        if (slash == std::string::npos) return;
    }
}

}  // namespace

std::string KernelCache::path_of(const std::string& key) const {
    char name[32];
    std::snprintf(name, sizeof name, "%016llx.kernel", static_cast<unsigned long long>(hash(key)));
    return folder_ + "/" + name;
}

std::optional<CachedKernel> KernelCache::load(const std::string& key) const {
    if (folder_.empty()) return std::nullopt;
    const std::optional<std::string> content = read_file(path_of(key));
    if (!content) return std::nullopt;
    Reader reader(*content);
    const auto start = reader.take(magic.size());
    const auto kept_key = reader.text();
    const auto log = reader.text();
    const auto cubin = reader.text();
    const std::size_t body = content->size() < 8 ? 0 : content->size() - 8;
    const auto checksum = reader.number();
    const bool whole =
        checksum && *start == magic && *checksum == hash(std::string_view(*content).substr(0, body));
    if (!whole || *kept_key != key) return std::nullopt;
    return CachedKernel{std::string(*cubin), std::string(*log)};
}

std::string KernelCache::store(const std::string& key, const CachedKernel& kernel) const {
    if (folder_.empty()) return {};
    std::string content(magic);
    append_text(content, key);
    append_text(content, kernel.log);
    append_text(content, kernel.cubin);
    append_number(content, hash(content));

    make_folders(folder_);
    // Written beside its final place under a name of its own, then renamed: several processes may store at once.
    std::string temporary = path_of(key) + ".XXXXXX";
    const int file = mkstemp(temporary.data());
    bool written = file >= 0;
    for (std::size_t done = 0; written && done < content.size();) {
        const ssize_t count = write(file, content.data() + done, content.size() - done);
        if (count < 0 && errno == EINTR) continue;
        written = count > 0;
        done += written ? static_cast<std::size_t>(count) : 0;
    }
    written = written && std::rename(temporary.c_str(), path_of(key).c_str()) == 0;
    const int reason = errno;
    if (file >= 0) {
        close(file);
        if (!written) unlink(temporary.c_str());
    }
    if (written) return {};
    return text("Compiled kernels cannot be kept in ", folder_, " (", std::strerror(reason),
                "), so each process compiles its own: set PYPERF_CACHE_DIR to a folder that can be written.");
}

}  // namespace pyperf::cuda
