#include "csrc/attention.h"

#include <cmath>

#include "package/code/operands.h"

namespace framesmith {
namespace {

template <class T> Planes<T> planes(const Operand& t) { return {t.as<T>(), t.stride[0], t.stride[1], t.stride[2]}; }

void fill_zero(const Operand& out, float* at, int d) {
  if (d == out.rank) *at = 0;
  else
    for (int64_t i = 0; i < out.size[d]; i++) fill_zero(out, at + i * out.stride[d], d + 1);
}

}  // namespace

int attention(const Operand& q_, const Operand& k_, const Operand& v_, const Operand& given, bool truth, bool causal,
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
  if (!a.heads || !a.batch || !a.queries || !a.keys) return 0;
  const Operand scores{given.at, 4, {a.batch, a.heads, a.queries, a.keys}, {}};
  if (!given.at) return attend(a, omp_get_max_threads()), 0;
  if (truth) {
    const Rows<bool> mask(given, given.size[given.rank - 1] == 1 ? 0 : 1);
    const Operand wide = expanded(mask.operand, scores);
    a.keep = planes<const bool>(wide), a.mask_column = wide.stride[3];
    return attend(a, omp_get_max_threads()), 0;
  }
  const Rows<float> mask(given, given.size[given.rank - 1] == 1 ? 0 : 1);
  const Operand wide = expanded(mask.operand, scores);
  a.add = planes<const float>(wide), a.mask_column = wide.stride[3];
  attend(a, omp_get_max_threads());
  return 0;
}

}  // namespace framesmith
