"""Batches: launches of kernels that differ in the length of their loop alone, such as the updates of all parameters of
a model, become rows of one kernel over a table.

A launch moves up to the batch of its kind if nothing between accesses its outputs, or writes its inputs. Only launches
whose outputs are live during all of the program, or small, are moved, so lifetimes do not grow.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from framesmith.loops.ir import (
    EXTENT,
    Axis,
    Batch,
    Bitcast,
    Cast,
    Const,
    Kernel,
    Launch,
    Load,
    Loop,
    Op,
    Origin,
    Scalar,
    Step,
    Store,
)
from framesmith.loops.nest import Storage
from framesmith.loops.text import kernel_text
from framesmith.loops.uses import uses
from framesmith.schedule.memory import lasts
from framesmith.symbolic.expr import as_expr

_PLAIN = frozenset({Const, Scalar, Cast, Bitcast, Load, Store})


@dataclass(slots=True)
class _Slot:
    """A place in the new order: one step, or the launches of a batch. `size`: elements of each launch's loop (1
    without)."""

    steps: list[Step]
    kernel: Kernel | None = None
    sizes: list[int] = field(default_factory=list)

    def step(self) -> Step:
        if len(self.steps) == 1 or self.kernel is None:
            return self.steps[0]
        launches = [s for s in self.steps if type(s) is Launch]
        origins: dict[Origin, None] = dict.fromkeys(o for s in launches for o in s.origins)
        work = sum(s.kernel.work.const for s in launches)
        return Batch(self.kernel, tuple([s.args for s in launches]), tuple(self.sizes), work, tuple(origins))


def batched(steps: Sequence[Step], storages: dict[str, Storage], little: int) -> list[Step]:
    """Return the steps of a program, before memory is planned, with launches batched. `little`: bytes of scratch memory
    that may live longer."""
    slots: list[_Slot] = []
    open_: dict[str, int] = {}
    written: dict[str, int] = {}
    touched: dict[str, int] = {}
    for step in steps:
        reads, writes = ({storages[n].base or n for n in names} for names in uses(step))
        earliest = max([*(written.get(n, -1) for n in reads), *(touched.get(n, -1) for n in writes)], default=-1) + 1
        found = _row(step) if type(step) is Launch and all(lasts(storages[n], little) for n in writes) else None
        at = len(slots)
        if found is None:
            slots.append(_Slot([step]))
        else:
            kernel, size = found
            key = kernel_text(kernel)
            at = open_.get(key, -1)
            if at < earliest:
                at = open_[key] = len(slots)
                slots.append(_Slot([], kernel))
            slots[at].steps.append(step)
            slots[at].sizes.append(size)
        for n in writes:
            written[n] = max(at, written.get(n, -1))
        for n in (*reads, *writes):
            touched[n] = max(at, touched.get(n, -1))
    return [slot.step() for slot in slots]


def kernels_of(steps: Iterable[Step]) -> list[Kernel]:
    """Return the kernels that steps launch, each once."""
    return list(dict.fromkeys(s.kernel for s in steps if type(s) is Launch or type(s) is Batch))


def _row(step: Launch) -> tuple[Kernel, int] | None:
    """Return the launch's kernel for any length of its loop, and the length; None if it cannot be batched."""
    kernel = step.kernel
    if (kernel.outer or kernel.locals or kernel.symbols or kernel.tile is not None or not kernel.work.is_const
        or not kernel.body):
        return None
    *head, last = kernel.body
    if not all(type(op) in _PLAIN for op in head):
        return None
    if type(last) is not Loop:
        return (kernel, 1) if type(last) in _PLAIN else None
    symbol, extent = last.axis.symbol, last.axis.extent
    if last.reduce or not last.vector or not extent.is_const or not all(type(op) in _PLAIN for op in last.body):
        return None
    if any(type(op) is Store and (op.mode is not None or op.index.coeff(symbol) != 1) for op in last.body):
        return None
    if any(type(op) is Store for op in head) or not all(_is_linear(op, last)  # type: ignore[arg-type]
                                                        for op in last.body):
        return None
    loop = replace(last, axis=Axis(symbol, EXTENT))
    each = -(-kernel.work.const // max(extent.const, 1))
    return replace(kernel, symbols=(EXTENT,), body=(*head, loop), work=EXTENT * each,
                   bytes=EXTENT * as_expr(_bytes(kernel))), extent.const


def _is_linear(op: Op, loop: Loop) -> bool:
    """Return whether an access is linear in the loop's index, with a constant offset."""
    if type(op) is not Load and type(op) is not Store:
        return True
    index, symbol = op.index, loop.axis.symbol
    each = index.coeff(symbol)
    return each is not None and (index - each * symbol).is_const


def _bytes(kernel: Kernel) -> int:
    return sum(p.dtype.itemsize * (2 if p.mode == "rw" else 1) for p in kernel.params)
