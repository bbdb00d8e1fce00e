#include "package/code/calls.h"

#include <cmath>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

namespace framesmith {
namespace {

int64_t elements(const Operand& t) {
  int64_t n = 1;
  for (int d = 0; d < t.rank; d++) n *= t.size[d];
  return n;
}

// An operand whose last dimensions, `dense` of them, are row-major: a copy where they are not. `Item`: of its elements.
template <class Item> class Rows {
 public:
  Rows(const Operand& t, int dense) : operand(t) {
    int64_t step = 1;
    bool is = true;
    for (int d = t.rank - 1; d >= t.rank - dense; d--) is = is && (t.size[d] == 1 || t.stride[d] == step), step *= t.size[d];
    if (is) return;
    memory_.reset(new Item[static_cast<size_t>(elements(t))]);
    operand.at = memory_.get();
    step = 1;
    for (int d = t.rank - 1; d >= 0; d--) operand.stride[d] = step, step *= t.size[d];
    copy(t.as<Item>(), memory_.get(), t, 0);
  }
  Operand operand;

 private:
  void copy(const Item* from, Item* to, const Operand& t, int d) {
    if (d == t.rank) {
      *to = *from;
      return;
    }
    for (int64_t i = 0; i < t.size[d]; i++) copy(from + i * t.stride[d], to + i * operand.stride[d], t, d + 1);
  }
  std::unique_ptr<Item[]> memory_;
};

// Strides of `t` as if it had the sizes of `like`, to which it broadcasts.
Operand expanded(const Operand& t, const Operand& like) {
  Operand out = like;
  out.at = t.at;
  for (int d = 0; d < like.rank; d++) {
    const int own = d - (like.rank - t.rank);
    out.stride[d] = own < 0 || t.size[own] == 1 ? 0 : t.stride[own];
  }
  return out;
}

template <class T> Planes<T> planes(const Operand& t) {
  return {t.as<T>(), t.stride[0], t.stride[1], t.stride[2]};
}
template <class T> Matrices<T> matrices(const Operand& t) {
  const int d = t.rank;
  return {t.as<T>(), d == 3 ? t.stride[0] : 0, t.stride[d - 2], t.stride[d - 1]};
}

void fill_zero(const Operand& out, float* at, int d) {
  if (d == out.rank) *at = 0;
  else
    for (int64_t i = 0; i < out.size[d]; i++) fill_zero(out, at + i * out.stride[d], d + 1);
}

}  // namespace

void attention(const Operand& q_, const Operand& k_, const Operand& v_, const Operand& given, bool truth, bool causal,
               double scale, const Operand& out) {
  const Rows<float> q(q_, 1), k(k_, 1), v(v_, 1);
  Attention a{};
  a.batch = q_.size[0], a.heads = q_.size[1], a.queries = q_.size[2], a.keys = k_.size[2];
  a.shared = k_.size[1] ? a.heads / k_.size[1] : 1;
  a.width = q_.size[3], a.value_width = v_.size[3];
  a.scale = static_cast<float>(std::isnan(scale) ? 1.0 / std::sqrt(static_cast<double>(a.width)) : scale);
  a.causal = causal;
  a.q = planes<const float>(q.operand), a.k = planes<const float>(k.operand), a.v = planes<const float>(v.operand);
  a.out = planes<float>(out);
  if (!a.keys) fill_zero(out, out.as<float>(), 0);
  if (!a.heads || !a.batch || !a.queries || !a.keys) return;
  const Operand scores{given.at, 4, {a.batch, a.heads, a.queries, a.keys}, {}};
  if (!given.at) return attend(a, omp_get_max_threads());
  if (truth) {
    const Rows<bool> mask(given, given.size[given.rank - 1] == 1 ? 0 : 1);
    const Operand wide = expanded(mask.operand, scores);
    a.keep = planes<const bool>(wide), a.mask_column = wide.stride[3];
    return attend(a, omp_get_max_threads());
  }
  const Rows<float> mask(given, given.size[given.rank - 1] == 1 ? 0 : 1);
  const Operand wide = expanded(mask.operand, scores);
  a.add = planes<const float>(wide), a.mask_column = wide.stride[3];
  attend(a, omp_get_max_threads());
}

void product(const Operand& a, const Operand& b, const Operand& bias, const Operand& out) {
  const int d = a.rank;
  Problem p{a.size[d - 2], b.size[d - 1], a.size[d - 1], matrices<const float>(a), matrices<const float>(b),
            matrices<float>(out), {}, false};
  if (bias.at) p.bias = matrices<const float>(expanded(bias, out));
  if (!p.m || !p.n || (d == 3 && !a.size[0])) return;
  matmul(p, d == 3 ? a.size[0] : 1, omp_get_max_threads());
}

void recurrence(int64_t gates, const Operand& x_, const Operand* states, int64_t state_count, const Operand* packed,
                int64_t packed_count, int64_t hidden, bool bidirectional, bool batch_first, const Operand& out,
                const Operand& hn, const Operand& cn) {
  const Operand none{};
  const Rows<float> x(x_, 1), h0(state_count > 0 ? states[0] : none, state_count > 0 ? 3 : 0),
      c0(state_count > 1 ? states[1] : none, state_count > 1 ? 3 : 0);
  const int time = batch_first ? 1 : 0, batch = 1 - time;
  std::vector<const float*> weights;
  for (int64_t i = 0; i < packed_count; i++) weights.push_back(packed[i].as<const float>());
  Recurrence r{};
  r.gates = gates, r.steps = x_.size[time], r.batch = x_.size[batch], r.input = x_.size[2], r.hidden = hidden;
  r.directions = bidirectional ? 2 : 1, r.layers = packed_count / r.directions;
  r.x = x.operand.as<const float>(), r.x_step = x.operand.stride[time], r.x_batch = x.operand.stride[batch];
  r.h0 = h0.operand.as<const float>(), r.c0 = c0.operand.as<const float>();
  r.packed = weights.data();
  r.out = out.as<float>(), r.out_step = out.stride[time], r.out_batch = out.stride[batch];
  r.hn = hn.as<float>(), r.cn = cn.as<float>();
  recur(r, omp_get_max_threads());
}

}  // namespace framesmith
