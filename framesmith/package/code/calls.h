// Operators of a package's graph that are kernels of csrc/, over raw memory. What calls them is printed by calls.py;
// they return 0, or 2 for an index out of range.
#pragma once
#include <cstdint>
#include <functional>
#include <initializer_list>

extern "C" int omp_get_max_threads();

namespace framesmith {

constexpr int kMostDims = 8;

// A tensor argument. `at` is null where there is none.
struct Operand {
  void* at;
  int rank;
  int64_t size[kMostDims], stride[kMostDims];
  template <class T> T* as() const { return static_cast<T*>(at); }
};
using Operands = std::initializer_list<Operand>;

// `truth`: the mask holds truth values. `scale` NaN: by the width.
int attention(const Operand& q, const Operand& k, const Operand& v, const Operand& mask, bool truth, bool causal,
              double scale, const Operand& out);
// a b, plus `bias`, which broadcasts.
int product(const Operand& a, const Operand& b, const Operand& bias, const Operand& out);
// Products with packed integers, as csrc/quantized.h has them.
int quantized_linear(const Operand& x, const Operand& packed, const Operand& scale, const Operand& zero, int bits,
                     int64_t group, const Operand& out);
template <class T> int integer_matmul(const Operand& a, const Operand& packed, const Operand& out);
// `states`, `packed`: as csrc/library.cpp has them. `cn` of a GRU is none.
int recurrence(int64_t gates, const Operand& x, Operands states, Operands packed, int64_t hidden, bool bidirectional,
               bool batch_first, const Operand& out, const Operand& hn, const Operand& cn);
// `padding`: the row left out of each bag (-1: none).
template <class Index>
int embedding_bags(Operands tables, Operands indices, Operands offsets, bool mean, bool include_last, int64_t padding,
                   const Operand& out);
// An image resized between its elements. `corners`: those at the border stay there. Factors of 0: by the sizes.
int bilinear(const Operand& x, bool corners, double rows_factor, double columns_factor, const Operand& out);
// Each element combined with all before it along a dimension. `Combine`: std::plus or std::multiplies.
template <class T, template <class> class Combine> int scan(const Operand& x, int64_t along, const Operand& out);

}  // namespace framesmith
