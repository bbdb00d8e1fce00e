#include "archive.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "digest.h"
#include "error.h"

namespace framesmith {
namespace {

constexpr size_t kEnd = 22, kEntry = 46, kLocal = 30, kEnd64 = 56, kLocator64 = 20;
constexpr size_t kMostMembers = 1 << 20, kLongestComment = 65535;

[[noreturn]] void refused(const std::string& path) {
  throw Error(FRAMESMITH_SYSTEM, "cannot read " + path + ": " + std::strerror(errno));
}

// Reads little-endian integers at offsets that are checked first.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  std::string_view part(uint64_t at, uint64_t length) const {
    if (at > bytes_.size() || length > bytes_.size() - at) damaged("it ends too early");
    return bytes_.substr(at, length);
  }
  uint64_t number(uint64_t at, int width) const {
    const std::string_view from = part(at, static_cast<uint64_t>(width));
    uint64_t n = 0;
    for (int i = width; i--;) n = n << 8 | static_cast<unsigned char>(from[static_cast<size_t>(i)]);
    return n;
  }
  uint64_t size() const { return bytes_.size(); }

 private:
  std::string_view bytes_;
};

struct Directory {
  uint64_t members, bytes, at;
};

uint64_t end_of(const Reader& r) {
  const uint64_t last = r.size() < kEnd ? 0 : r.size() - kEnd;
  for (uint64_t back = 0; r.size() >= kEnd && back <= last && back <= kLongestComment; back++)
    if (r.number(last - back, 4) == 0x06054b50 && r.number(last - back + 20, 2) == back) return last - back;
  throw Error(FRAMESMITH_BAD_FILE, "this is no package: it is no zip file, or its end is missing");
}

Directory directory_of(const Reader& r) {
  const uint64_t end = end_of(r);
  Directory d{r.number(end + 10, 2), r.number(end + 12, 4), r.number(end + 16, 4)};
  if (end >= kLocator64 && r.number(end - kLocator64, 4) == 0x07064b50) {
    const uint64_t at = r.number(end - kLocator64 + 8, 8);
    if (r.part(at, kEnd64).size() != kEnd64 || r.number(at, 4) != 0x06064b50) damaged("its directory");
    d = {r.number(at + 32, 8), r.number(at + 40, 8), r.number(at + 48, 8)};
  }
  if (d.members > kMostMembers) damaged("it has too many members");
  r.part(d.at, d.bytes);
  return d;
}

// Zip64: sizes beyond 32 bits are in an extra field of the entry.
void widen(const Reader& r, uint64_t extra, uint64_t length, uint64_t& size, uint64_t& stored, uint64_t& at) {
  for (uint64_t k = extra; k + 4 <= extra + length; k += 4 + r.number(k + 2, 2)) {
    if (r.number(k, 2) != 1) continue;
    uint64_t from = k + 4;
    for (uint64_t* n : {&size, &stored, &at})
      if (*n == 0xffffffff) *n = r.number(from, 8), from += 8;
    return;
  }
}

}  // namespace

Bytes Bytes::of_memory(std::string_view bytes) {
  Bytes b;
  b.bytes_ = bytes;
  return b;
}

Bytes Bytes::of_file(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) refused(path);
  const std::shared_ptr<void> closing(nullptr, [file](void*) { close(file); });
  struct stat status;
  if (fstat(file, &status)) refused(path);
  if (!S_ISREG(status.st_mode) || status.st_size <= 0)
    throw Error(FRAMESMITH_BAD_FILE, path + " is no package: it is empty, or no file");
  const auto size = static_cast<size_t>(status.st_size);
  void* memory = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0);
  if (memory == MAP_FAILED) refused(path);
  madvise(memory, size, MADV_HUGEPAGE);  // read, and mapped, in huge pages where the file system has them
  Bytes b;
  b.bytes_ = {static_cast<const char*>(memory), size};
  b.mapping_ = {memory, [size](void* p) { munmap(p, size); }};
  return b;
}

Archive::Archive(Bytes bytes) : bytes_(std::move(bytes)) {
  const Reader r(bytes_.view());
  const Directory d = directory_of(r);
  uint64_t entry = d.at;
  for (uint64_t k = 0; k < d.members; k++) {
    if (r.number(entry, 4) != 0x02014b50) damaged("its directory");
    const uint64_t name = r.number(entry + 28, 2), extra = r.number(entry + 30, 2), comment = r.number(entry + 32, 2);
    uint64_t stored = r.number(entry + 20, 4), size = r.number(entry + 24, 4), at = r.number(entry + 42, 4);
    r.part(entry + kEntry + name, extra);
    widen(r, entry + kEntry + name, extra, size, stored, at);
    const std::string key(r.part(entry + kEntry, name));
    if (r.number(entry + 10, 2) != 0 || size != stored) damaged("\"" + key + "\" is compressed");
    if (r.number(at, 4) != 0x04034b50) damaged("the header of \"" + key + "\"");
    const uint64_t data = at + kLocal + r.number(at + 26, 2) + r.number(at + 28, 2);
    if (data % kAlignment) damaged("\"" + key + "\" is not aligned");
    const Member made{r.part(data, size), static_cast<uint32_t>(r.number(entry + 16, 4))};
    if (!members_.emplace(key, made).second) damaged("two members are called \"" + key + "\"");
    entry += kEntry + name + extra + comment;
  }
}

const Archive::Member& Archive::at(std::string_view name) const {
  const auto found = members_.find(name);
  if (found == members_.end()) damaged("there is no \"" + std::string(name) + "\"");
  return found->second;
}

std::string_view Archive::member(std::string_view name) const { return at(name).bytes; }

std::string_view Archive::checked_member(std::string_view name) const {
  const Member& m = at(name);
  if (crc32(m.bytes) != m.crc) damaged("\"" + std::string(name) + "\" has another checksum");
  return m.bytes;
}

}  // namespace framesmith
