// Products of matrices over raw float32 memory, neither of them laid out ahead of time; see matmul.cpp.
#pragma once
#include <cstdint>

namespace framesmith {

// Element (i, j) of matrix `p` of a batch is at[p * batch + i * row + j * column]; strides are 0 where it is broadcast.
template <class T> struct Matrices {
  T* at;
  int64_t batch, row, column;
};

// c = a b + bias: batch of (m, k) times (k, n). The rows or the columns of `c` are contiguous; bias.at may be null.
// With `add`, c += a b.
struct Matmul {
  int64_t batch, m, n, k;
  Matrices<const float> a, b;
  Matrices<float> c;
  Matrices<const float> bias;
  bool add;
};

void matmul(const Matmul& p, int threads);

}  // namespace framesmith
