// What products of matrices are made of, whichever way their operands come; see matmul.cpp.
#pragma once
#include <algorithm>

#include "matmul.h"
#include "tile.h"

namespace framesmith {

constexpr int kPanel = 2;                    // vectors of a panel
constexpr int kMost = W == 16 ? 14 : 6;      // rows of a tile: accumulators, a row of B, a broadcast fill the registers
constexpr i64 kColumns = kPanel * W;
constexpr i64 kTile = kMost * kColumns;
constexpr i64 kSpan = 256;                   // products of a sum
constexpr i64 kDepth = 3 * kSpan;            // products of a block: its sums are added up before they go to C
constexpr i64 kBlock = 3 << 15;              // floats of packed B, and
constexpr i64 kRowBlock = 8;                 // tiles of rows of packed A: both stay in L2
constexpr i64 kStrip = 64;                   // columns of A packed at a time
constexpr double kParallelWork = 2e5;        // multiply-adds from which a second thread pays

// Cycles, about: a tile is bound by its multiply-adds (two a cycle) or by the latency of a chain of them.
inline double cost(const Problem& p) {
  const double tiles = double((p.m + kMost - 1) / kMost), vectors = double((p.n + W - 1) / W),
               rows = double(p.m) / tiles;
  const double sums = tiles * vectors / kPanel * std::max(rows * kPanel / 2, 4.0) * double(p.k);
  const double pack_b = vectors * double(p.k) * (p.b.column == 1 ? 2 : 5),
               pack_a = p.a.column == 1 ? 0 : 0.15 * double(p.m * p.k);
  return sums + pack_b + pack_a + double(p.m) * vectors * (p.c.column == 1 ? 3 : 8);
}

// ------------------------------------------------------------------------------------------------------------- packing

inline void pack_any(const Matrices<const float>& b, i64 depth, i64 n, float* out) {
  for (i64 panel = 0; panel < n; panel += kColumns) {
    const i64 wide = std::min(kColumns, round_up(n - panel, W));
    for (i64 k = 0; k < depth; k++)
      for (i64 j = 0; j < wide; j++)
        out[panel * depth + k * wide + j] = panel + j < n ? b.at[k * b.row + (panel + j) * b.column] : 0;
  }
}

inline void pack_b(const Matrices<const float>& b, i64 depth, i64 n, float* out) {
  if (b.column == 1) pack_straight<kPanel>(b.at, b.row, depth, n, out);
  else if (b.row == 1) pack_turned<kPanel>(b.at, b.column, depth, n, out);
  else pack_any(b, depth, n, out);
}

// `depth` elements of `rows` rows of A with contiguous columns -> those of a column side by side. May read W rows.
template <class M> FN void pack_rows(const float* a, i64 column, i64 depth, i64 rows, float* out, M read) {
  for (i64 k = 0; k < depth; k++, a += column, out += rows) {
    __builtin_prefetch(a + 2 * kAhead * column);
    if (k + W <= depth) store(out, load(a, read), full);  // what is too much is written over by the next column
    else store(out, load(a, read), (int)rows);
  }
}

// Tiles [begin, end) of rows of A -> each `depth` times its rows, side by side.
inline void pack_a(const Matrices<const float>& a, const Even& tiles, i64 begin, i64 end, i64 depth, float* out) {
  const i64 first = tiles.begin(begin), last = tiles.begin(end);
  // so that a line of A is still there for the next tile, which has a part of it
  for (i64 k0 = 0; k0 < depth; k0 += kStrip)
    for (i64 t = begin; t < end; t++) {
      const i64 row = tiles.begin(t), rows = tiles.size(t), count = std::min(kStrip, depth - k0);
      const float* from = a.at + row * a.row + k0 * a.column;
      float* to = out + (row - first) * depth + k0 * rows;
      if (a.row == 1 && row + W <= last) {
        pack_rows(from, a.column, count, rows, to, full);
      } else if (a.row == 1) {
        pack_rows(from, a.column, count, rows, to, (int)rows);
      } else {
        for (i64 k = 0; k < count; k++)
          for (i64 i = 0; i < rows; i++) to[k * rows + i] = from[k * a.column + i * a.row];
      }
    }
}

// ------------------------------------------------------------------------------------------------------- a tile's sums

// The sum over `depth` of some rows of A (`row` apart, or packed) with a panel of B, or that added to `out`.
using Tile = void (*)(const float* a, i64 row, const float* b, i64 depth, float* out, bool add);
Tile tile_of(bool packed, int rows, int vectors);

// Elements [0, live) along a vector, `stride` apart.
template <class M> FN vf along(const float* p, i64 stride, M live) {
  return stride == 1 ? load(p, live) : stride == 0 ? fs::splat(*p) : fs::load_strided(p, stride, live);
}

// What a tile's sums become: C's elements at row `i` and column `j`. `first`: nothing is there yet.
template <class M> FN void put(const Problem& p, i64 i, i64 j, i64 bias_step, vf sum, bool first, M live) {
  float* to = p.c.at + i * p.c.row + j * p.c.column;
  if (!first) sum += load(to, live);
  else if (p.bias.at) sum += along(p.bias.at + i * p.bias.row + j * p.bias.column, bias_step, live);
  store(to, sum, live);
}

inline void put_rows(const Problem& p, i64 i0, int rows, i64 j0, int vectors, const float* out, bool first) {
  for (int i = 0; i < rows; i++)
    for (int v = 0; v < vectors; v++) {
      const i64 j = j0 + v * W, live = p.n - j;
      const vf sum = load(out + (i * vectors + v) * W, full);
      if (live >= W) put(p, i0 + i, j, p.bias.column, sum, first, full);
      else put(p, i0 + i, j, p.bias.column, sum, first, (int)live);
    }
}

inline void put_columns(const Problem& p, i64 i0, int rows, i64 j0, int vectors, const float* out, bool first) {
  for (int v = 0; v < vectors; v++) {
    vf r[W];
    for (int l = 0; l < W; l++) r[l] = l < rows ? load(out + (l * vectors + v) * W, full) : vf{};
    fs::transpose(r);
    const i64 live = std::min(p.n - j0 - v * W, i64(W));
    for (int l = 0; l < live; l++) put(p, i0, j0 + v * W + l, p.bias.row, r[l], first, rows);
  }
}

// ----------------------------------------------------------------------------------------------------------------- all

// Even steps of at most `most` through [0, n), multiples of `unit`.
inline i64 step_of(i64 n, i64 most, i64 unit) {
  const i64 steps = std::max((n + most - 1) / most, i64(1));
  return std::max(round_up((n + steps - 1) / steps, unit), unit);
}

// Rows [0, rows) of a block of A, `depth` deep, with the packed columns of B; `a` steps by `row`, or is packed.
template <class Put>
void multiply_rows(i64 row, i64 i0, int rows, i64 j0, i64 columns, const float* a, bool packed, const float* panels,
                   i64 depth, bool first, Put put) {
  alignas(64) float sums[kMost * kBlock / kSpan];
  const i64 span = step_of(depth, kSpan, W);
  for (i64 k = 0; k < depth || k == 0; k += span) {
    const i64 count = std::min(span, depth - k);
    const float* from = a + (packed ? k * rows : k);
    for (i64 j = 0; j < columns; j += kColumns) {
      const int vectors = (int)((std::min(kColumns, columns - j) + W - 1) / W);
      float* const out = sums + (span < depth ? j * kMost : 0);
      tile_of(packed, rows, vectors)(from, row, panels + j * depth + k * vectors * W, count, out, k != 0);
      if (k + span >= depth) put(i0, rows, j0 + j, vectors, out, first);
    }
  }
}

inline Scratch& blocks_memory() {
  static thread_local Scratch memory;
  return memory;
}

// `pack(k0, depth, j0, n, out)` packs a block of B, `put(i0, rows, j0, vectors, sums, first)` takes a tile's sums.
template <class Pack, class Put> void multiply(const Problem& p, Pack pack, Put put) {
  const i64 deep = step_of(p.k, kDepth, W), wide = step_of(p.n, kBlock / deep / kColumns * kColumns, kColumns);
  const Even tiles(p.m, kMost);
  const bool packed = p.a.column != 1;
  float* const panels = blocks_memory().get(wide * deep + (packed ? kRowBlock * kMost * deep : 0));
  float* const block = panels + wide * deep;
  for (i64 j0 = 0; j0 < p.n; j0 += wide) {
    const i64 columns = std::min(wide, p.n - j0);
    for (i64 k0 = 0; k0 < p.k || k0 == 0; k0 += deep) {
      const i64 depth = std::min(deep, p.k - k0);
      pack(k0, depth, j0, columns, panels);
      const Matrices<const float> a{p.a.at + k0 * p.a.column, 0, p.a.row, p.a.column};
      for (i64 t0 = 0; t0 < tiles.groups; t0 += kRowBlock) {
        const i64 t1 = std::min(t0 + kRowBlock, tiles.groups);
        if (packed) pack_a(a, tiles, t0, t1, depth, block);
        for (i64 t = t0; t < t1; t++) {
          const float* from = packed ? block + (tiles.begin(t) - tiles.begin(t0)) * depth
                                     : a.at + tiles.begin(t) * a.row;
          multiply_rows(a.row, tiles.begin(t), tiles.size(t), j0, columns, from, packed, panels, depth,
                        k0 == 0 && !p.add, put);
        }
      }
    }
  }
}

}  // namespace framesmith
