// Ways to see an operand: with rows in one piece, or broadcast.
#pragma once
#include <memory>

#include "package/code/calls.h"

namespace framesmith {

inline int64_t elements(const Operand& t) {
  int64_t n = 1;
  for (int d = 0; d < t.rank; d++) n *= t.size[d];
  return n;
}

// An operand whose last dimensions, `dense` of them, are row-major: a copy where they are not. `Item`: of its elements.
template <class Item> class Rows {
 public:
  Rows(const Operand& t, int dense) : operand(t) {
    int64_t step = 1;
    bool is = true;
    for (int d = t.rank - 1; d >= t.rank - dense; d--) {
      is = is && (t.size[d] == 1 || t.stride[d] == step);
      step *= t.size[d];
    }
    if (is) return;
    memory_.reset(new Item[static_cast<size_t>(elements(t))]);
    operand.at = memory_.get();
    step = 1;
    for (int d = t.rank - 1; d >= 0; d--) operand.stride[d] = step, step *= t.size[d];
    copy(t.as<Item>(), memory_.get(), t, 0);
  }
  Operand operand;

 private:
  void copy(const Item* from, Item* to, const Operand& t, int d) {
    if (d == t.rank) {
      *to = *from;
      return;
    }
    for (int64_t i = 0; i < t.size[d]; i++) copy(from + i * t.stride[d], to + i * operand.stride[d], t, d + 1);
  }
  std::unique_ptr<Item[]> memory_;
};

// Strides of `t` as if it had the sizes of `like`, to which it broadcasts.
inline Operand expanded(const Operand& t, const Operand& like) {
  Operand out = like;
  out.at = t.at;
  for (int d = 0; d < like.rank; d++) {
    const int own = d - (like.rank - t.rank);
    out.stride[d] = own < 0 || t.size[own] == 1 ? 0 : t.stride[own];
  }
  return out;
}

}  // namespace framesmith
