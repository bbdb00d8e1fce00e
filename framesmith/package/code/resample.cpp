#include <algorithm>
#include <cmath>
#include <vector>

#include "package/code/operands.h"

namespace framesmith {
namespace {

// The two elements between which one of a result lies, and their weights.
struct Between {
  int64_t first, second;
  float of_first, of_second;
};

std::vector<Between> places(int64_t from, int64_t to, bool corners, double factor) {
  const float step = corners ? (to > 1 ? static_cast<float>(from - 1) / static_cast<float>(to - 1) : 0.0f)
                     : factor > 0 ? static_cast<float>(1.0 / factor)
                                  : static_cast<float>(from) / static_cast<float>(to);
  std::vector<Between> out;
  for (int64_t i = 0; i < to; i++) {
    const auto at = static_cast<float>(i);
    const float real = corners ? step * at : std::max(step * (at + 0.5f) - 0.5f, 0.0f);
    const int64_t first = std::min(static_cast<int64_t>(real), from - 1);
    const float second = std::min(std::max(real - static_cast<float>(first), 0.0f), 1.0f);
    out.push_back({first, std::min(first + 1, from - 1), 1.0f - second, second});
  }
  return out;
}

}  // namespace

int bilinear(const Operand& x, bool corners, double rows_factor, double columns_factor, const Operand& out) {
  const auto rows = places(x.size[2], out.size[2], corners, rows_factor);
  const auto columns = places(x.size[3], out.size[3], corners, columns_factor);
  const int64_t images = out.size[0], channels = out.size[1], height = out.size[2], width = out.size[3];
#pragma omp parallel for schedule(static) if (elements(out) > 8192)
  for (int64_t k = 0; k < images * height; k++) {
    const int64_t n = k / height, i = k % height;
    const Between& row = rows[static_cast<size_t>(i)];
    const float* image = x.as<const float>() + n * x.stride[0];
    const float *above = image + row.first * x.stride[2], *below = image + row.second * x.stride[2];
    float* to = out.as<float>() + n * out.stride[0] + i * out.stride[2];
    const auto blend = [&](int64_t j, int64_t from, int64_t count, int64_t step,
                           int64_t out_step) __attribute__((always_inline)) {
      const Between& column = columns[static_cast<size_t>(j)];
      const int64_t left = from * step + column.first * x.stride[3], right = from * step + column.second * x.stride[3];
      const float *a = above + left, *b = above + right, *c = below + left, *d = below + right;
      float* o = to + from * out_step + j * out.stride[3];
#pragma omp simd
      for (int64_t k = 0; k < count; k++)
        o[k * out_step] = row.of_first * (column.of_first * a[k * step] + column.of_second * b[k * step]) +
                          row.of_second * (column.of_first * c[k * step] + column.of_second * d[k * step]);
    };
    if (out.stride[1] == 1 && x.stride[1] == 1)  // vectors of channels: the strides are constants here
      for (int64_t j = 0; j < width; j++) blend(j, 0, channels, 1, 1);
    else if (out.stride[1] == 1)
      for (int64_t j = 0; j < width; j++) blend(j, 0, channels, x.stride[1], 1);
    else
      for (int64_t c = 0; c < channels; c++)
        for (int64_t j = 0; j < width; j++) blend(j, c, 1, x.stride[1], out.stride[1]);
  }
  return 0;
}

}  // namespace framesmith
