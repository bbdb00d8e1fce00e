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
Matrices<float> into(const float* p, i64 row) { return {const_cast<float*>(p), 0, row, 1}; }

void product(i64 m, i64 n, i64 k, Matrices<const float> a, Matrices<const float> b, Matrices<float> c, bool add) {
  Matmul p{};
  p.batch = 1, p.m = m, p.n = n, p.k = k, p.a = a, p.b = b, p.c = c, p.add = add;
  matmul(p, 1);
}

const float* at(const Plane& p, i64 b, i64 h) { return p.at + b * p.batch + h * p.head; }

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
      : a_(a), f_(a.forward), b_(b), h_(h), s_(scratch), d_(s_ + kQueries * kKeys), deltas_(d_ + kQueries * kKeys),
        q_(at(f_.q, b, h)), k_(at(f_.k, b, h)), v_(at(f_.v, b, h)), tangent_(at(a.tangent, b, h)) {}
  static i64 room(const Attention& f) { return 2 * kQueries * kKeys + f.queries; }

  void run() {
    clear(a_.q, f_.queries, f_.width), clear(a_.k, f_.keys, f_.width), clear(a_.v, f_.keys, f_.value_width);
    for (i64 i = 0; i < f_.queries; i++)
      deltas_[i] = dot(tangent_ + i * a_.tangent.row, at(a_.result, b_, h_) + i * a_.result.row, f_.value_width);
    const Even keys(f_.keys, kKeys), queries(f_.queries, kQueries);
    for (i64 j = 0; j < keys.groups; j++)
      for (i64 i = 0; i < queries.groups; i++)
        if (!f_.causal || queries.begin(i + 1) > keys.begin(j))
          block(queries.begin(i), queries.size(i), keys.begin(j), keys.size(j));
  }

 private:
  void clear(const Plane& p, i64 rows, i64 width) const {
    float* to = const_cast<float*>(at(p, b_, h_));
    for (i64 i = 0; i < rows; i++) std::fill_n(to + i * p.row, width, 0.0f);
  }

  static float dot(const float* x, const float* y, i64 n) {
    vf sum{};
    i64 j = 0;
    for (; j + W <= n; j += W) sum += load(x + j, full) * load(y + j, full);
    if (j < n) sum += load(x + j, (int)(n - j)) * load(y + j, (int)(n - j));
    float total = 0;
    for (int l = 0; l < W; l++) total += sum[l];
    return total;
  }

  void block(i64 i0, i64 m, i64 j0, i64 n) {
    const float *q = q_ + i0 * f_.q.row, *k = k_ + j0 * f_.k.row, *v = v_ + j0 * f_.v.row,
                *g = tangent_ + i0 * a_.tangent.row;
    product(m, n, f_.width, rows_of(q, f_.q.row), turned(k, f_.k.row), into(s_, n), false);
    product(m, n, f_.value_width, rows_of(g, a_.tangent.row), turned(v, f_.v.row), into(d_, n), false);
    const i64 masked = b_ * f_.mask_batch + h_ * f_.mask_head + i0 * f_.mask_row + j0 * f_.mask_column;
    const float* mask = f_.add ? f_.add + masked : nullptr;
    const float* sums = f_.log_sums + b_ * f_.sums_batch + h_ * f_.sums_head + i0 * f_.sums_row;
    for (i64 i = 0; i < m; i++)
      weigh({s_ + i * n, d_ + i * n, f_.causal ? std::min(n, i0 + i + 1 - j0) : n, n,
             mask ? mask + i * f_.mask_row : nullptr, f_.mask_column, sums[i * f_.sums_row], deltas_[i0 + i],
             f_.scale});
    product(n, f_.value_width, m, turned(s_, n), rows_of(g, a_.tangent.row),
            into(at(a_.v, b_, h_) + j0 * a_.v.row, a_.v.row), true);
    product(n, f_.width, m, turned(d_, n), rows_of(q, f_.q.row), into(at(a_.k, b_, h_) + j0 * a_.k.row, a_.k.row),
            true);
    product(m, f_.width, n, rows_of(d_, n), rows_of(k, f_.k.row), into(at(a_.q, b_, h_) + i0 * a_.q.row, a_.q.row),
            true);
  }

  const AttentionGradient& a_;
  const Attention& f_;
  const i64 b_, h_;
  float *s_, *d_, *deltas_;
  const float *q_, *k_, *v_, *tangent_;
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
