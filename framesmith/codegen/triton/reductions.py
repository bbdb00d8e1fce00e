"""Reductions over the row: of a tile that holds all of it, or into accumulators over its parts."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from framesmith.codegen.triton.index import fits
from framesmith.codegen.triton.scalars import cast_text
from framesmith.codegen.triton.state import NONE, Dims, State
from framesmith.codegen.triton.statements import STATEMENTS
from framesmith.codegen.triton.types import TypeRow, type_row
from framesmith.loops.ir import Index, Op, Part, Reduce

ROW: Dims = frozenset("r")
LAST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Fold:
    """A reduction with a neutral element: `step` combines two values, `function` is its name among `functions`."""

    neutral: str
    step: str
    function: str


FOLDS: dict[str, Fold] = {
    "sum": Fold("0", "{} + {}", ""),
    "prod": Fold("1", "{} * {}", "product"),
    "max": Fold("{low}", "tl.maximum({}, {})", "greater"),
    "min": Fold("{high}", "tl.minimum({}, {})", "lesser"),
    "any": Fold("False", "{} | {}", "either"),
    "all": Fold("True", "{} & {}", "both"),
}
# For floats these propagate NaN.
FLOAT_FOLDS = {
    "max": Fold("{low}", "greater_or_nan({}, {})", "greater_or_nan"),
    "min": Fold("{high}", "lesser_or_nan({}, {})", "lesser_or_nan"),
}
BEST = {"argmax": ("greatest_at", "low"), "argmin": ("least_at", "high")}
NEXT = {"argmax": "greatest_or_next", "argmin": "least_or_next"}


def fold_of(op: Reduce) -> Fold | None:
    """Return the row of `op`; None for reductions with a state of several values."""
    return (FLOAT_FOLDS.get(op.kind) if op.dtype.is_floating_point else None) or FOLDS.get(op.kind)


def _neutral(fold: Fold, row: TypeRow) -> str:
    return fold.neutral.format(low=row.low, high=row.high)


def axis_text(s: State) -> int:
    """Return the number of the row's dimension."""
    return s.active.index("r")


def keep_text(s: State) -> str:
    """Return the argument that keeps the dimensions of a reduced tile."""
    return ", keep_dims=True" if len(s.active) > 1 else ""


def spread(s: State, op: Op, dims: Dims = NONE) -> str:
    """Return the value of `op` broadcast along the row's dimension and `dims`."""
    dims = dims | s.dims_of(op) | ROW
    return s.text(op) if s.dims_of(op) == dims else f"tl.broadcast_to({s.whole(op)}, {s.shape(dims)})"


def _result_dims(s: State, op: Reduce) -> Dims:
    return s.dims_of(*op.args) - ROW


# ------------------------------------------------------------------------------------------------------ of a whole tile


def reduce_tile(s: State, op: Reduce) -> None:
    """Print `op` on a tile that holds the whole row."""
    dims = _result_dims(s, op)
    fold = fold_of(op)
    live = s.live.get("r")
    if fold is not None:
        value = spread(s, op.args[0])
        if live:
            value = f"tl.where({live}, {value}, {_neutral(fold, type_row(op.dtype))})"
        s.define(op, dims, _folded(s, op, fold, value))
        return
    if op.kind == "welford":
        _two_passes(s, op, dims, live)
        return
    function, worst = BEST[op.kind]
    value, at = (spread(s, a, dims) for a in op.args)
    if live:
        value = f"tl.where({live}, {value}, {getattr(type_row(op.args[0].dtype), worst)})"
        at = f"tl.where({live}, {at}, {LAST})"
    _pair(s, op, dims, function, value, at)


def _folded(s: State, op: Reduce, fold: Fold, value: str) -> str:
    """Return the combination of all elements along the row, in the type of the reduction."""
    if not fold.function:
        text = f"tl.sum({value}, {axis_text(s)}{keep_text(s)})"
        narrow = not op.dtype.is_floating_point and op.dtype.itemsize < 4
        return cast_text(text, torch.int32, op.dtype) if narrow else text
    s.functions.add(fold.function)
    return f"tl.reduce({value}, {axis_text(s)}, {fold.function}{keep_text(s)})"


def _pair(s: State, op: Reduce, dims: Dims, function: str, value: str, at: str) -> None:
    s.functions.add(function)
    s.dims[op] = dims
    name = s.name(op)
    s.out.line(f"{name}_best, {name} = tl.reduce(({value}, {at}), {axis_text(s)}, {function}{keep_text(s)})")


def _two_passes(s: State, op: Reduce, dims: Dims, live: str | None) -> None:
    """Print the mean, and then the sum of squared deviations from it."""
    assert s.form.row is not None
    value, count = spread(s, op.args[0]), s.extent(s.form.row)
    s.dims[op] = dims
    name, kind = s.name(op), type_row(op.dtype).name
    s.out.line(f"{name}_n = tl.full([], {count}, {kind})" if s.form.row.extent.is_const
               else f"{name}_n = {count}.to({kind})")
    held = f"tl.where({live}, {value}, 0)" if live else value
    s.out.line(f"{name} = tl.sum({held}, {axis_text(s)}{keep_text(s)}) / {name}_n")
    away = f"tl.where({live}, {value} - {name}, 0)" if live else f"{value} - {name}"
    s.out.line(f"{name}_d = {away}")
    s.out.line(f"{name}_m2 = tl.sum({name}_d * {name}_d, {axis_text(s)}{keep_text(s)})")


# ------------------------------------------------------------------------------------------------------ part after part


