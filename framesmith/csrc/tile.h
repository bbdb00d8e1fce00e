// What the library kernels share: register tiles (contraction.h), the packing of their panels, cuts of work, memory.
#pragma once
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>
#include <type_traits>

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

// `f` of the number n, of [1, Most], as a constant.
template <int Most, class F> auto with_constant(int n, F f) {
  if constexpr (Most == 1) return f(std::integral_constant<int, 1>());
  else return n == Most ? f(std::integral_constant<int, Most>()) : with_constant<Most - 1>(n, f);
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

inline float dot(const float* x, const float* y, i64 n) {
  vf sum[2] = {};
  i64 i = 0;
  for (; i + 2 * W <= n; i += 2 * W)
    for (int v = 0; v < 2; v++) sum[v] += load(x + i + v * W, full) * load(y + i + v * W, full);
  for (; i < n; i += W) {
    const int live = (int)std::min(n - i, i64(W));
    sum[0] += load(x + i, live) * load(y + i, live);
  }
  return fs::fold_sum(sum[0] + sum[1]);
}

// ------------------------------------------------------------------------------------------------------------- packing

constexpr i64 kAhead = 8;  // rows fetched before their turn

// `depth` rows of B, n columns -> panels of NV vectors; the last has whole vectors, filled up with 0.
template <int NV> void pack_straight(const float* b, i64 row, i64 depth, i64 n, float* out) {
  constexpr i64 panel = NV * W;
  const i64 whole = n / panel * panel, rest = n - whole, wide = round_up(rest, W);
  for (i64 k = 0; k < depth; k++, b += row) {
    float* to = out + k * panel;
    for (i64 j = 0; j < whole; j += panel, to += depth * panel) {
#pragma GCC unroll 4
      for (int v = 0; v < NV; v++) {
        __builtin_prefetch(b + kAhead * row + j + v * W);
        store(to + v * W, load(b + j + v * W, full), full);
      }
    }
    to += k * (wide - panel);
    for (i64 j = 0; j < rest; j += W)
      store(to + j, rest - j >= W ? load(b + whole + j, full) : load(b + whole + j, (int)(rest - j)), full);
  }
}

// The same of columns that are contiguous. `put(at, x)`: takes the vector x, which stands at `at` of the result.
template <int NV, class Put> void turn_panels(const float* b, i64 column, i64 depth, i64 n, Put&& put) {
  for (i64 j = 0; j < n; j += W) {
    constexpr i64 most = NV * W;
    const i64 panel = j / most * most, wide = std::min(most, round_up(n - panel, W)), live = std::min(n - j, i64(W));
    const i64 to = panel * depth + (j - panel);
    const float* from = b + j * column;
    for (i64 k = 0; k < depth; k += W) {
      const int count = (int)std::min(depth - k, i64(W));
      vf r[W];
      if (count == W && live == W) {
#pragma GCC unroll 16
        for (int l = 0; l < W; l++) r[l] = load(from + l * column + k, full);
      } else {
        for (int l = 0; l < W; l++) r[l] = l < live ? load(from + l * column + k, count) : vf{};
      }
      fs::transpose(r);
      for (int l = 0; l < count; l++) put(to + (k + l) * wide, r[l]);
    }
  }
}
template <int NV> void pack_turned(const float* b, i64 column, i64 depth, i64 n, float* out) {
  turn_panels<NV>(b, column, depth, n, [out](i64 at, vf x) { store(out + at, x, full); });
}

// -------------------------------------------------------------------------------------------------------------- memory

struct Free {
  void operator()(float* p) const { std::free(p); }
};
using Memory = std::unique_ptr<float, Free>;
inline Memory memory(i64 floats) {
  Memory made(static_cast<float*>(std::aligned_alloc(64, round_up(floats * 4, 64))));
  return made || !floats ? std::move(made) : throw std::bad_alloc();
}

// Memory of a thread: it grows to the most that was asked for, and stays.
class Scratch {
 public:
  float* get(i64 floats) {
    if (floats > size_) {
      memory_.reset();
      memory_ = memory(floats);
      size_ = floats;
    }
    return memory_.get();
  }

 private:
  Memory memory_;
  i64 size_ = 0;
};
}  // namespace framesmith
