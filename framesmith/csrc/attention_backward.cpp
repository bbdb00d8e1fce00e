// The gradient of attention: the weights are computed again from the rows' sums, a block of queries against a block of
// keys at a time (Dao et al., "FlashAttention", 2022, algorithm 4), every product by the kernel of matmul.cpp.
#include <algorithm>

#include "attention.h"
#include "matmul.h"
#include "tile.h"

namespace framesmith {
namespace {

constexpr i64 kQueries = 112, kKeys = 256;  // of a block: its weights and their gradients stay in L2

Matrices<const float> rows_of(const float* p, i64 row) { return {p, 0, row, 1}; }
Matrices<const float> turned(const float* p, i64 row) { return {p, 0, 1, row}; }
Matrices<float> into(float* p, i64 row) { return {p, 0, row, 1}; }

void product(i64 m, i64 n, i64 k, Matrices<const float> a, Matrices<const float> b, Matrices<float> c, bool add) {
  matmul({m, n, k, a, b, c, {}, add}, 1, 1);
}

// A row of a block: scores in `s` become weights, what the values give in `d` becomes the gradient of the scores.
struct Row {
  float *s, *d;
  i64 live, width;   // keys that the query sees, of the block's
  const float* add;  // or null
  i64 step;
  float log_sum, delta, scale;
};

template <class M> FN void weigh(const Row& r, i64 j, M live) {
  vf x = load(r.s + j, live) * r.scale;
  if (r.add) x += r.step ? load(r.add + j, live) : fs::splat(*r.add);
  const vf w = decay(x - r.log_sum);
  store(r.s + j, w, live);
  store(r.d + j, w * (load(r.d + j, live) - r.delta) * r.scale, live);
}

void weigh(const Row& r) {
  i64 j = 0;
  for (; j + W <= r.live; j += W) weigh(r, j, full);
  if (j < r.live) weigh(r, j, (int)(r.live - j));
  for (j = std::max(r.live, i64(0)); j < r.width; j++) r.s[j] = r.d[j] = 0;
}

// One head.
class Head {
 public:
  Head(const AttentionGradient& a, i64 b, i64 h, float* scratch)
      : a_(a), f_(a.forward), b_(b), h_(h), s_(scratch), d_(s_ + kQueries * kKeys), deltas_(d_ + kQueries * kKeys) {}
  static i64 room(const Attention& f) { return 2 * kQueries * kKeys + f.queries; }

  void run() {
    clear(a_.q, f_.queries, f_.width), clear(a_.k, f_.keys, f_.width), clear(a_.v, f_.keys, f_.value_width);
    for (i64 i = 0; i < f_.queries; i++)
      deltas_[i] = dot(a_.tangent(b_, h_, i), a_.result(b_, h_, i), f_.value_width);
    const Even keys(f_.keys, kKeys), queries(f_.queries, kQueries);
    for (i64 j = 0; j < keys.groups; j++)
      for (i64 i = 0; i < queries.groups; i++)
        if (!f_.causal || queries.begin(i + 1) > keys.begin(j))
          block(queries.begin(i), queries.size(i), keys.begin(j), keys.size(j));
  }

 private:
  void clear(const Planes<float>& p, i64 rows, i64 width) const {
    for (i64 i = 0; i < rows; i++) std::fill_n(p(b_, h_, i), width, 0.0f);
  }

  void block(i64 i0, i64 m, i64 j0, i64 n) {
    const auto q = rows_of(f_.q(b_, h_, i0), f_.q.row), k = rows_of(f_.k(b_, h_, j0), f_.k.row),
               g = rows_of(a_.tangent(b_, h_, i0), a_.tangent.row);
    product(m, n, f_.width, q, turned(k.at, k.row), into(s_, n), false);
    product(m, n, f_.value_width, g, turned(f_.v(b_, h_, j0), f_.v.row), into(d_, n), false);
    for (i64 i = 0; i < m; i++)
      weigh({s_ + i * n, d_ + i * n, f_.causal ? std::min(n, i0 + i + 1 - j0) : n, n,
             f_.add.at ? f_.add(b_, h_, i0 + i) + j0 * f_.mask_column : nullptr, f_.mask_column,
             *f_.log_sums(b_, h_, i0 + i), deltas_[i0 + i], f_.scale});
    product(n, f_.value_width, m, turned(s_, n), g, into(a_.v(b_, h_, j0), a_.v.row), true);
    product(n, f_.width, m, turned(d_, n), q, into(a_.k(b_, h_, j0), a_.k.row), true);
    product(m, f_.width, n, rows_of(d_, n), k, into(a_.q(b_, h_, i0), a_.q.row), true);
  }

  const AttentionGradient& a_;
  const Attention& f_;
  const i64 b_, h_;
  float *s_, *d_, *deltas_;
};

}  // namespace

void attend_backward(const AttentionGradient& a, int threads) {
  const i64 heads = a.forward.batch * a.forward.heads;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
  for (i64 n = 0; n < heads; n++) {
    static thread_local Scratch scratch;
    Head(a, n / a.forward.heads, n % a.forward.heads, scratch.get(Head::room(a.forward))).run();
  }
}

}  // namespace framesmith
