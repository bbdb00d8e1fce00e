// The register tile that the library kernels share: MR rows of A against NV vectors of columns of B, accumulators in registers.
#pragma once
#include "../codegen/cpp/contraction.h"

namespace framesmith {
using fs::full;
using fs::i64;
using fs::load;
using fs::store;
using fs::vf;
using fs::W;

// Vectors a row of a wide tile, and rows that then fit: accumulators + one row of B + one broadcast.
constexpr int kWide = W == 16 ? 4 : 2;
constexpr int kRows = W == 16 ? 7 : 6;

template <int MR, int NV>
FN void multiply(vf (&acc)[MR][NV], const float* a, i64 lda, const float* b, i64 depth) {
  for (i64 k = 0; k < depth; k++, b += NV * W) {
    vf row[NV];
#pragma GCC unroll 8
    for (int j = 0; j < NV; j++) row[j] = fs::hold(load(b + j * W, full));
#pragma GCC unroll 32
    for (int i = 0; i < MR; i++) {
      const vf x = fs::spread(a[i * lda + k]);
#pragma GCC unroll 8
      for (int j = 0; j < NV; j++) acc[i][j] += x * row[j];
    }
  }
}

// `n` things in the fewest groups of at most `most`, as equal as can be: group g begins at `begin(g)`.
struct Even {
  i64 n, groups;
  Even(i64 n, i64 most) : n(n), groups((n + most - 1) / most) {}
  i64 begin(i64 g) const { return n * g / groups; }
  int size(i64 g) const { return (int)(begin(g + 1) - begin(g)); }
};

// Part `part` of `parts` of [0, n).
inline i64 share(i64 n, i64 part, i64 parts) { return n * part / parts; }
inline i64 round_up(i64 n, i64 unit) { return (n + unit - 1) / unit * unit; }
}  // namespace framesmith
