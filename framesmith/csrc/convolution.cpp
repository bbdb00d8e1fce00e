// Convolutions as products of matrices, of which the images' (a row a channel and position of the kernel, a column a
// place of the result) is never whole in memory: what is packed of it is read from the image, what is computed of it is
// added to the image.
//
//   results        = weights  * matrix(images)       (outs, rows) (rows, places)
//   weights'       = results' * matrix(images)^T     (outs, places) (places, rows)
//   matrix(images') = weights^T * results'           (rows, outs) (outs, places)
#include "convolution.h"

#include <algorithm>

#include "blocks.h"

namespace framesmith {
namespace {

constexpr i64 kFew = 4;            // results of a group below which a tile has too few rows
constexpr double kParallel = 2e5;  // multiply-adds from which a second thread pays

// The matrix of one group of an image.
class Matrix {
 public:
  Matrix(const Convolution& c, const float* image)
      : c_(c), image_(const_cast<float*>(image)), places_(c.out[0] * c.out[1]) {}

  // Elements [j, j + count) of row `row`.
  void read(i64 row, i64 j, i64 count, float* out) const {
    segments(row, j, count, [&](const float* line, i64 x, i64 n) {
      const i64 low = std::min(n, before(x)), high = std::max(low, std::min(n, within(x)));
      std::fill_n(out, low, 0.0f);
      if (line) copy(line + x + low * c_.stride[1], high - low, out + low);
      std::fill(line ? out + high : out, out + n, 0.0f);
      out += n;
    });
  }

  void add(i64 row, i64 j, i64 count, const float* values) const {
    segments(row, j, count, [&](float* line, i64 x, i64 n) {
      const i64 low = std::min(n, before(x)), high = std::max(low, std::min(n, within(x)));
      if (line) accumulate(values + low, high - low, line + x + low * c_.stride[1]);
      values += n;
    });
  }

 private:
  // Calls `f(line of the image or null, x of the first, how many)` for each line of the result that has elements.
  template <class F> void segments(i64 row, i64 j, i64 count, F f) const {
    const i64 taps = c_.kernel[0] * c_.kernel[1], channel = row / taps, p = row % taps / c_.kernel[1],
              q = row % c_.kernel[1];
    float* const plane = image_ + channel * c_.size[0] * c_.size[1];
    for (i64 line = j / c_.out[1], at = j % c_.out[1]; count > 0; line++, at = 0) {
      const i64 n = std::min(count, c_.out[1] - at), y = line * c_.stride[0] - c_.padding[0] + p * c_.dilation[0];
      f(y >= 0 && y < c_.size[0] ? plane + y * c_.size[1] : nullptr,
        at * c_.stride[1] - c_.padding[1] + q * c_.dilation[1], n);
      count -= n;
    }
  }
  // Of places from x on: how many stand before the line, and how many before its end.
  i64 before(i64 x) const { return x >= 0 ? 0 : (c_.stride[1] - 1 - x) / c_.stride[1]; }
  i64 within(i64 x) const { return x >= c_.size[1] ? 0 : (c_.size[1] - x + c_.stride[1] - 1) / c_.stride[1]; }

  void copy(const float* from, i64 n, float* to) const {
    if (c_.stride[1] != 1) {
      for (i64 i = 0; i < n; i++) to[i] = from[i * c_.stride[1]];
      return;
    }
    i64 i = 0;
    for (; i + W <= n; i += W) store(to + i, load(from + i, full), full);
    if (i < n) store(to + i, load(from + i, (int)(n - i)), (int)(n - i));
  }
  void accumulate(const float* from, i64 n, float* to) const {
    if (c_.stride[1] != 1) {
      for (i64 i = 0; i < n; i++) to[i * c_.stride[1]] += from[i];
      return;
    }
    i64 i = 0;
    for (; i + W <= n; i += W) store(to + i, load(to + i, full) + load(from + i, full), full);
    if (i < n) store(to + i, load(to + i, (int)(n - i)) + load(from + i, (int)(n - i)), (int)(n - i));
  }

