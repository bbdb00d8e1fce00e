// Products of matrices over raw float32 memory, neither of them laid out ahead of time; see matmul.cpp.
#pragma once
#include <cstdint>

namespace framesmith {

// Element (i, j) of matrix `p` of a batch is at[p * batch + i * row + j * column]; strides are 0 where it is broadcast.
template <class T> struct Matrices {
  T* at;
  int64_t batch, row, column;
};

// c = a b + bias, or c += a b with `add`: (m, k) times (k, n). Rows or columns of `c` are contiguous; bias may be null.
struct Problem {
  int64_t m, n, k;
  Matrices<const float> a, b;
  Matrices<float> c;
  Matrices<const float> bias;
  bool add;

  Problem transposed() const {
    auto turn = [](auto x) { return decltype(x){x.at, x.batch, x.column, x.row}; };
    return {n, m, k, turn(b), turn(a), turn(c), turn(bias), add};
  }

  // Rows [i0, i1) and columns [j0, j1) of the result.
  Problem part(int64_t i0, int64_t i1, int64_t j0, int64_t j1) const {
    Problem p = *this;
    p.m = i1 - i0, p.n = j1 - j0;
    p.a.at += i0 * a.row, p.b.at += j0 * b.column, p.c.at += i0 * c.row + j0 * c.column;
    if (bias.at) p.bias.at += i0 * bias.row + j0 * bias.column;
    return p;
  }
};

void matmul(const Problem& p, int64_t batch, int threads);

}  // namespace framesmith
