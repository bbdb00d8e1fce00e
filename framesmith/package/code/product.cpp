#include "csrc/matmul.h"
#include "package/code/operands.h"

namespace framesmith {
namespace {

template <class T> Matrices<T> matrices(const Operand& t) {
  const int d = t.rank;
  return {t.as<T>(), d == 3 ? t.stride[0] : 0, t.stride[d - 2], t.stride[d - 1]};
}

}  // namespace

int product(const Operand& a, const Operand& b, const Operand& bias, const Operand& out) {
  const int d = a.rank;
  Problem p{a.size[d - 2], b.size[d - 1], a.size[d - 1], matrices<const float>(a), matrices<const float>(b),
            matrices<float>(out), {}, false};
  if (bias.at) p.bias = matrices<const float>(expanded(bias, out));
  if (!p.m || !p.n || (d == 3 && !a.size[0])) return 0;
  matmul(p, d == 3 ? a.size[0] : 1, omp_get_max_threads());
  return 0;
}

}  // namespace framesmith
