#include "csrc/quantized.h"
#include "package/code/operands.h"

namespace framesmith {

int quantized_linear(const Operand& x, const Operand& packed, const Operand& scale, const Operand& zero, int bits,
                     int64_t group, const Operand& out) {
  const Rows<float> rows(x, x.rank);
  const int64_t k = x.size[x.rank - 1], n = out.size[out.rank - 1];
  if (!elements(out)) return 0;
  multiply_quantized({elements(x) / k, rows.operand.as<const float>(), k, {packed.as<const int32_t>(), k, n, bits},
                      scale.as<const float>(), zero.as<const float>(), group, out.as<float>()}, omp_get_max_threads());
  return 0;
}

template <class T> int integer_matmul(const Operand& a, const Operand& packed, const Operand& out) {
  const Rows<T> rows(a, 2);
  multiply_integers(a.size[0], rows.operand.template as<const T>(), a.size[1],
                    {packed.as<const int32_t>(), a.size[1], out.size[1], 8}, out.as<int32_t>(), omp_get_max_threads());
  return 0;
}
template int integer_matmul<uint8_t>(const Operand&, const Operand&, const Operand&);
template int integer_matmul<int8_t>(const Operand&, const Operand&, const Operand&);

}  // namespace framesmith
