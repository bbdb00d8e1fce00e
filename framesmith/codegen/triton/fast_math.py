"""Fast arithmetic for float32 values that are rounded to halves: the machine's fast functions, and sums of one and a
function in one step.

A fast function errs by some units in the last place of float32, which is a thousandth of what rounding to a half
changes. That holds where only products and quotients lie between: they preserve the relative error, while the result of
a subtraction may be small against the error. Sums of exponentials preserve it, too.

`1 + erf(x)` and `1 + tanh(x)`, in one step, err as much as the sum, whether or not later operations may cancel. A
function of at most one errs no more than a sum with a number of its size, if everything computed from it is rounded to
halves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch

from framesmith.loops.ir import Cast, Const, Op, Param, Reduce, Scalar, Store
from framesmith.util.precision import HALF

KEEPS = frozenset(("mul", "div", "neg", "abs", "relu", "reciprocal", "sqrt", "rsqrt", "square", "where"))
BOUNDED = frozenset(("sigmoid", "tanh"))
JOINED = {"erf": "one_and_erf", "tanh": "one_and_tanh"}


@dataclass(frozen=True, slots=True)
class FastOps:
    """`ops`: the operations that may be fast. `sums`: the function and its argument, for sums of one and a function.
    `spared`: functions whose only use is such a sum."""

    ops: frozenset[Op] = frozenset()
    sums: Mapping[Op, tuple[str, Op]] = field(default_factory=dict)
    spared: frozenset[Op] = frozenset()


def fast_ops(ops: Iterable[Op], params: Mapping[str, Param]) -> FastOps:
    """Find the operations among `ops`, which are in order, that may be fast or fused with a sum."""
    exact: set[Op] = set()  # some use wants it as it is, ...
    final: set[Op] = set()  # ... or does not end in a half
    apart: set[Op] = set()  # some use is none in a sum with one
    narrow: list[Scalar] = []
    sums: dict[Op, Scalar] = {}
    for op in reversed(list(ops)):
        plain = False
        if type(op) is Scalar and op.dtype is torch.float32:
            plain = True
            narrow.append(op)
            function = _beside_one(op) if op not in final else None
            if function is not None:
                sums[op] = function
        if op not in sums:
            apart.update(op.args)
        if _rounds(op, params):
            continue
        if not plain or op in final:
            final.update(op.args)
        if op in exact or not _keeps(op):
            exact.update(op.args)
    fast = frozenset(op for op in narrow if op not in exact or (op.name in BOUNDED and op not in final))
    joined = {op: (JOINED[f.name], f.args[0]) for op, f in sums.items() if f not in apart}
    return FastOps(fast, joined, frozenset(sums[op] for op in joined))


def _rounds(op: Op, params: Mapping[str, Param]) -> bool:
    """Return whether `op` rounds its operand to a half."""
    if type(op) is Store:
        return op.mode is None and params[op.buffer].dtype in HALF
    return type(op) is Cast and op.rounding in HALF


def _keeps(op: Op) -> bool:
    """Return whether `op` preserves the relative error of its operand."""
    if type(op) is Scalar:
        return op.dtype is torch.float32 and op.name in KEEPS
    return type(op) is Reduce and op.kind == "sum" and type(op.args[0]) is Scalar and op.args[0].name == "exp"


def _beside_one(op: Scalar) -> Scalar | None:
    """Return the function if `op` is the sum of one and a function."""
    if op.name != "add":
        return None
    for one, other in (op.args, op.args[::-1]):
        if type(one) is Const and one.value == 1 and type(other) is Scalar and other.name in JOINED:
            return other
    return None