  const Convolution& c_;
  float* image_;
  i64 places_;
};

struct Sizes {
  i64 rows, places, image, weight, result;  // of a group's matrix; elements of a group's image, weight and result
  explicit Sizes(const Convolution& c)
      : rows(c.channels * c.kernel[0] * c.kernel[1]), places(c.out[0] * c.out[1]),
        image(c.channels * c.size[0] * c.size[1]), weight(c.outs * rows), result(c.outs * places) {}
};

i64 threads_for(const Convolution& c, const Sizes& s, i64 threads) {
  return (double)c.count * c.groups * c.outs * s.rows * s.places < kParallel ? 1 : threads;
}

// Parts of n that a task of `tasks` is cut into so that every thread has one: units of `unit`.
Even parts_of(i64 n, i64 unit, i64 tasks, i64 threads) {
  const i64 units = (n + unit - 1) / unit, parts = std::min(units, (threads + tasks - 1) / tasks);
  return {units, (units + parts - 1) / parts};
}

// Weights of a group with few results, as dot products of the matrix's rows, a strip of places at a time.
void few_weights(const Convolution& c, const Sizes& s, i64 group, const float* tangents, const float* images,
                 float* weights) {
  alignas(64) float row[kSpan];
  std::fill_n(weights + group * s.weight, s.weight, 0.0f);
  for (i64 n = 0; n < c.count; n++) {
    const Matrix matrix(c, images + (n * c.groups + group) * s.image);
    const float* tangent = tangents + (n * c.groups + group) * s.result;
    for (i64 r = 0; r < s.rows; r++)
      for (i64 j = 0; j < s.places; j += kSpan) {
        const i64 count = std::min(kSpan, s.places - j);
        matrix.read(r, j, count, row);
        for (i64 o = 0; o < c.outs; o++)
          weights[group * s.weight + o * s.rows + r] += dot(tangent + o * s.places + j, row, count);
      }
  }
}

// A channel of an image, padded; columns by their rest modulo the stride: what a tap of the kernel meets is contiguous.
class Plane {
 public:
  Plane(const Convolution& c, float* memory)
      : c_(c), at_(memory), phase_(c.out[1] + (c.kernel[1] - 1) * c.dilation[1] / c.stride[1] + W),
        pitch_(phase_ * c.stride[1]) {}
  static i64 room(const Convolution& c) { return lines(c) * Plane(c, nullptr).pitch_; }

  void fill(const float* image) {
    std::fill_n(at_, room(c_), 0.0f);
    for (i64 line = 0; line < lines(c_); line++) {
      const i64 y = line - c_.padding[0];
      if (y < 0 || y >= c_.size[0]) continue;
      const float* from = image + y * c_.size[1];
      for (i64 f = 0; f < c_.stride[1]; f++) {  // the element at place t of phase f is x = t * stride + f - padding
        const i64 low = std::max((c_.padding[1] - f + c_.stride[1] - 1) / c_.stride[1], i64(0));
        const i64 high = std::min(phase_, (c_.size[1] + c_.padding[1] - f + c_.stride[1] - 1) / c_.stride[1]);
        float* to = at_ + line * pitch_ + f * phase_;
        if (c_.stride[1] == 1) std::copy(from + low - c_.padding[1], from + high - c_.padding[1], to + low);
        else
          for (i64 t = low; t < high; t++) to[t] = from[t * c_.stride[1] + f - c_.padding[1]];
      }
    }
  }
  // What position (p, q) of the kernel meets on a line of the result.
  const float* line(i64 line, i64 p, i64 q) const {
    const i64 x = q * c_.dilation[1];
    return at_ + (line * c_.stride[0] + p * c_.dilation[0]) * pitch_ + x % c_.stride[1] * phase_ + x / c_.stride[1];
  }