def declare(s: State, op: Reduce) -> None:
    """Print the accumulators of `op`, before the loop over its row."""
    name, kind = s.name(op), type_row(op.dtype).name
    s.dims[op] = frozenset(a for a in s.active if a != "r")
    shape = s.shape(s.active)
    fold = fold_of(op)
    if fold is not None:
        states = [("", _neutral(fold, type_row(op.dtype)), kind)]
    elif op.kind == "welford":
        states = [(part, "0", kind) for part in (("", "_m2") if s.aligned is None else ("", "_m2", "_n"))]
    else:
        row, (place, nowhere) = type_row(op.args[0].dtype), _places(s, op)
        states = [("_best", getattr(row, BEST[op.kind][1]), row.name), ("", str(nowhere), place)]
    for part, start, t in states:
        s.out.line(f"{name}{part}s = tl.full({shape}, {start}, {t})")


def accumulate(s: State, op: Reduce) -> None:
    """Print the update of `op` by one part of its row."""
    name, live = s.values[op], s.live.get("r")
    fold = fold_of(op)
    value = spread(s, op.args[0])
    if fold is not None:
        s.functions.add(fold.function)
        step = fold.step.format(f"{name}s", value)
        s.out.line(f"{name}s = {f'tl.where({live}, {step}, {name}s)' if live else step}")
        return
    if op.kind == "welford":
        _welford_step(s, op, name, value, live)
        return
    function, worst = BEST[op.kind]
    place, nowhere = _places(s, op)
    at = f"{spread(s, op.args[1])}.to({place})"
    if live:
        value = f"tl.where({live}, {value}, {getattr(type_row(op.args[0].dtype), worst)})"
        step = f"{function}({name}_bests, {name}s, {value}, tl.where({live}, {at}, {nowhere}))"
    else:
        function = NEXT[op.kind]
        step = f"{function}({name}_bests, {name}s, {value}, {at}, {nowhere})"
    s.functions.add(function)
    s.out.line(f"{name}_bests, {name}s = {step}")


def _places(s: State, op: Reduce) -> tuple[str, int]:
    """Return the type of positions in a row, and a number beyond all of them."""
    at = op.args[1]
    near = type(at) is Index and not s.wide and fits(at.expr) is not False
    return ("tl.int32", 2**31 - 1) if near else (type_row(op.dtype).name, LAST)


def _welford_step(s: State, op: Reduce, name: str, value: str, live: str | None) -> None:
    """Print Welford's update (1962) of the accumulators by one element each; all have seen equally many, so one
    division suffices."""
    kind = type_row(op.dtype).name
    if s.aligned is None or not live:
        s.out.line(f"{name}_n = tl.full([], start // RBLOCK + 1, {kind})")
    if s.aligned is not None:
        whole = f"= tl.full({s.shape(s.active)}, 0, {kind}) + {name}_n"
        s.out.line(f"{name}_ns {f'+= tl.where({live}, 1.0, 0.0)' if live else whole}")
    count = f"tl.maximum({name}_ns, 1.0)" if s.aligned is not None and live else f"{name}_n"
    s.out.line(f"{name}_part = 1.0 / {count}")
    s.out.line(f"{name}_d = {value} - {name}s")
    s.out.line(f"{name}s += {_if(live, f'{name}_d * {name}_part')}")
    s.out.line(f"{name}_m2s += {_if(live, f'{name}_d * ({value} - {name}s)')}")


def _if(live: str | None, value: str) -> str:
    return f"tl.where({live}, {value}, 0.0)" if live else value


def finish(s: State, op: Reduce) -> None:
    """Print the results of `op`, after the loop."""
    name = s.values[op]
    fold = fold_of(op)
    if fold is not None:
        s.out.line(f"{name} = {_folded(s, op, fold, f'{name}s')}")
    elif op.kind == "welford":
        _together(s, op, name)
    else:
        function = BEST[op.kind][0]
        s.functions.add(function)
        s.out.line(f"{name}_best, {name} = tl.reduce(({name}_bests, {name}s), {axis_text(s)}, "
                   f"{function}{keep_text(s)})")
        s.out.line(f"{name} = {name}.to({type_row(op.dtype).name})")


def _together(s: State, op: Reduce, name: str) -> None:
    """Print the mean of the accumulators' means, weighted by their counts, and the squares within them and between
    them."""
    row, kind, tail = s.form.row, type_row(op.dtype).name, f"{axis_text(s)}{keep_text(s)}"
    assert row is not None
    extent = s.extent(row)
    if s.aligned is None and s.covers(row):
        s.out.line(f"{name}_ns = tl.full([], {extent} // RBLOCK, {kind})")
    elif s.aligned is None:
        s.out.line(f"{name}_ns = (({extent} + (RBLOCK - 1) - tl.arange(0, RBLOCK){s.slots('r')}) // RBLOCK).to({kind})")
    s.out.line(f"{name}_n = tl.full([], {extent}, {kind})" if row.extent.is_const
               else f"{name}_n = ({extent}).to({kind})")
    s.out.line(f"{name} = tl.sum({name}s * {name}_ns, {tail}) / {name}_n")
    s.out.line(f"{name}_d = {name}s - {name}")
    s.out.line(f"{name}_m2 = tl.sum({name}_m2s + {name}_d * {name}_d * {name}_ns, {tail})")


def _part(s: State, op: Part) -> None:
    (of,) = op.args
    suffix = ("", "_m2", "_n")[op.part] if of.kind == "welford" else ("", "_best")[op.part]
    s.values[op], s.dims[op] = s.values[of] + suffix, s.dims[of]


STATEMENTS[Part] = _part
STATEMENTS[Reduce] = reduce_tile
