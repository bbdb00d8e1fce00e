"""Products of matrices and convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from framesmith.onnx.emitter import Emitter, NoForm, Value, rank, shape_of
from framesmith.onnx.table import aten, row

contraction = partial(row, "contractions")


@contraction(aten.mm.default, aten.bmm.default, aten.matmul.default, aten.mv.default, aten.dot.default)
def _matmul(m: Emitter, a: Value, b: Value) -> Value:
    return m("MatMul", a, b)


@contraction(aten._int_mm.default)
def _integer_product(m: Emitter, a: Value, b: Value) -> Value:
    return m("MatMulInteger", a, b)


@contraction(aten.linear.default)
def _linear(m: Emitter, x: Value, weight: Value, bias: Value | None = None) -> Value:
    if rank(weight) == 1:
        made = m("MatMul", x, weight)
    elif rank(x) == 2 and m.out.dtype.is_floating_point:
        return m("Gemm", x, weight, *([bias] if bias is not None else []), transB=1)
    else:
        made = m("MatMul", x, m.transpose(weight, [1, 0]))
    return made if bias is None else m("Add", made, bias)


def _sum_of_product(m: Emitter, x: Value, a: Value, b: Value, *, beta: Any = 1, alpha: Any = 1) -> Value:
    made = _scaled(m, m("MatMul", a, b), alpha)
    return made if beta == 0 else m("Add", _scaled(m, x, beta), made)


def _scaled(m: Emitter, x: Value, factor: Any) -> Value:
    return x if not isinstance(factor, Value) and factor == 1 else m("Mul", x, m.number(factor, m.out.dtype))


contraction(aten.baddbmm.default, aten.addmv.default)(_sum_of_product)


@contraction(aten.addmm.default)
def _addmm(m: Emitter, x: Value, a: Value, b: Value, *, beta: Any = 1, alpha: Any = 1) -> Value:
    if m.out.dtype.is_floating_point and beta != 0:
        return m("Gemm", a, b, x, alpha=float(alpha), beta=float(beta))
    return _sum_of_product(m, x, a, b, beta=beta, alpha=alpha)


@contraction(aten.addr.default)
def _outer(m: Emitter, x: Value, a: Value, b: Value, *, beta: Any = 1, alpha: Any = 1) -> Value:
    return _sum_of_product(m, m.cast(x, m.out.dtype), m.unsqueeze(m.cast(a, m.out.dtype), 1),
                           m.unsqueeze(m.cast(b, m.out.dtype), 0), beta=beta, alpha=alpha)


@contraction(aten.addbmm.default)
def _sum_of_products(m: Emitter, x: Value, a: Value, b: Value, *, beta: Any = 1, alpha: Any = 1) -> Value:
    made = _scaled(m, m("ReduceSum", m("MatMul", a, b), m.ints([0]), keepdims=0), alpha)
    return m("Expand", made, m("Shape", x)) if beta == 0 else m("Add", _scaled(m, x, beta), made)


@contraction(aten.vdot.default)
def _vdot(m: Emitter, a: Value, b: Value) -> Value:
    return m("MatMul", a, b)


@contraction(aten._grouped_mm.default)
def _grouped_product(m: Emitter, x: Value, weights: Value, ends: Value | None = None, bias: Any = None,
                     out_dtype: Any = None) -> Value:
    """Rows times the matrix of the group in which they are: of the products of each row with all matrices, side by side
    in one, one is taken."""
    if ends is None or bias is not None or (rank(x), rank(weights)) != (2, 3):
        raise NoForm("a product of groups other than of rows")
    if any(not isinstance(n, int) for n in shape_of(weights)):
        raise NoForm("a product of groups of which the number or the size varies")
    groups, depth, columns = shape_of(weights)
    rows = m("Range", m.constant(0, torch.int64), m.number(m.size(x, 0), torch.int64), m.constant(1, torch.int64))
    behind = m.cast(m("GreaterOrEqual", m.unsqueeze(rows, 1), m.cast(ends, torch.int64)), torch.int64)
    group = m("Min", m("ReduceSum", behind, m.ints([1]), keepdims=0), m.constant(groups - 1, torch.int64))
    joined = m("Reshape", m.transpose(weights, [1, 0, 2]), m.ints([depth, groups * columns]))
    products = m("Reshape", m("MatMul", x, joined), m.ints([-1, groups, columns]))
    return m("GatherND", products, m.concat([m.unsqueeze(rows, 1), m.unsqueeze(group, 1)], 1))


@contraction(aten.linalg_solve_triangular.default)
def _solve_triangular(m: Emitter, a: Value, b: Value, *, upper: bool, left: bool = True,
                      unitriangular: bool = False) -> Value:
    """With a = d (1 - n), of which n is 0 on and beyond the diagonal, a power of n is 0, and the inverse of 1 - n is
    the product of 1 + n, 1 + n^2, 1 + n^4, ..."""
    size, dtype = shape_of(a)[-1], m.out.dtype
    if not isinstance(size, int):
        raise NoForm("a triangular system of which the size varies")
    if not left:
        swap = [*range(rank(a) - 2), rank(a) - 1, rank(a) - 2]
        a, b, upper = m.transpose(a, swap), m.transpose(b, swap), not upper
    one = m.constant(torch.eye(size).tolist(), dtype)
    power = m("Neg", m("Trilu", a, m.constant(1 if upper else -1, torch.int64), upper=int(upper)))
    if not unitriangular:
        diagonal = m("ReduceSum", m("Mul", a, one), m.ints([-1]), keepdims=1)
        power, b = m("Div", power, diagonal), m("Div", b, diagonal)
    for k in range(max(size - 1, 0).bit_length()):
        power = m("MatMul", power, power) if k else power
        b = m("Add", b, m("MatMul", power, b))
    return b if left else m.transpose(b, [*range(len(m.out.shape) - 2), len(m.out.shape) - 1, len(m.out.shape) - 2])


@contraction(aten._linalg_det.default)
def _determinant(m: Emitter, x: Value) -> Any:
    return m("Det", x), None, None


@contraction(aten.convolution.default)
def _convolution(m: Emitter, x: Value, weight: Value, bias: Value | None, stride: Sequence[Any], padding: Sequence[Any],
                 dilation: Sequence[Any], transposed: bool, output_padding: Sequence[Any], groups: int) -> Value:
    count = rank(weight) - 2
    stride, padding, dilation, more = (list(v) * (count if len(v) == 1 else 1)
                                       for v in (stride, padding, dilation, output_padding))
    if any(isinstance(v, Value) for v in (*stride, *padding, *dilation)):
        raise NoForm("a convolution of which the window varies")
    single = rank(x) == count + 1
    given = [m.unsqueeze(x, 0) if single else x, weight, *([bias] if bias is not None else [])]
    window: dict[str, Any] = {"strides": stride, "dilations": dilation, "pads": [*padding, *padding], "group": groups,
              "kernel_shape": list(shape_of(weight)[2:])}
    if any(not isinstance(n, int) for n in window["kernel_shape"]):
        del window["kernel_shape"]
    if transposed:
        ends = [p - min(p, n) for p, n in zip(padding, more, strict=True)]  # what is cut off less is added
        window["pads"] = [*padding, *ends]
        made = m("ConvTranspose", *given, **window,
                 output_padding=[n - min(p, n) for p, n in zip(padding, more, strict=True)])
    else:
        made = m("Conv", *given, **window)
    return m.squeeze(made, 0) if single else made


@contraction(aten._cdist_forward.default)
def _cdist(m: Emitter, a: Value, b: Value, p: float, mode: int | None) -> Value:
    return _norm(m, m("Abs", m("Sub", m.unsqueeze(a, rank(a) - 1), m.unsqueeze(b, rank(b) - 2))), p)


def _norm(m: Emitter, off: Value, p: float) -> Value:
    """Return a norm of the last dimension of numbers that are not negative."""
    over, dtype = m.ints([-1]), m.out.dtype
    if p == 0:
        one, zero = m.constant(1, dtype), m.constant(0, dtype)
        return m("ReduceSum", m("Where", m("Equal", off, zero), zero, one), over, keepdims=0)
    if p == float("inf"):
        return m("ReduceMax", off, over, keepdims=0)
    if p in (1, 2):
        return m(f"ReduceL{int(p)}", off, over, keepdims=0)
    total = m("ReduceSum", m("Pow", off, m.constant(p, dtype)), over, keepdims=0)
    return m("Pow", total, m.constant(1 / p, dtype))


@contraction(aten._trilinear.default)
def _trilinear(m: Emitter, a: Value, b: Value, c: Value, of_a: Sequence[int], of_b: Sequence[int], of_c: Sequence[int],
               summed: Sequence[int], unroll_dim: int = 1) -> Value:
    spread = [m.unsqueeze(x, *dims) if dims else x for x, dims in ((a, of_a), (b, of_b), (c, of_c))]
    made = m("Mul", m("Mul", spread[0], spread[1]), spread[2])
    return m("ReduceSum", made, m.ints(summed), keepdims=0) if summed else made


@contraction(aten._pdist_forward.default)
def _distances(m: Emitter, x: Value, p: float = 2) -> Value:
    rows = shape_of(x)[0]
    if not isinstance(rows, int):
        raise NoForm("the distances of rows of which the number varies")
    pairs = torch.triu_indices(rows, rows, 1)
    a, b = (m("Gather", x, m.constant(side.tolist(), torch.int64), axis=0) for side in pairs)
    return _norm(m, m("Abs", m("Sub", a, b)), p)
