"""Sizes and numbers that are computed of them."""

from __future__ import annotations

import builtins
import math
import operator
from functools import partial
from typing import Any

import torch

from framesmith.export.sizes import SYM_SIZE
from framesmith.onnx.emitter import Emitter, Value
from framesmith.onnx.table import aten, row

size_row = partial(row, "sizes")
OF_INTS = ("Neg", "Abs")


def _number(m: Emitter, x: Any, kind: type) -> Value:
    """Return an operand as a vector of one element."""
    dtype = torch.int64 if kind is int else torch.float64
    if not isinstance(x, Value):
        return m.constant([x], dtype)
    return x if x.meta["number"] is kind else m.cast_number(x, dtype)


def _made(value: Value, kind: type) -> Value:
    value.meta["number"] = kind
    return value


def _kind(*xs: Any) -> type:
    return int if all((x.meta["number"] if isinstance(x, Value) else type(x)) is int for x in xs) else float


@size_row(SYM_SIZE)
def _size(m: Emitter, x: Value, dim: int) -> Any:
    return m.size(x, dim)


@size_row(aten.sym_numel.default)
def _count(m: Emitter, x: Value) -> Value:
    return _made(m("Reshape", m("Size", x), m.ints([1])), int)


def _binary(op: str) -> Any:
    def emit(m: Emitter, a: Any, b: Any) -> Value:
        kind = _kind(a, b)
        return _made(m(op, _number(m, a, kind), _number(m, b, kind)), kind)

    return emit


for _target, _op in ((operator.add, "Add"), (operator.sub, "Sub"), (operator.mul, "Mul"), (torch.sym_min, "Min"),
                     (torch.sym_max, "Max"), (builtins.min, "Min"), (builtins.max, "Max"), (operator.pow, "Pow")):
    size_row(_target)(_binary(_op))


@size_row(operator.mod)
def _mod(m: Emitter, a: Any, b: Any) -> Value:
    return _made(m("Mod", _number(m, a, int), _number(m, b, int)), int)


@size_row(operator.floordiv)
def _floor_quotient(m: Emitter, a: Any, b: Any) -> Value:
    a, b = _number(m, a, int), _number(m, b, int)
    return _made(m("Div", m("Sub", a, m("Mod", a, b)), b), int)  # Div truncates; Mod has the sign of b


@size_row(operator.truediv)
def _quotient(m: Emitter, a: Any, b: Any) -> Value:
    return _made(m("Div", _number(m, a, float), _number(m, b, float)), float)


def _unary(op: str) -> Any:
    def emit(m: Emitter, a: Any) -> Value:
        kind = _kind(a) if op in OF_INTS else float
        return _made(m(op, _number(m, a, kind)), kind)

    return emit


_UNARY: tuple[tuple[Any, str], ...] = (
    (operator.neg, "Neg"), (builtins.abs, "Abs"), (math.sqrt, "Sqrt"), (math.exp, "Exp"), (math.log, "Log"),
    (math.cos, "Cos"), (math.sin, "Sin"), (math.tan, "Tan"), (math.tanh, "Tanh"))
for _function, _op in _UNARY:
    size_row(_function)(_unary(_op))


@size_row(math.log2)
def _log2(m: Emitter, a: Any) -> Value:
    return _made(m("Div", m("Log", _number(m, a, float)), m.constant(math.log(2), torch.float64)), float)
