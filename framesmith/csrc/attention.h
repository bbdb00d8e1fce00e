// Scaled dot-product attention over raw float32 memory; see attention.cpp.
#pragma once
#include <cstdint>

namespace framesmith {

// A tensor of (batch, head, row, column): strides of the first three in elements; columns are contiguous.
template <class T> struct Planes {
  T* at;  // or null: there is none
  int64_t batch, head, row;
  T* operator()(int64_t b, int64_t h, int64_t i = 0) const { return at + b * batch + h * head + i * row; }
};

struct Attention {
  // `shared`: query heads that share one key/value head
  int64_t batch, heads, shared, queries, keys, width, value_width;
  float scale;
  bool causal;
  Planes<const float> q, k, v;
  Planes<float> out;
  // At most one mask; a stride is 0 where it is broadcast, and mask_column is 0 or 1.
  Planes<const float> add;
  Planes<const bool> keep;
  int64_t mask_column;
  Planes<float> log_sums;  // log(sum(exp(scores))) of each row, 0 for one without any key; or none
};

// out = softmax(scale * q k^T + mask) v; rows without any key are 0.
void attend(const Attention& a, int threads);

// Gradients of attention without shared heads, of which `forward` has `q`, `k`, `v`, mask and log_sums.
struct AttentionGradient {
  Attention forward;
  Planes<const float> result, tangent;
  Planes<float> q, k, v;
};

void attend_backward(const AttentionGradient& a, int threads);

}  // namespace framesmith
