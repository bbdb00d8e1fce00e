// Register-tiled contraction on top of kernel.h: out[m, n] = sum over p, q and k of A[m, p, q, k] * B[p, q, k, n].
// A is read a row at a time (stride `lda` between rows of the tile), contiguous over k; its runs (p, q) are two nested
// strided loops. B comes packed in panels: runs * depth rows of PANEL contiguous floats. A tile reads one, or several.
// The MR * NV accumulators stay in registers for the whole sum and are then written to a small tile in L1, from which
// the kernel's epilogue reads: the product is compiled once a tile shape, whatever follows it. A long sum is one of
// sums of at most SPAN products each, so that rounding errors grow with its length as slowly as a library's.
#pragma once
#include "kernel.h"
namespace fs {
struct Runs {
  i64 outer, outer_stride, inner, inner_stride, depth;
};
#define FS_SAME(l) x
FN vf spread(float x) { return vf{FS_LANES(FS_SAME)}; }  // one broadcasting load
// A value that stays in a register: else a row of B is read anew for each row of A, and loads bound small tiles.
FN vf hold(vf x) {
#if defined(__AVX__)
  asm("" : "+v"(x));
#endif
  return x;
}
// Adds MR rows of A (`lda` apart; `Packed`: side by side) times `depth` rows of panels of B, which are `apart`.
template <bool Packed, int MR, int NV, int PANEL = NV * W>
FN void multiply(vf (&acc)[MR][NV], const float* a, i64 lda, const float* b, i64 depth, i64 apart = 0) {
  for (i64 k = 0; k < depth; k++, b += PANEL) {
    vf row[NV];
#pragma GCC unroll 8
    for (int j = 0; j < NV; j++) row[j] = hold(load(b + j * W / PANEL * apart + j * W % PANEL, Full()));
#pragma GCC unroll 32
    for (int i = 0; i < MR; i++) {
      const vf x = spread(Packed ? a[k * MR + i] : a[i * lda + k]);
#pragma GCC unroll 8
      for (int j = 0; j < NV; j++) acc[i][j] += x * row[j];
    }
  }
}
template <int MR, int NV> FN void store_sums(const vf (&acc)[MR][NV], float* out, i64 row) {
#pragma GCC unroll 32
  for (int i = 0; i < MR; i++)
#pragma GCC unroll 8
    for (int j = 0; j < NV; j++) store(out + i * row + j * W, acc[i][j], Full());
}
template <int MR, int NV, int PANEL>
static __attribute__((noinline)) void contract_span(const float* a, i64 lda, const Runs& runs, const float* b,
                                                    i64 apart, float* out) {
  vf acc[MR][NV] = {};
  for (i64 p = 0; p < runs.outer; p++)
    for (i64 q = 0; q < runs.inner; q++, b += runs.depth * PANEL)
      multiply<false, MR, NV, PANEL>(acc, a + p * runs.outer_stride + q * runs.inner_stride, lda, b, runs.depth, apart);
  store_sums(acc, out, NV * W);
}

constexpr i64 SPAN = 512;
template <int MR, int NV, int PANEL = NV * W>
static __attribute__((noinline)) void contract_tile(const float* a, i64 lda, const Runs& all, const float* b,
                                                    float* out) {
  const i64 total = all.outer * all.inner * all.depth, apart = total * PANEL;
  if (total <= SPAN) return contract_span<MR, NV, PANEL>(a, lda, all, b, apart, out);
  // A span is a part of one run, some runs of an inner loop, or some inner loops: what B holds in one piece.
  const i64 depth = min(all.depth, SPAN), inner = max(min(all.inner, SPAN / all.depth), (i64)1);
  const i64 outer = max(min(all.outer, SPAN / (all.depth * all.inner)), (i64)1);
  float part[MR * NV * W], *to = out;
  for (i64 p = 0; p < all.outer; p += outer)
    for (i64 q = 0; q < all.inner; q += inner)
      for (i64 k = 0; k < all.depth; k += depth) {
        const Runs runs{min(outer, all.outer - p), all.outer_stride, min(inner, all.inner - q), all.inner_stride,
                        min(depth, all.depth - k)};
        contract_span<MR, NV, PANEL>(a + p * all.outer_stride + q * all.inner_stride + k, lda, runs, b, apart, to);
        b += runs.outer * runs.inner * runs.depth * PANEL;
        if (to == part)
          for (int i = 0; i < MR * NV * W; i += W)
            store(out + i, load(out + i, Full()) + load(part + i, Full()), Full());
        to = part;
      }
}

// Positions [p0, p1) x [q0, q1) of a depthwise kernel of `wide` columns and `count` positions in all; strides of its
// rows and columns in the image.
struct Taps {
  i64 p0, p1, p_stride, q0, q1, q_stride, wide, count;
};
FN i64 first_tap(i64 at, i64 dilation) { return at >= 0 ? 0 : (-at + dilation - 1) / dilation; }
FN i64 last_tap(i64 at, i64 dilation, i64 size, i64 taps) {
  const i64 inside = at < size ? (size - at + dilation - 1) / dilation : 0;
  return inside < taps ? inside : taps;
}
// MR pixels (stride `lda`) of NV vectors of channels; `Live` counts the channels of the last vector.
template <int MR, int NV, int PANEL = NV * W, class Live>
static __attribute__((noinline)) void depthwise_tile(const float* a0, i64 lda, Taps t, const float* b0, float* out,
                                                     Live live) {
  vf acc[MR][NV] = {};
  for (i64 p = t.p0; p < t.p1; p++)
    for (i64 q = t.q0; q < t.q1; q++) {
      const float *a = a0 + p * t.p_stride + q * t.q_stride, *b = b0 + (p * t.wide + q) * PANEL;
      vf row[NV];
#pragma GCC unroll 8
      for (int j = 0; j < NV; j++) row[j] = load(b + j * W / PANEL * (t.count * PANEL) + j * W % PANEL, Full());
#pragma GCC unroll 32
      for (int i = 0; i < MR; i++) {
#pragma GCC unroll 8
        for (int j = 0; j < NV - 1; j++) acc[i][j] += load(a + i * lda + j * W, Full()) * row[j];
        acc[i][NV - 1] += load(a + i * lda + (NV - 1) * W, live) * row[NV - 1];
      }
    }
  store_sums(acc, out, NV * W);
}
}  // namespace fs
