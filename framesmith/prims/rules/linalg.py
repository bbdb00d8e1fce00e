"""The matmul family, brought to mm, bmm, addmm, baddbmm, mv and dot, which stay extern calls."""

from __future__ import annotations

from typing import Any

import torch

from framesmith.prims.builder import Builder, Value
from framesmith.prims.core import Spec, contiguous_strides, numel
from framesmith.prims.elementwise import broadcast_shapes
from framesmith.prims.registry import decomposes

aten = torch.ops.aten


def _product(b: Builder, op: Any, x: Value, y: Value, shape: tuple[Any, ...]) -> Value:
    return b.extern(op, (x, y), val=Spec(shape, x.dtype, x.device, contiguous_strides(shape)))


def mm(b: Builder, x: Value, y: Value) -> Value:
    """(n, k) x (k, m)."""
    return _product(b, aten.mm.default, x, y, (x.shape[0], y.shape[1]))


def bmm(b: Builder, x: Value, y: Value) -> Value:
    """(p, n, k) x (p, k, m)."""
    return _product(b, aten.bmm.default, x, y, (x.shape[0], x.shape[1], y.shape[2]))


@decomposes(aten.matmul.default)
def matmul(b: Builder, x: Value, y: Value) -> Any:
    if x.dtype is not y.dtype or not x.ndim or not y.ndim:
        return NotImplemented
    if y.ndim == 1:
        return _times_vector(b, x, y)
    if x.ndim == 1:
        # v @ M -> (M^T @ v), batch by batch
        return _times_vector(b, b.transpose(y, y.ndim - 2, y.ndim - 1), x)
    if y.ndim == 2:
        rows = numel(x.shape[:-1])
        out = mm(b, b.reshape(x, (rows, x.shape[-1])), y)
        return b.reshape(out, (*x.shape[:-1], y.shape[1]))
    batch = broadcast_shapes(x.shape[:-2], y.shape[:-2])
    count = numel(batch)
    x3, y3 = (b.reshape(b.expand(one, (*batch, *one.shape[-2:])), (count, *one.shape[-2:])) for one in (x, y))
    return b.reshape(bmm(b, x3, y3), (*batch, x.shape[-2], y.shape[-1]))


def _times_vector(b: Builder, x: Value, y: Value) -> Value:
    if x.ndim == 1:
        return _product(b, aten.dot.default, x, y, ())
    out = _product(b, aten.mv.default, b.reshape(x, (numel(x.shape[:-1]), x.shape[-1])), y, (numel(x.shape[:-1]),))
    return b.reshape(out, x.shape[:-1])


@decomposes(aten.outer.default, aten.ger.default)
def outer(b: Builder, x: Value, y: Value) -> Any:
    x, y = b.promote(x, y)
    if x.dtype is torch.bool:
        return NotImplemented
    return b.along(x, 0, 2) * b.along(y, 1, 2)


@decomposes(aten.cross.default, aten.linalg_cross.default)
def cross(b: Builder, x: Value, y: Value, dim: int | None = -1) -> Any:
    if dim is None:
        return NotImplemented
    x, y = b.promote(x, y)
    shape = b.out.shape
    dim %= len(shape)
    x, y = b.expand(x, shape), b.expand(y, shape)

    def turned(one: Value, shift: int) -> Value:
        return b.roll(one, (shift,), (dim,))

    return turned(x, 2) * turned(y, 1) - turned(x, 1) * turned(y, 2)


# -- einsum -----------------------------------------------------------------------------------------------------------


def _letters(equation: str, operands: Any) -> tuple[list[str], str] | None:
    """The letters of each operand and of the result, an ellipsis spelt out in capitals that the equation does not
    use."""
    equation = equation.replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    free = [letter for letter in "ZYXWVUTSRQPONMLKJIHGFEDCBA" if letter not in equation]
    hidden = [operand.ndim - len(term.replace("...", "")) for term, operand in zip(terms, operands) if "..." in term]
    dots = "".join(free[: max(hidden, default=0)])
    out = [
        term.replace("...", dots[len(dots) - (operand.ndim - len(term.replace("...", ""))) :] if "..." in term else "")
        for term, operand in zip(terms, operands)
    ]
    if not arrow:
        joined = "".join(out)
        right = dots + "".join(sorted(letter for letter in set(joined) if joined.count(letter) == 1
                                      and letter not in dots))
    else:
        right = right.replace("...", dots)
    if any(len(set(term)) != len(term) or len(term) != operand.ndim for term, operand in zip(out, operands)):
        return None  # a diagonal
    return out, right


@decomposes(aten.einsum.default)
def einsum(b: Builder, equation: str, operands: Any, *, path: Any = None) -> Any:
    found = _letters(equation, operands)
    if found is None or len(operands) > 2 or len({one.dtype for one in operands}) != 1:
        return NotImplemented
    terms, result = found
    sizes: dict[str, Any] = {}
    for term, operand in zip(terms, operands):
        for letter, size in zip(term, operand.shape):
            if sizes.setdefault(letter, size) == 1:
                sizes[letter] = size
    if any(sizes[letter] != size for term, operand in zip(terms, operands) for letter,
           size in zip(term, operand.shape)):
        return NotImplemented  # broadcast of a size 1
    if len(operands) == 1:
        return _ordered(b, *_summed(b, operands[0], terms[0], result), result)
    return _contract(b, operands, terms, result, sizes)


def _summed(b: Builder, x: Value, term: str, kept: str) -> tuple[Value, str]:
    """x without the letters that are not kept, summed over."""
    gone = tuple([place for place, letter in enumerate(term) if letter not in kept])
    return b.sum(x, gone, False), "".join(letter for letter in term if letter in kept)


def _ordered(b: Builder, x: Value, term: str, wanted: str) -> Value:
    return b.permute(x, tuple([term.index(letter) for letter in wanted]))


def _contract(b: Builder, operands: Any, terms: list[str], result: str, sizes: dict[str, Any]) -> Value:
    """Two operands as one batched product: batch letters, own letters, and the letters that are summed."""
    (x, left), (y, right) = (_summed(b, operand, term, result + other) for operand, term,
                             other in zip(operands, terms, reversed(terms)))
    batch = "".join(letter for letter in left if letter in right and letter in result)
    inner = "".join(letter for letter in left if letter in right and letter not in result)
    rows = "".join(letter for letter in left if letter not in right)
    columns = "".join(letter for letter in right if letter not in left)
    p, n, k, m = (numel(tuple([sizes[letter] for letter in group])) for group in (batch, rows, inner, columns))
    x3 = b.reshape(_ordered(b, x, left, batch + rows + inner), (p, n, k))
    y3 = b.reshape(_ordered(b, y, right, batch + inner + columns), (p, k, m))
    if not inner:
        out = x3 * y3
    elif not batch:
        out = mm(b, b.reshape(x3, (n, k)), b.reshape(y3, (k, m)))
    else:
        out = bmm(b, x3, y3)
    whole = batch + rows + columns
    return _ordered(b, b.reshape(out, tuple([sizes[letter] for letter in whole])), whole, result)
