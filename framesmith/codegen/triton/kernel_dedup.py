"""Merge kernels that differ only in numbers into one kernel that takes these as arguments: layers of different sizes
share compiled code.

    x_live = i0 < 24                       x_live = i0 < 40                          x_live = i0 < n0
    v0 = tl.load(p0 + (i0 + 24*i1), ...)   v0 = tl.load(p0 + (i0 + 40*i1), ...)  ->  v0 = tl.load(p0 + (i0 + n0*i1),
                                                                                     ...)

Numbers equal in all of them stay in the text. Merged kernels have the same blocks and warps, and agree in the
properties that vectors and masks depend on: the power of two that divides a number, if it is the extent or stride of a
contiguous dimension. A loop of few rounds keeps its number of rounds. Indices are divided by arguments as the compiler
divides by constants, by multiplication (with plain divisions, batch norm kernels took a fifth longer):

    i1 = x % 24                            i1 = x % 40                            i1 = (x - (tl.umulhi(x, n0_m) >> n0_s)
                                                                                  * n0)
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from framesmith.codegen.triton.kernel import Printed, module_text
from framesmith.codegen.triton.literal_params import VECTOR, Number, numbers, replaced

MOST = 16  # arguments: a number beside each of a hundred loads is better in its instruction
HALVES = 8  # elements of two bytes that a thread moves at once


def shared(printed: Sequence[Printed], kinds: Sequence[Any] = ()) -> tuple[Printed, ...]:
    """Return `printed`, with mergeable kernels given equal texts. `kinds`: of each kernel, if only kernels of one kind
    may be merged."""
    groups: dict[Any, list[Printed]] = {}
    for kernel, kind in dict(zip(printed, kinds or [None] * len(printed), strict=True)).items():
        groups.setdefault((kind, _what_agrees(kernel)), []).append(kernel)
    merged: dict[Printed, Printed] = {}
    for group in groups.values():
        if len({kernel.text for kernel in group}) > 1:
            merged.update(_merged(group))
    return tuple([merged.get(kernel, kernel) for kernel in printed])


def _what_agrees(kernel: Printed) -> Any:
    """Return the key on which the kernels of a group agree. A kernel that takes sizes, or runs over a table, is a group
    of its own."""
    if kernel.symbols or kernel.batch or not kernel.body:
        return kernel
    most = 2 * HALVES if any(kind in ("*i1", "*i8", "*u8") for _, kind in kernel.signature) else HALVES
    found = [(n.kind, 1 if n.loose else min(n.multiple, most)) for n in numbers(kernel.body)]
    how = kernel.constants, kernel.num_warps, kernel.num_stages, kernel.divisible, kernel.asserts, kernel.vector
    skeleton = replaced(kernel.body, lambda k: "#", lambda name, steps: " ".join((name, *[sign for sign, _ in steps])))
    return skeleton, kernel.functions, kernel.signature, tuple(found), how


def _merged(group: list[Printed]) -> dict[Printed, Printed]:
    """Return the kernels of a group, each with its own arguments and the common text."""
    columns = list(zip(*[numbers(kernel.body) for kernel in group], strict=True))
    varying = list(dict.fromkeys([column for column in columns if len(set(column)) > 1]))
    if len(varying) > MOST:
        return {}
    names = {column: f"n{k}" for k, column in enumerate(varying)}
    first = group[0]

    def text(k: int) -> str:
        return names.get(columns[k]) or str(columns[k][0].value)

    body = replaced(first.body, text, lambda name,
                    steps: _divided(name, [(sign, columns[k], text(k)) for sign, k in steps], first))
    given = [(names[column] + more, kind) for column in varying for more,
             kind in _GIVEN.get(column[0].kind, [("", column[0].kind)])]
    signature = (*first.signature, *given)
    places = {name: k for k, (name, _) in enumerate(signature)}
    known = tuple([(places[names[column]], _common(column)) for column in varying if _common(column) > 1])
    kind = first.name.rpartition("_")[0]
    about = repr((body, signature, known, first.constants, first.num_warps))
    name = f"{kind}_{hashlib.sha256(about.encode()).hexdigest()[:8]}"
    whole = module_text(name, signature, first.constants, first.functions, body)
    return {
        kernel: replace(kernel, name=name, text=whole, signature=signature, multiples=known, body="",
                        numbers=tuple([number for column in varying for number in _given(column[k])]))
        for k, kernel in enumerate(group)
    }  # fmt: skip


_GIVEN = {"divisor": [("", "i32"), ("_m", "u32"), ("_s", "u32")]}
"""The arguments of a number, by its kind: suffixes of their names, and types."""


def _given(number: Number) -> list[Number]:
    """Return a number as arguments: a divisor d as d, m and s so that x // d is (x * m >> 32) >> s, for all x from 0
    below 2**31.

    Granlund and Montgomery, Division by invariant integers using multiplication (1994), theorem 4.2.
    """
    if number.kind != "divisor":
        return [number]
    by = int(number.value)
    bits = (by - 1).bit_length()
    return [Number("i32", by), Number("u32", (1 << 31 + bits) // by + 1), Number("u32", bits - 1)]


def _divided(name: str, steps: list[tuple[str, tuple[Number, ...], str]], kernel: Printed) -> str:
    """Return the index `name` of a tile, divided and reduced by numbers of the text or by arguments. A quotient by a
    multiple of n is constant over n elements, which Triton cannot infer of a product."""
    blocks = {constant[0].lower(): block for constant, block in kernel.constants}
    text, equal = name, VECTOR
    for sign, column, by in steps:
        if sign == "//" or text is name:
            equal = min(_common(column), blocks.get(name, 1))
        if by.isdigit():
            text = f"({text} {sign} {by})"
            continue
        quotient = f"(tl.umulhi({text}.to(tl.uint32), {by}_m.to(tl.uint32)) >> {by}_s)"
        if equal > 1:
            quotient = (f"tl.max_constancy({quotient}, "
                        f"[{', '.join(str(equal if dim == name else 1) for dim in blocks)}])")
        text = f"{quotient}.to(tl.int32)" if sign == "//" else f"({text} - {quotient}.to(tl.int32) * {by})"
    return text


def _common(column: tuple[Number, ...]) -> int:
    return min(n.multiple for n in column)
