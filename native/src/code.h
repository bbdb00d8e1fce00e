// The code of a package for one target: a shared library of this process.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "json.h"
#include "threads.h"

namespace framesmith {

// What generated code sees of its host; framesmith/codegen/host_function.py declares it alike.
struct Host {
  void* frame;
  int (*call)(void* frame, int index);
  int (*allocate)(void* frame, int value);
  void (*release)(void* frame, int value);
  int (*launch)(void*, int, unsigned, unsigned, unsigned, void**);
  void* (*upload)(void*, int, const void*, int64_t);
  int (*scratch)(void*, char**);
  void (*mark)(void*, int);
};

// Whether this processor has every feature of the list; one that is not known is not there.
bool has_features(const std::vector<Json>& names);
const char* machine_name();  // "x86_64", "aarch64"

// A file without a name, from which the dynamic linker loads.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view bytes);
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  // Another one for each file of the process: the linker knows libraries by their paths, and one that was closed stays
  // loaded as long as a thread has data of it.
  std::string path() const;

 private:
  int file_;
};

// What a library of code exports.
struct Functions {
  int (*run)(char* arena, void** pointers, const int64_t* table, const Host* host) = nullptr;
  void (*sizes)(int64_t* table) = nullptr;
  int (*call)(int index, void** pointers, const int64_t* table) = nullptr;
};

class Code {
 public:
  Code(std::string_view library, bool sizes);
  ~Code();
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;

  const Functions& functions() const { return functions_; }

 private:
  void* find(const char* name) const;
  void* library_ = nullptr;
  Functions functions_;
};

}  // namespace framesmith
