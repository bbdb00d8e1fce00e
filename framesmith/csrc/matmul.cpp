// Products of matrices that change from call to call: both are packed within the call, by blocks that stay in L2.
//
//   for a block of columns, for a span of the sum:      pack B: panels of kWide vectors, a panel's rows side by side
//     for a block of rows:                              pack A where its columns are contiguous (else read as it lies)
//       for a tile of rows, for a panel:                the sum in registers, then added to C
//
// (Goto and van de Geijn, "Anatomy of high-performance matrix multiplication", 2008.) Where the roles of A and B are
// better changed, the product of the transposed ones is computed, and its tiles are transposed as they are stored. A
// sum is one of sums of at most kSpan products.
#include <utility>

#include "blocks.h"

namespace framesmith {
namespace {

// The sum over `depth` of MR rows of A with a panel of B, or that added to `out`; `Packed`: rows lie side by side.
template <bool Packed, int NV, int MR>
__attribute__((noinline)) void tile(const float* a, i64 row, const float* b, i64 depth, float* out, bool add) {
  vf acc[MR][NV] = {};
  fs::multiply<Packed>(acc, a, row, b, depth);
  if (add) {
#pragma GCC unroll 32
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 8
      for (int j = 0; j < NV; j++) acc[i][j] += load(out + (i * NV + j) * W, full);
  }
  fs::store_sums(acc, out, NV * W);
}
template <bool Packed, int NV> Tile by_rows(int rows) {
  return with_constant<kMost>(rows, [](auto mr) -> Tile { return &tile<Packed, NV, mr>; });
}

void run(const Problem& p) {
  multiply(
      p,
      [&p](i64 k0, i64 depth, i64 j0, i64 n, float* out) {
        pack_b({p.b.at + k0 * p.b.row + j0 * p.b.column, 0, p.b.row, p.b.column}, depth, n, out);
      },
      [&p](i64 i0, int rows, i64 j0, int vectors, const float* sums, bool first) {
        (p.c.column == 1 ? put_rows : put_columns)(p, i0, rows, j0, vectors, sums, first);
      });
}

// Into how many parts rows and columns are cut for `threads` threads: so that the slowest of them has the least to do.
std::pair<i64, i64> cut(const Problem& p, i64 threads) {
  std::pair<i64, i64> best{1, 1};
  double least = cost(p);
  for (i64 rows = 1; rows <= threads; rows++) {
    const i64 columns = threads / rows;
    if (rows > p.m || columns > (p.n + W - 1) / W) continue;
    const double c = cost(p.part(0, (p.m + rows - 1) / rows, 0, (p.n + columns - 1) / columns));
    if (c < least) least = c, best = {rows, columns};
  }
  return best;
}

}  // namespace

Tile tile_of(bool packed, int rows, int vectors) {
  if (packed) return vectors == 1 ? by_rows<true, 1>(rows) : by_rows<true, kPanel>(rows);
  return vectors == 1 ? by_rows<false, 1>(rows) : by_rows<false, kPanel>(rows);
}

void matmul(const Problem& q, i64 batch, int threads) {
  if (!q.m || !q.n) return;
  if ((double)batch * q.m * q.n * std::max(q.k, i64(1)) < kParallelWork) threads = 1;
  const bool turned = cost(q.transposed()) < cost(q);
  const Problem shape = turned ? q.transposed() : q;
  const auto [rows, columns] = cut(shape, (threads + batch - 1) / batch);
  const Even down(shape.m, (shape.m + rows - 1) / rows),
      across(round_up(shape.n, W) / W, (round_up(shape.n, W) / W + columns - 1) / columns);
  const i64 parts = down.groups * across.groups, tasks = batch * parts;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
  for (i64 task = 0; task < tasks; task++) {
    const i64 b = task / parts, part = task % parts, r = part / across.groups, c = part % across.groups;
    Problem p = shape;
    p.a.at += b * p.a.batch, p.b.at += b * p.b.batch, p.c.at += b * p.c.batch;
    if (p.bias.at) p.bias.at += b * p.bias.batch;
    run(p.part(down.begin(r), down.begin(r + 1), across.begin(c) * W, std::min(across.begin(c + 1) * W, p.n)));
  }
}

}  // namespace framesmith