 private:
  static i64 lines(const Convolution& c) {
    return (c.out[0] - 1) * c.stride[0] + (c.kernel[0] - 1) * c.dilation[0] + 1;
  }
  const Convolution& c_;
  float* at_;
  i64 phase_, pitch_;
};

constexpr int kTaps = 7;

// Adds to Q weights of row `p` of a kernel what lines [l0, l1) of the result give.
template <int Q>
void add_taps(const Convolution& c, const Plane& plane, i64 p, i64 l0, i64 l1, const float* tangent, float* weights) {
  vf sum[Q] = {};
  i64 from[Q];
  for (int q = 0; q < Q; q++) from[q] = plane.line(0, p, q) - plane.line(0, p, 0);
  for (i64 l = l0; l < l1; l++) {
    const float *row = plane.line(l, p, 0), *t = tangent + l * c.out[1];
    i64 j = 0;
    auto step = [&](auto live) {
      const vf x = load(t + j, live);
#pragma GCC unroll 8
      for (int q = 0; q < Q; q++) sum[q] += x * load(row + from[q] + j, live);
    };
    for (; j + W <= c.out[1]; j += W) step(full);
    if (j < c.out[1]) step((int)(c.out[1] - j));
  }
  for (int q = 0; q < Q; q++) weights[q] += fs::fold_sum(sum[q]);
}

// Weights of a group with few results, a row of a kernel at a time.
void small_weights(const Convolution& c, const Sizes& s, i64 group, const float* tangents, const float* images,
                   float* weights) {
  Plane plane(c, blocks_memory().get(Plane::room(c)));
  const auto taps = with_constant<kTaps>((int)c.kernel[1], [](auto q) { return &add_taps<q>; });
  const i64 strip = std::max(kSpan * W / 2 / c.out[1], i64(1));
  std::fill_n(weights + group * s.weight, s.weight, 0.0f);
  for (i64 n = 0; n < c.count; n++)
    for (i64 channel = 0; channel < c.channels; channel++) {
      plane.fill(images + (n * c.groups + group) * s.image + channel * c.size[0] * c.size[1]);
      for (i64 o = 0; o < c.outs; o++)
        for (i64 l = 0; l < c.out[0]; l += strip)
          for (i64 p = 0; p < c.kernel[0]; p++)
            taps(c, plane, p, l, std::min(l + strip, c.out[0]),
                 tangents + (n * c.groups + group) * s.result + o * s.places,
                 weights + group * s.weight + o * s.rows + (channel * c.kernel[0] + p) * c.kernel[1]);
    }
}

auto putting_rows(const Problem& p) {
  return [&p](i64 i0, int rows, i64 j0, int vectors, const float* sums, bool first) {
    put_rows(p, i0, rows, j0, vectors, sums, first);
  };
}

// Rows [r0, r0 + n) of the matrix, places [k0, k0 + depth) -> panels, its rows being the columns of B.
void pack_matrix_turned(const Matrix& matrix, i64 r0, i64 n, i64 k0, i64 depth, float* out) {
  alignas(64) float rows[kColumns * kStrip];
  for (i64 panel = 0; panel < n; panel += kColumns) {
    const i64 live = std::min(kColumns, n - panel), wide = round_up(live, W);
    for (i64 k = 0; k < depth; k += kStrip) {
      const i64 count = std::min(kStrip, depth - k);
      for (i64 j = 0; j < live; j++) matrix.read(r0 + panel + j, k0 + k, count, rows + j * kStrip);
      pack_turned<kPanel>(rows, kStrip, count, live, out + panel * depth + k * wide);
    }
  }
}

// Rows [k0, k0 + depth) of the matrix, places [j0, j0 + n) -> panels.
void pack_matrix(const Matrix& matrix, i64 k0, i64 depth, i64 j0, i64 n, float* out) {
  alignas(64) float line[kBlock / W];
  const i64 whole = n / kColumns * kColumns, wide = round_up(n - whole, W);
  for (i64 k = 0; k < depth; k++) {
    matrix.read(k0 + k, j0, n, line);
    std::fill(line + n, line + round_up(n, W), 0.0f);
    for (i64 j = 0; j < n; j += W) {
      const i64 panel = j / kColumns * kColumns;
      store(out + panel * depth + k * (panel < whole ? kColumns : wide) + (j - panel), load(line + j, full), full);
    }
  }
}

}  // namespace

void convolve(const Convolution& c, const float* images, const float* weights, const float* bias, float* results,
              int given) {
  const Sizes s(c);
  const i64 threads = threads_for(c, s, given), tasks = c.count * c.groups;
  const Even cut = parts_of(s.places, kColumns, tasks, threads);
#pragma omp parallel for collapse(2) schedule(static) num_threads((int)threads) if (threads > 1)
  for (i64 task = 0; task < tasks; task++)
    for (i64 part = 0; part < cut.groups; part++) {
      const i64 group = task % c.groups, first = cut.begin(part) * kColumns,
                last = std::min(cut.begin(part + 1) * kColumns, s.places);
      const Matrix matrix(c, images + task * s.image);
      const Matrices weight{weights + group * s.weight, 0, s.rows, 1};
      const Problem p{c.outs, last - first, s.rows, weight, {}, {results + task * s.result + first, 0, s.places, 1},
                      {bias ? bias + group * c.outs : nullptr, 0, 1, 0}, false};
      auto packed = [&](i64 k0, i64 depth, i64 j0, i64 n, float* out) {
        pack_matrix(matrix, k0, depth, first + j0, n, out);
      };
      multiply(p, packed, putting_rows(p));
    }
}

void convolve_images(const Convolution& c, const float* tangents, const float* weights, float* images, int given) {
  const Sizes s(c);
  const i64 threads = threads_for(c, s, given), tasks = c.count * c.groups, taps = c.kernel[0] * c.kernel[1];
  const Even cut = parts_of(c.channels, 1, tasks, threads);
#pragma omp parallel for collapse(2) schedule(static) num_threads((int)threads) if (threads > 1)
  for (i64 task = 0; task < tasks; task++)
    for (i64 part = 0; part < cut.groups; part++) {
      const i64 group = task % c.groups, first = cut.begin(part), count = cut.size(part), plane = c.size[0] * c.size[1];
      float* const image = images + task * s.image + first * plane;
      std::fill_n(image, count * plane, 0.0f);
      const Matrix matrix(c, image);
      const float* tangent = tangents + task * s.result;
      const Problem p{count * taps, s.places, c.outs, {weights + group * s.weight + first * taps, 0, 1, s.rows},
                      {tangent, 0, s.places, 1}, {}, {}, false};
      multiply(
          p,
          [&](i64 k0, i64 depth, i64 j0, i64 n, float* out) {
            pack_straight<kPanel>(tangent + k0 * s.places + j0, s.places, depth, n, out);
          },
          [&](i64 i0, int rows, i64 j0, int vectors, const float* sums, bool) {
            for (int i = 0; i < rows; i++)
              matrix.add(i0 + i, j0, std::min(i64(vectors) * W, s.places - j0), sums + i * vectors * W);
          });
    }
}

void convolve_weights(const Convolution& c, const float* tangents, const float* images, float* weights, int given) {
  const Sizes s(c);
  const i64 threads = threads_for(c, s, given);
  const Even cut = parts_of(c.outs < kFew ? 1 : s.rows, kColumns, c.groups, threads);
#pragma omp parallel for collapse(2) schedule(static) num_threads((int)threads) if (threads > 1)
  for (i64 group = 0; group < c.groups; group++)
    for (i64 part = 0; part < cut.groups; part++) {
      if (c.outs < kFew) {
        (c.kernel[1] <= kTaps ? small_weights : few_weights)(c, s, group, tangents, images, weights);
        continue;
      }
      const i64 first = cut.begin(part) * kColumns, last = std::min(cut.begin(part + 1) * kColumns, s.rows);
      for (i64 n = 0; n < c.count; n++) {
        const i64 task = n * c.groups + group;
        const Matrix matrix(c, images + task * s.image);
        const Problem p{c.outs, last - first, s.places, {tangents + task * s.result, 0, s.places, 1}, {},
                        {weights + group * s.weight + first, 0, s.rows, 1}, {}, n > 0};
        auto packed = [&](i64 k0, i64 depth, i64 j0, i64 m, float* out) {
          pack_matrix_turned(matrix, first + j0, m, k0, depth, out);
        };
        multiply(p, packed, putting_rows(p));
      }
    }
}

}  // namespace framesmith
