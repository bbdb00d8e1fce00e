// Products with a matrix of integers of 8 or 4 bits that is packed ahead of time; see quantized.cpp.
#pragma once
#include <cstdint>

namespace framesmith {

// (k, n) integers in panels of 16 columns (lower/contractions/quantized.py packs them). A panel has 16 words for each
// `32 / bits` rows, one a column, the first row in its lowest bits. What is missing of the last ones is 0.
struct PackedIntegers {
  const int32_t* at;
  int64_t k, n;
  int bits;
};
inline constexpr int64_t kPanelColumns = 16;

// c = a w, where w[k][j] = scale[g][j] (b[k][j] - zero[g][j]), and g = k / group. `scale` (1 if null) and `zero` (0 if
// null) have a row for each group, filled up to whole panels.
struct QuantizedProduct {
  int64_t m;
  const float* a;
  int64_t a_row;
  PackedIntegers b;
  const float *scale, *zero;
  int64_t group;
  float* c;  // row-major
};
void multiply_quantized(const QuantizedProduct& p, int threads);

// c = a b, exactly, modulo 2^32; of 8-bit integers. `T`: uint8_t or int8_t. `c` is row-major.
template <class T>
void multiply_integers(int64_t m, const T* a, int64_t a_row, const PackedIntegers& b, int32_t* c, int threads);

}  // namespace framesmith
