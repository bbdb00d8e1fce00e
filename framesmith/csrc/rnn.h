// LSTM and GRU layers over raw float32 memory; see rnn.cpp.
#pragma once
#include <cstdint>

namespace framesmith {

// Strides in elements; the innermost dimension of x, out and the states is contiguous, the states are (layers *
// directions, batch, hidden).
struct Recurrence {
  int64_t gates;  // 4: LSTM (input, forget, cell, output), 3: GRU (reset, update, new)
  int64_t steps, batch, input, hidden, layers, directions;
  const float* x;
  int64_t x_step, x_batch;
  const float *h0, *c0;        // null: zeros
  const float* const* packed;  // layers * directions weights, see pack_recurrence
  float* out;
  int64_t out_step, out_batch;
  float *hn, *cn;  // cn is null for a GRU
};

// Elements of the packed weights of one layer and direction, of `input` columns.
int64_t packed_recurrence_size(int64_t gates, int64_t input, int64_t hidden);
// w_x (gates * hidden, input), w_h (gates * hidden, hidden), both contiguous; the biases (gates * hidden) may be null.
void pack_recurrence(float* out, int64_t gates, int64_t input, int64_t hidden, const float* w_x, const float* w_h,
                     const float* b_x, const float* b_h);
void recur(const Recurrence& r, int threads);

}  // namespace framesmith
