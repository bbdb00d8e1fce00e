// The register tile that the library kernels share: MR rows of A against NV vectors of columns of B, sums in registers.
#pragma once
#include <cstdlib>
#include <memory>

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

// exp of what is at most 0 (or NaN), flushed to 0 below -87.
FN vf decay(vf x) {
  vf n;
  const vf r = fs::reduce_exp(fs::max_(fs::splat(-87.5f), x), n);
  const vf p = (fs::exp_tail(r) * r) * r + r + 1.0f;
  return where(fs::vm{x < -87.5f}, vf{}, fs::pow2_times(p, n));
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

// Memory of a thread: it grows to the most that was asked for, and stays.
class Scratch {
 public:
  float* get(i64 floats) {
    if (floats > size_) {
      memory_.reset();
      memory_.reset(static_cast<float*>(std::aligned_alloc(64, round_up(floats * 4, 64))));
      size_ = floats;
    }
    return memory_.get();
  }

 private:
  struct Free {
    void operator()(float* p) const { std::free(p); }
  };
  std::unique_ptr<float, Free> memory_;
  i64 size_ = 0;
};
}  // namespace framesmith
