// Register-tiled contraction on top of kernel.h: out[m, n] = sum over runs r and k of A[m, r, k] * B[r, k, n].
// A is read a row at a time (stride `lda` between rows of the tile, `run` between runs), contiguous over k. B comes packed in panels of NV
// vectors: runs * depth rows of NV * W contiguous floats. The MR * NV accumulators stay in registers for the whole sum and are then
// written to a small tile in L1, from which the kernel's epilogue reads: the product is compiled once a tile shape, whatever follows it.
#pragma once
#include "kernel.h"
namespace fs {
template <int MR, int NV>
static __attribute__((noinline)) void contract_tile(const float* a, i64 lda, i64 run, i64 runs, const float* b, i64 depth, float* out) {
  vf acc[MR][NV] = {};
  for (i64 r = 0; r < runs; r++, a += run)
    for (i64 k = 0; k < depth; k++, b += NV * W) {
      vf row[NV];
#pragma GCC unroll 8
      for (int j = 0; j < NV; j++) row[j] = load(b + j * W, Full());
#pragma GCC unroll 32
      for (int i = 0; i < MR; i++) {
        const vf x = splat(a[i * lda + k]);
#pragma GCC unroll 8
        for (int j = 0; j < NV; j++) acc[i][j] += x * row[j];
      }
    }
#pragma GCC unroll 32
  for (int i = 0; i < MR; i++)
#pragma GCC unroll 8
    for (int j = 0; j < NV; j++) store(out + (i * NV + j) * W, acc[i][j], Full());
}
}  // namespace fs
