// Scaled dot-product attention over raw float32 memory; see attention.cpp.
#pragma once
#include <cstdint>

namespace framesmith {

// A tensor of (batch, head, row, column): strides of the first three in elements; columns are contiguous.
struct Plane {
  const float* at;
  int64_t batch, head, row;
};

struct Attention {
  // `shared`: query heads that share one key/value head
  int64_t batch, heads, shared, queries, keys, width, value_width;
  float scale;
  bool causal;
  Plane q, k, v;
  float* out;
  int64_t out_batch, out_head, out_row;
  // At most one mask; a stride is 0 where it is broadcast, and mask_column is 0 or 1.
  const float* add;
  const bool* keep;
  int64_t mask_batch, mask_head, mask_row, mask_column;
  // log(sum(exp(scores))) of each row, 0 for one without any key; may be null.
  float* log_sums;
  int64_t sums_batch, sums_head, sums_row;
};

// out = softmax(scale * q k^T + mask) v; rows without any key are 0.
void attend(const Attention& a, int threads);

// Gradients of attention without shared heads, of which `forward` has `q`, `k`, `v`, mask and log_sums.
struct AttentionGradient {
  Attention forward;
  Plane result, tangent;
  Plane q, k, v;  // written
};

void attend_backward(const AttentionGradient& a, int threads);

}  // namespace framesmith
