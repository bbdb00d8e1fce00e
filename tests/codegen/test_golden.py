"""The text of printed kernels: what a reader of FRAMESMITH_LOG=code sees."""

import torch

from framesmith.codegen.cpp import VectorTarget, emit_kernel
from framesmith.loops.ir import Const, Origin
from tests.codegen.kernels import F32, axis, kernel, load, loop, op, store
from tests.codegen.test_kernels import softmax


def text(k, *origins):
    return emit_kernel(k, "k0", VectorTarget(width=16), origins).text


def test_pointwise_with_comment_and_tail():
    i = axis("i0", 70)
    x, half = load("p0", i.symbol), Const(0.5, F32)
    y = op("mul", x, half)
    k = kernel([F32, torch.bfloat16], [loop(i, x, half, y, store("p1", i.symbol, y))])
    assert (
        text(k, Origin("aten.mul.Tensor", "model.py", 12, "forward"))
        == """\
// aten.mul.Tensor  model.py:12 in forward
extern "C" void k0(const float* __restrict p0, bf16* __restrict p1) {
  for (i64 i0 = 0; i0 < 64; i0 += 16) {
    const vf v0 = load(p0 + i0, full);
    const vf v1 = v0 * splat(0.5f);
    store(p1 + i0, v1, full);
  }
  {
    const i64 i0 = 64;
    const vf v0 = load(p0 + i0, 6);
    const vf v1 = v0 * splat(0.5f);
    store(p1 + i0, v1, 6);
  }
}
"""
    )


def test_softmax():
    assert (
        text(softmax(32))
        == """\
extern "C" void k0(const float* __restrict p0, float* __restrict p1) {
  #pragma omp parallel for schedule(static)
  for (i64 i0 = 0; i0 < 5; i0++) {
    alignas(64) float t0[32];
    vf r0_0 = splat(float(-__builtin_inff())), r0_1 = splat(float(-__builtin_inff()));
    for (i64 i1 = 0; i1 < 32; i1 += 32) {
      const vf v1_0 = load(p0 + 32*i0 + i1, full);
      const vf v1_1 = load(p0 + (32*i0 + (i1 + 16)), full);
      r0_0 = max(r0_0, v1_0);
      r0_1 = max(r0_1, v1_1);
    }
    r0_0 = max(r0_0, r0_1);
    const float v0 = fold_max(r0_0);
    vf r2_0 = splat(float(0)), r2_1 = splat(float(0));
    for (i64 i1 = 0; i1 < 32; i1 += 32) {
      const vf v3_0 = load(p0 + 32*i0 + i1, full);
      const vf v3_1 = load(p0 + (32*i0 + (i1 + 16)), full);
      const vf v4_0 = v3_0 - splat(v0);
      const vf v4_1 = v3_1 - splat(v0);
      const vf v5_0 = exp(v4_0);
      const vf v5_1 = exp(v4_1);
      store(t0 + i1, v5_0, full);
      store(t0 + i1 + 16, v5_1, full);
      r2_0 = r2_0 + v5_0;
      r2_1 = r2_1 + v5_1;
    }
    r2_0 = r2_0 + r2_1;
    const float v2 = fold_sum(r2_0);
    for (i64 i1 = 0; i1 < 32; i1 += 16) {
      const vf v6 = load(t0 + i1, full);
      const vf v7 = v6 * splat(1.0f / v2);
      store(p1 + 32*i0 + i1, v7, full);
    }
  }
}
"""
    )


def test_transposition_through_a_tile():
    a, b = axis("i0", 32), axis("i1", 48)
    v = load("p0", b.symbol * 32 + a.symbol)
    k = kernel([F32, F32], [loop(b, v, store("p1", a.symbol * 48 + b.symbol, v))], (a,), tile=(a.symbol, b.symbol))
    assert (
        text(k)
        == """\
extern "C" void k0(const float* __restrict p0, float* __restrict p1) {
  for (i64 i0_0 = 0; i0_0 < 32; i0_0 += 16) {
    const int i0_live = 16;
    for (i64 i1 = 0; i1 < 48; i1 += 16) {
      const int i1_live = 16;
      alignas(64) float tile0[256];
      load_tile(tile0, p0 + (i0_0 + 32*i1), 32, i1_live, i0_live);
      for (i64 i0 = i0_0; i0 < i0_0 + i0_live; i0++) {
        const vf v0 = load(tile0 + 16 * (i0 - i0_0), full);
        store(p1 + 48*i0 + i1, v0, full);
      }
    }
  }
}
"""
    )


def test_split_index_needs_no_gather():
    i = axis("i0", 128)
    v = load("p0", i.symbol // 64 * 100 + i.symbol % 64)
    k = kernel([F32, F32], [loop(i, v, store("p1", i.symbol, v))])
    assert "load(p0 + ((i0 % 64) + 100*(i0 / 64)), full)" in text(k)
