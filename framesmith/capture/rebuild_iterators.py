"""Iterators and generators -> statements of residual code that rebuild them at their positions."""

from __future__ import annotations

from types import CodeType
from typing import Any

from framesmith import _C
from framesmith.util.errors import Unsupported

from . import trackers as t
from .break_points import StopAt
from .frame_state import Parts, function_text, parts
from .iterator_lookahead import advance
from .origins import origin
from .resume import cell_names, leading, suspended


def sequence_iterator(rebuilder: Any, x: t.SeqIter) -> str:
    """Rebuild an iterator over the same list or tuple, so that it sees later changes of a list."""
    kind = x.sequence.kind
    back = isinstance(x, t.Backward)
    make = reversed if back and kind is tuple else kind.__reversed__ if back else kind.__iter__
    if x.index < 0:
        return rebuilder.temp(f"{rebuilder.hold(make)}({kind()!r})")
    name = rebuilder.temp(f"{rebuilder.hold(make)}({rebuilder.value(x.owner or x.sequence)})")
    if x.index or back:
        # a list that is still to grow would not let it stand behind its end
        rebuilder.after.append(f"{name}.__setstate__({x.index})")
    return name


def constant_iterator(rebuilder: Any, x: t.Walk) -> str:
    """Rebuild an iterator over the same constant."""
    return _advanced(rebuilder, rebuilder.temp(f"{rebuilder.hold(x.make)}({rebuilder.value(x.of)})"), x.index)


def range_iterator(rebuilder: Any, x: t.RangeIterator) -> str:
    """Rebuild an iterator over the rest of a range."""
    start, stop = map(rebuilder.value, x.bounds(rebuilder.tracer))
    return rebuilder.temp(f"{rebuilder.hold(iter)}({rebuilder.hold(range)}({start}, {stop}, {x.plan.step}))")


def checked_iterator(rebuilder: Any, x: t.CheckedIter) -> str:
    """Rebuild an iterator over the same container, so that it detects later changes."""
    over = x.owner or x.over
    if x.index < 0:
        empty = f"{rebuilder.hold(x.way.kind)}()"
        return _advanced(rebuilder, _walking(rebuilder, x.way,
                                             empty if x.way.outer is None
                                             else f"{rebuilder.hold(x.way.outer)}({empty})"), 1)
    if x.changed or id(x.over) in rebuilder.tracer.mutated:
        raise Unsupported(f"an iterator over a {x.way.kind.__name__} that was changed lives across the end of captured "
                          "code")
    return _advanced(rebuilder, _walking(rebuilder, x.way, rebuilder.value(over)), x.index)


def _walking(rebuilder: Any, way: t.Way, text: str) -> str:
    for step in way.steps:
        text = f"{rebuilder.hold(step)}({text})"
    return rebuilder.temp(text)


def _advanced(rebuilder: Any, name: str, n: int) -> str:
    if n:
        rebuilder.emit(f"{rebuilder.hold(advance)}({name}, {n})")
    return name


def values_iterator(rebuilder: Any, x: t.Iter) -> str:
    """Rebuild an iterator over the remaining values."""
    return rebuilder.temp(f"{rebuilder.hold(iter)}([{', '.join(rebuilder.values(x.rest(rebuilder.tracer)))}])")


def outside_iterator(rebuilder: Any, x: t.Outside) -> str:
    """Return the iterator itself; `effects` advances it."""
    return rebuilder.temp(rebuilder.source(x.source))


def calling_iterator(rebuilder: Any, x: t.Until) -> str:
    """Rebuild a calling iterator of the same function; one at its end calls none."""
    if x.fn is None:
        return _advanced(rebuilder, rebuilder.temp(f"{rebuilder.hold(iter)}({rebuilder.hold(int)}, 0)"), 1)
    return rebuilder.temp(f"{rebuilder.hold(iter)}({rebuilder.value(x.fn)}, {rebuilder.value(x.sentinel)})")


def lazy_iterator(rebuilder: Any, x: t.Lazy) -> str:
    """Rebuild an iterator from those that it reads."""
    if x.parts is None:
        raise StopAt(f"an iterator of {x.cls.__name__} lives across the end of captured code", x.stop)
    keywords = [f"{k}={rebuilder.value(v)}" for k, v in x.keywords.items()]
    return rebuilder.temp(
        f"{rebuilder.hold(x.made_by or x.cls)}({', '.join([*rebuilder.values(x.parts), *keywords, *x.options])})")


def generator(rebuilder: Any, x: t.Generator) -> str:
    """Rebuild a generator, suspended at the same instruction."""
    frame = x.frame
    if x.done:
        return rebuilder.temp(f"{rebuilder.hold(_finished)}()")
    start = next(i for i, ins in enumerate(frame.dec.instrs) if ins.name == "RETURN_GENERATOR") + 2
    code, at = origin(frame.code, frame.ip if x.started else start)
    p = parts(rebuilder, frame, code, at, frame.stack if x.started else [], seen=True)
    first = leading(code)
    names = tuple(n for n in p.names if n != first)
    args = p.args if first is None else _led(p, code, first)
    made = suspended(code, at, p.layout, names, x.started)
    name = rebuilder.temp(f"{function_text(rebuilder, frame, made, p.cells)}({', '.join(args)})")
    if x.started:
        rebuilder.emit(f"{rebuilder.hold(next)}({name})")
    return name


def _led(p: Parts, code: CodeType, first: str) -> list[str]:
    """Return the arguments of a suspended generator, its leading one first."""
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
