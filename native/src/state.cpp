#include "state.h"

#include <cstring>

#include "error.h"

namespace framesmith {

State::State(const Plan& plan, const Archive& archive) {
  for (const Kept& kept : plan.state) {
    const std::string_view initial = kept.initial.empty() ? std::string_view() : archive.member(kept.initial);
    if (!kept.initial.empty() && initial.size() != kept.bytes) damaged("the size of its state");
    parts_.push_back({memory(kept.bytes), kept.bytes, initial});
  }
  reset();
}

void State::reset() {
  for (const Part& part : parts_) {
    if (!part.initial.empty()) std::memcpy(part.memory.get(), part.initial.data(), part.bytes);
    else std::memset(part.memory.get(), 0, part.bytes);
  }
}

}  // namespace framesmith
