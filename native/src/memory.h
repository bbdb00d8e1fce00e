// Memory at multiples of 64 bytes.
#pragma once
#include <cstddef>
#include <map>
#include <memory>
#include <vector>

namespace framesmith {

struct Free {
  void operator()(char* p) const;
};
using Memory = std::unique_ptr<char, Free>;
Memory memory(size_t bytes);  // throws `std::bad_alloc`

// Free lists by size: a released block serves later requests of about its size.
class Blocks {
 public:
  char* take(size_t bytes);
  void give(char* block);

 private:
  std::multimap<size_t, char*> idle_;
  std::map<char*, size_t> sizes_;
  std::vector<Memory> owned_;
};

}  // namespace framesmith
