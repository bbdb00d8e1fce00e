#include <type_traits>

#include "package/code/operands.h"

namespace framesmith {
namespace {

// Calls `row` with the places of the first elements of all rows along dimension `along`.
template <class T, class Row>
void each_row(const Operand& x, const Operand& out, int along, const T* from, T* to, int d, const Row& row) {
  if (d == x.rank) return row(from, to);
  const int64_t count = d == along ? 1 : x.size[d];
  for (int64_t i = 0; i < count; i++)
    each_row(x, out, along, from + i * x.stride[d], to + i * out.stride[d], d + 1, row);
}

}  // namespace

template <class T, template <class> class Combine> int scan(const Operand& x, int64_t along, const Operand& out) {
  using Wide = std::conditional_t<std::is_floating_point_v<T>, double, T>;  // what eager's kernel accumulates in
  const int64_t length = x.size[along], step = x.stride[along], out_step = out.stride[along];
  each_row(x, out, static_cast<int>(along), x.as<const T>(), out.as<T>(), 0, [&](const T* from, T* to) {
    Wide total = std::is_same_v<Combine<Wide>, std::multiplies<Wide>>;
    for (int64_t i = 0; i < length; i++) {
      total = Combine<Wide>()(total, from[i * step]);
      to[i * out_step] = static_cast<T>(total);
    }
  });
  return 0;
}

template int scan<float, std::plus>(const Operand&, int64_t, const Operand&);
template int scan<int64_t, std::plus>(const Operand&, int64_t, const Operand&);
template int scan<float, std::multiplies>(const Operand&, int64_t, const Operand&);
template int scan<int64_t, std::multiplies>(const Operand&, int64_t, const Operand&);

}  // namespace framesmith
