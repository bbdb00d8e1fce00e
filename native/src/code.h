// The code of a package for one target: a shared library of this process.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "json.h"
#include "threads.h"

namespace framesmith {

// The interface of the host that generated code gets; framesmith/codegen/host_function.py declares the same.
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

// Returns whether this processor supports all of the features; unknown ones count as unsupported.
bool has_features(const std::vector<Json>& names);
const char* machine_name();  // "x86_64", "aarch64"

// An anonymous file that the dynamic linker loads.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view bytes);
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  // Distinct in the process: the linker identifies libraries by path, and one that was closed stays loaded while a
  // thread has thread-local data of it.
  std::string path() const;

 private:
  int file_;
};

// The functions that a code library exports.
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
