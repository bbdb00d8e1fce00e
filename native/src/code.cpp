#include "code.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>

#include "error.h"

namespace framesmith {
namespace {

struct Feature {
  const char* name;
  bool (*there)();
};

#if defined(__x86_64__)
#define FS_FEATURE(name) Feature{name, [] { return __builtin_cpu_supports(name) != 0; }}
const Feature kFeatures[] = {FS_FEATURE("avx2"),     FS_FEATURE("fma"),      FS_FEATURE("bmi"),
                             FS_FEATURE("bmi2"),     FS_FEATURE("avx512f"),  FS_FEATURE("avx512bw"),
                             FS_FEATURE("avx512cd"), FS_FEATURE("avx512dq"), FS_FEATURE("avx512vl")};
#else
const Feature kFeatures[] = {{"asimd", [] { return true; }}};
#endif

[[noreturn]] void fail(const char* what) {
  throw Error(FRAMESMITH_SYSTEM, std::string(what) + ": " + std::strerror(errno));
}

}  // namespace

bool has_features(const std::vector<Json>& names) {
  for (const Json& name : names) {
    bool there = false;
    for (const Feature& f : kFeatures) there |= name.string() == f.name && f.there();
    if (!there) return false;
  }
  return true;
}

const char* machine_name() {
#if defined(__x86_64__)
  return "x86_64";
#elif defined(__aarch64__)
  return "aarch64";
#else
  return "unknown";
#endif
}

MemoryFile::MemoryFile(std::string_view bytes) : file_(memfd_create("framesmith", MFD_CLOEXEC)) {
  if (file_ < 0) fail("no file in memory");
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t n = write(file_, bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno != EINTR) fail("a file in memory cannot be written");
    done += n < 0 ? 0 : static_cast<size_t>(n);
  }
}

MemoryFile::~MemoryFile() {
  if (file_ >= 0) close(file_);
}

std::string MemoryFile::path() const {
  static std::atomic<unsigned> files{0};
  std::string path = "/proc/self/fd/";
  for (unsigned n = ++files; n; n >>= 1) path += n & 1 ? "./" : "/";
  return path + std::to_string(file_);
}

Code::Code(std::string_view library, bool with_sizes) {
  const MemoryFile file(library);
  library_ = dlopen(file.path().c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library_) throw Error(FRAMESMITH_SYSTEM, std::string("the code cannot be loaded: ") + dlerror());
  try {
    functions_.run = reinterpret_cast<decltype(functions_.run)>(find("fs_run"));
    functions_.call = reinterpret_cast<decltype(functions_.call)>(find("fs_call"));
    if (with_sizes) functions_.sizes = reinterpret_cast<decltype(functions_.sizes)>(find("fs_run_sizes"));
    reinterpret_cast<void (*)(const Team*)>(find("fs_bind"))(&team);
  } catch (...) {
    dlclose(library_);
    throw;
  }
}

Code::~Code() { dlclose(library_); }

void* Code::find(const char* name) const {
  void* found = dlsym(library_, name);
  if (!found) damaged(std::string("its code has no ") + name);
  return found;
}

}  // namespace framesmith
