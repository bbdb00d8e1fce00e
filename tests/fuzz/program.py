"""A whole random program: `generate(seed)` gives the text of a module with `main` and the arguments of several calls of
it."""

from __future__ import annotations

from tests.fuzz import data, definitions, expressions, statements, tensors, wide
from tests.fuzz.writer import Function, Options, Row, Writer

CALLS = 5
SIZES = ([3, 3, 3, 3, 3], [3, 3, 4, 3, 4], [3, 4, 5, 3, 4])
"""The size `n` of each call."""
PARAMETERS = ("int", "T1", "T2", "T1", "T2", "ints", "str", "idict", "tensors", "tdict", "float", "opt",
              "pair", "any", "set", "bool", "T0", "I1")
HEADER = """import collections
import contextlib
import functools
import itertools
import math
import operator

import torch

import framesmith
from tests.fuzz.prelude import EVENTS, Noted, Oops, Suppress, broken, counted, logged, note, noted, record

n = 3
"""


def generate(seed: int, options: Options) -> str:
    """The program of a seed; the same text on every machine."""
    g = Writer(seed, options, {**expressions.TABLES, **tensors.TABLES}, statements.SIMPLE)
    g.kinds, g.blocks, g.methods = statements.KINDS, statements.BLOCKS, definitions.METHODS
    header = HEADER
    for more in [*([wide] if options.wide else []), *([data] if options.data else [])]:
        g.kinds, g.blocks, g.simple = g.kinds + more.KINDS, g.blocks + more.BLOCKS, g.simple + more.SIMPLE
        for kind, table in more.TABLES.items():
            g.tables[kind] = g.tables.get(kind, []) + table
    if pure := options.data and g.chance(70):  # rather without what is no graph
        g.kinds, g.blocks, g.simple = data.KINDS, data.BLOCKS, list(data.SIMPLE)
    if options.wide:
        g.methods += wide.METHODS
        header += wide.HEADER
    for line in header.splitlines():
        g.emit(line)
    definitions.globals_(g)
    for write in g.random.choices((definitions.helper, definitions.class_, definitions.generator), (5, 3, 2),
                                  k=g.random.randint(0, 1) if pure else g.random.randint(1, 4)):
        g.emit("")
        write(g)
    _main(g)
    return "\n".join(g.lines) + "\n"


def _main(g: Writer) -> None:
    kinds = g.random.choices([*PARAMETERS, *(k for k in g.tables if k.startswith("K") for _ in range(4))],
                             k=g.random.randint(2, 5))
    parameters = [(g.name("p"), kind) for kind in kinds]
    head = [p for p, _ in parameters]
    split = g.random.randint(1, len(head)) if g.chance(30) else len(head)
    g.emit("")
    result = g.random.choice(("any", "T2", "T1", "pair", "everything", "everything"))
    with g.block(f"def main({', '.join(head[:split] + (['*'] + head[split:] if split < len(head) else []))}):",
                 Function(result)):
        g.scope.names.update(parameters)
        definitions.write_globals(g)
        for p, kind in parameters:
            if g.options.data and kind in _TENSORS and g.chance(70):
                g.emit(f"{p} = {p}.clone()")
        if g.options.data and (sized := [p for p, kind in parameters if kind in ("T1", "T2")]) and g.chance(70):
            g.emit(f"n = {sized[0]}.shape[0]")
        g.tables["everything"] = g.tables["leaf everything"] = []
        everything(g)
        for _ in range(g.random.randint(3, 8)):
            statements.statement(g, 4)
            everything(g)
        g.emit(f"return {g.expr(result)}")
    _calls(g, kinds, head, split)


def everything(g: Writer) -> None:
    """The template of a result that shows every variable so far."""
    names = [n for n in g.scope.names if n[0] in "vp"]
    g.tables["everything"] = g.tables["leaf everything"] = [Row(1, f"({''.join(n + ', ' for n in names)})")]


def _calls(g: Writer, kinds: list[str], head: list[str], split: int) -> None:
    """`arguments(call)` gives a call's arguments: some made anew, some kept from call to call, some the same object
    twice."""
    g.emit("")
    kept = {i: g.name("P") for i, kind in enumerate(kinds) if kind not in ("int", "float", "bool") and g.chance(35)}
    for i, name in kept.items():
        g.emit(f"{name} = {_argument(g, kinds[i])}")
    g.emit("")
    with g.block("def arguments(call):", Function("none")):
        g.emit("global n")
        g.emit(f"n = {g.random.choice(data.SIZES if g.options.data else SIZES)}[call]")
        g.scope.names.update({name: kinds[i] for i, name in kept.items()})
        made: list[list[str]] = []
        for call in range(CALLS):
            made.append(_call(g, kinds, kept, made))
            with g.block(f"if call == {call}:"):
                if call and g.chance(40):
                    with g.block("with contextlib.suppress(Exception):"):
                        g.emit(g.choose([r for r in statements.SIMPLE if not r.breaks and "new:" not in r.text
                                         and "=>" not in r.text], 1))
                fixed = ", ".join(made[-1][:split])
                words = ", ".join(f"{k!r}: {v}" for k, v in zip(head[split:], made[-1][split:]))
                g.emit(f"return ({fixed},), {{{words}}}")


def _call(g: Writer, kinds: list[str], kept: dict[int, str], made: list[list[str]]) -> list[str]:
    out: list[str] = []
    for i, kind in enumerate(kinds):
        twin = [j for j in range(i) if kinds[j] == kind and kind not in ("int", "float", "str", "bool")]
        if i in kept and g.chance(70):
            out.append(kept[i])
        elif made and g.chance(50):
            out.append(made[-1][i])
        elif twin and g.chance(25):
            out.append(out[g.random.choice(twin)])
        else:
            out.append(_argument(g, kind))
    return out


def _argument(g: Writer, kind: str) -> str:
    """A value of a kind for a call; a tensor may be of any layout."""
    text = g.expr(kind, 1) if kind not in ("T0", "T1", "T2") or g.chance(30) else g.random.choice(_TENSORS[kind])
    text = text.replace("SEED", str(g.random.randrange(100)))
    return f"({text}).detach().requires_grad_()" if g.options.data and kind in _TENSORS and g.chance(50) else text


_TENSORS = {
    "T0": ("torch.tensor(0.25)", "torch.arange(3.0)[1]"),
    "T1": ("torch.linspace(-1, 1, n)", "torch.linspace(-2, 1, n * 2)[::2]",
           "torch.linspace(-1, 1, n, dtype=torch.float64)",
           "torch.linspace(-1, 2, n * n).view(n, n)[:, 1]"),
    "T2": ("torch.linspace(-1, 1, n * n).view(n, n)", "torch.linspace(-1, 1, n * n).view(n, n).t()",
           "torch.linspace(0, 1, n).expand(n, n).clone()", "torch.linspace(-1, 1, 2 * n * n).view(n, 2 * n)[:, ::2]"),
}

__all__ = ["CALLS", "Options", "generate"]
