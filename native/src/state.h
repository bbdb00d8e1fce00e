// The state of one instance: buffers that persist from one run to the next.
#pragma once
#include <string_view>
#include <vector>

#include "archive.h"
#include "memory.h"
#include "plan.h"

namespace framesmith {

class State {
 public:
  State(const Plan& plan, const Archive& archive);

  void reset();  // to what the package has
  char* at(size_t number) const { return parts_[number].memory.get(); }
  size_t bytes(size_t number) const { return parts_[number].bytes; }
  bool empty() const { return parts_.empty(); }

 private:
  struct Part {
    Memory memory;
    size_t bytes;
    std::string_view initial;  // of no bytes: zeros
  };
  std::vector<Part> parts_;
};

}  // namespace framesmith
