"""Iterators and generators -> statements of residual code that make them again, where they stand."""

from __future__ import annotations

from types import CodeType
from typing import Any

from framesmith import _C
from framesmith.util.errors import Unsupported

from . import trackers as t
from .leaving import Parts, function_text, parts
from .origins import origin
from .peeking import advance
from .resume import cell_names, leading, suspended
from .stopping import StopAt

OURS = frozenset({"framesmith.capture.polyfills.iterators", "framesmith.capture.polyfills.functions"})
"""Modules whose generators and objects stand for others."""


def sequence_iterator(rb: Any, x: t.SeqIter) -> str:
    """Over the very list or tuple, so that later changes of a list are seen."""
    kind = x.sequence.kind
    back = isinstance(x, t.Backward)
    make = reversed if back and kind is tuple else kind.__reversed__ if back else kind.__iter__
    if x.index < 0:
        return rb.temp(f"{rb.hold(make)}({kind()!r})")
    name = rb.temp(f"{rb.hold(make)}({rb.value(x.owner or x.sequence)})")
    if x.index or back:
        rb.after.append(f"{name}.__setstate__({x.index})")  # a list that is still to grow would not let it stand behind its end
    return name


def constant_iterator(rb: Any, x: t.Walk) -> str:
    """Over the same constant."""
    return _advanced(rb, rb.temp(f"{rb.hold(x.make)}({rb.value(x.of)})"), x.index)


def checked_iterator(rb: Any, x: t.CheckedIter) -> str:
    """Over the very container: it goes on to see that this changes."""
    over = x.owner or x.over
    if x.index < 0:
        empty = f"{rb.hold(x.way.kind)}()"
        return _advanced(rb, _walking(rb, x.way, empty if x.way.outer is None else f"{rb.hold(x.way.outer)}({empty})"), 1)
    if x.changed or id(x.over) in rb.cx.mutated:
        raise Unsupported(f"an iterator over a {x.way.kind.__name__} that was changed lives across the end of captured code")
    return _advanced(rb, _walking(rb, x.way, rb.value(over)), x.index)


def _walking(rb: Any, way: t.Way, text: str) -> str:
    for step in way.steps:
        text = f"{rb.hold(step)}({text})"
    return rb.temp(text)


def _advanced(rb: Any, name: str, n: int) -> str:
    if n:
        rb.emit(f"{rb.hold(advance)}({name}, {n})")
    return name


def fixed_iterator(rb: Any, x: t.Fixed) -> str:
    raise Unsupported(f"an iterator of {x.cls.__name__} lives across the end of captured code")


def values_iterator(rb: Any, x: t.Iter) -> str:
    """Over what is left to give."""
    return rb.temp(f"{rb.hold(iter)}([{', '.join(rb.values(x.rest(rb.cx)))}])")


def outside_iterator(rb: Any, x: t.Outside) -> str:
    """The iterator itself; `effects` advances it."""
    return rb.temp(rb.source(x.source))


def calling_iterator(rb: Any, x: t.Until) -> str:
    """Of the same function; one that has come to its end calls none."""
    if x.fn is None:
        return _advanced(rb, rb.temp(f"{rb.hold(iter)}({rb.hold(int)}, 0)"), 1)
    return rb.temp(f"{rb.hold(iter)}({rb.value(x.fn)}, {rb.value(x.sentinel)})")


def lazy_iterator(rb: Any, x: t.Lazy) -> str:
    """Made anew of what it reads from."""
    if x.parts is None:
        raise StopAt(f"an iterator of {x.cls.__name__} lives across the end of captured code", x.stop)
    keywords = [f"{k}={rb.value(v)}" for k, v in x.keywords.items()]
    return rb.temp(f"{rb.hold(x.made_by or x.cls)}({', '.join([*rb.values(x.parts), *keywords, *x.options])})")


def generator(rb: Any, x: t.Generator) -> str:
    """A generator that waits at the same instruction."""
    frame = x.frame
    if frame.globals.get("__name__") in OURS:
        raise Unsupported(f"an iterator of {frame.fn.name} lives across the end of captured code")
    if x.done:
        return rb.temp(f"{rb.hold(_finished)}()")
    start = next(i for i, ins in enumerate(frame.dec.instrs) if ins.name == "RETURN_GENERATOR") + 2
    code, at = origin(frame.code, frame.ip if x.started else start)
    p = parts(rb, frame, code, at, frame.stack if x.started else [], seen=True)
    first = leading(code)
    names = tuple(n for n in p.names if n != first)
    args = p.args if first is None else _led(p, code, first)
    made = suspended(code, at, p.layout, names, x.started)
    name = rb.temp(f"{function_text(rb, frame, made, p.cells)}({', '.join(args)})")
    if x.started:
        rb.emit(f"{rb.hold(next)}({name})")
    return name


def _led(p: Parts, code: CodeType, first: str) -> list[str]:
    """The arguments of a suspended generator whose first one leads."""
    order = cell_names(code)
    if first in order:
        return [f"{p.cells[order.index(first)]}.cell_contents", *p.args]
    if first not in p.names:
        return ["None", *p.args]
    at = len(p.args) - len(p.names) + p.names.index(first)
    return [p.args[at], *p.args[:at], *p.args[at + 1:]]


def _nothing() -> Any:
    yield from ()


def _finished() -> Any:
    made = _nothing()
    made.close()
    return made


_C.skip_code(_finished.__code__)
