"""Kernels that differ in numbers alone are one kernel, which is given what differs: layers of unequal sizes share what is compiled.

    x_live = i0 < 24                       x_live = i0 < 40                          x_live = i0 < n0
    v0 = tl.load(p0 + (i0 + 24*i1), ...)   v0 = tl.load(p0 + (i0 + 40*i1), ...)  ->  v0 = tl.load(p0 + (i0 + n0*i1), ...)

Numbers that are the same in all of them stay in the text, and so do blocks and warps, in which they do not differ. Nor do they in what
vectors and masks ask for: which powers of two the numbers are multiples of. Indices are divided by numbers of the text (by one that is
given, kernels of batch norms took a fifth longer), and a loop of few rounds keeps their number.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from framesmith.codegen.triton.kernel import Printed, module_text
from framesmith.codegen.triton.numbers import Number, numbers, replaced

MOST = 16  # arguments: a number beside each of a hundred loads is better in its instruction
HALVES = 8  # elements of two bytes that a thread moves at once


def shared(printed: Sequence[Printed], kinds: Sequence[Any] = ()) -> tuple[Printed, ...]:
    """`printed`, those that may be one with equal texts. `kinds`: of each kernel, if only those of one kind may."""
    groups: dict[Any, list[Printed]] = {}
    for kernel, kind in dict(zip(printed, kinds or [None] * len(printed), strict=True)).items():
        groups.setdefault((kind, _what_agrees(kernel)), []).append(kernel)
    merged: dict[Printed, Printed] = {}
    for group in groups.values():
        if len({kernel.text for kernel in group}) > 1:
            merged.update(_merged(group))
    return tuple([merged.get(kernel, kernel) for kernel in printed])


def _what_agrees(kernel: Printed) -> Any:
    """What kernels of a group have in common; a kernel that takes sizes already, or goes over a table, has no other beside it."""
    if kernel.symbols or kernel.batch or not kernel.body:
        return kernel
    most = 2 * HALVES if any(kind in ("*i1", "*i8", "*u8") for _, kind in kernel.signature) else HALVES
    found = [(n.kind, min(n.multiple, most)) for n in numbers(kernel.body)]
    how = kernel.constants, kernel.num_warps, kernel.num_stages, kernel.divisible, kernel.asserts, kernel.vector
    return replaced(kernel.body, lambda k: "#"), kernel.functions, kernel.signature, tuple(found), how


def _merged(group: list[Printed]) -> dict[Printed, Printed]:
    """The kernels of a group, each with the arguments of its own and the text of all."""
    columns = list(zip(*[numbers(kernel.body) for kernel in group], strict=True))
    varying = list(dict.fromkeys([column for column in columns if len(set(column)) > 1]))
    if len(varying) > MOST:
        return {}
    names = {column: f"n{k}" for k, column in enumerate(varying)}
    first = group[0]

    def text(k: int) -> str:
        return names.get(columns[k]) or str(columns[k][0].value)

    body = replaced(first.body, text)
    signature = (*first.signature, *[(names[column], column[0].kind) for column in varying])
    known = tuple([(len(first.signature) + k, _common(column)) for k, column in enumerate(varying) if _common(column) > 1])
    kind = first.name.rpartition("_")[0]
    name = f"{kind}_{hashlib.sha256(repr((body, signature, known, first.constants, first.num_warps)).encode()).hexdigest()[:8]}"
    whole = module_text(name, signature, first.constants, first.functions, body)
    return {
        kernel: replace(kernel, name=name, text=whole, signature=signature, multiples=known, body="",
                        numbers=tuple([column[k] for column in varying]))
        for k, kernel in enumerate(group)
    }  # fmt: skip


def _common(column: tuple[Number, ...]) -> int:
    return min(n.multiple for n in column)


__all__ = ["shared"]
