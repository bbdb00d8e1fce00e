"""Lifetimes of objects from outside. Plain Python runs finalizers and clears weak references at the instruction that
drops the last reference; capture holds everything until it ends. So capture ends where a local that may be such a last
reference is dropped, and before a weak reference is read that may have died by then; and a continuation receives the
objects that plain Python would still hold.
"""

from __future__ import annotations

import collections
import contextlib
import gc
import inspect
import itertools
import weakref
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, GeneratorType, ModuleType
from typing import Any

import torch

from framesmith.util.errors import Unsupported

from . import trackers as t
from .bridges import STAYS
from .bytecode.liveness import liveness
from .frame import Frame

_ATOMS = (torch.Tensor, torch.nn.Module, type, ModuleType, CodeType)
_VALUES = frozenset({str, bytes, int, float, complex, bool, type(None), type(Ellipsis), torch.dtype, torch.device,
                     torch.Size})
_CONTAINERS = frozenset({list, dict, set, collections.deque, collections.OrderedDict, collections.defaultdict})
_ROOM = 128


def _is_atom(x: Any) -> bool:
    """Return whether `x` is assumed to be alive elsewhere, or to hold nothing: a C function belongs to its module or
    class. (`isinstance` would call code of the object.)"""
    if type(x) is BuiltinFunctionType:
        x = x.__self__
    return type(x) in _VALUES or issubclass(type(x), _ATOMS)


def _reached(value: Any, depth: int) -> Iterator[Any]:
    """Yield `value` and the objects that it holds, down to a depth."""
    work = [(value, depth)]
    while work:
        x, depth = work.pop()
        if not _is_atom(x):
            yield x
            if depth:
                work += [(y, depth - 1) for y in _referents(x)]


def _referents(x: Any) -> list[Any]:
    """Return the objects that an object holds; of a function, those that are its own."""
    if type(x) is FunctionType:
        return [*(x.__closure__ or ()), *(x.__defaults__ or ()), *(x.__kwdefaults__ or {}).values(), *vars(x).values()]
    return gc.get_referents(x)[:_ROOM]


def is_observable(value: Any) -> bool:
    """Return whether the death of `value`, or of an object that it holds, is observable: by `__del__`, or by a weak
    reference's callback."""
    return any(_speaks(x) for x in itertools.islice(_reached(value, 2), _ROOM))


def _speaks(x: Any) -> bool:
    if hasattr(type(x), "__del__") or type(x) is GeneratorType and _cleans_up(x):
        return True
    return weakref.getweakrefcount(x) > 0 and any(
        issubclass(type(r), weakref.ReferenceType) and r.__callback__ is not None and not _is_guards(r.__callback__)
        for r in weakref.getweakrefs(x))


def _is_guards(callback: Any) -> bool:
    """Return whether a weak reference is one by which guards learn of a death."""
    return type(callback) is BuiltinFunctionType and callback.__module__ == "framesmith._C"


def _cleans_up(x: GeneratorType[Any, Any, Any]) -> bool:
    """Return whether closing a generator may run code of its."""
    return bool(x.gi_code.co_exceptiontable) and inspect.getgeneratorstate(x) == inspect.GEN_SUSPENDED


def _may_hold(value: Any, target: Any) -> bool:
    reached = list(itertools.islice(_reached(value, 4), _ROOM))
    return len(reached) == _ROOM or any(x is target for x in reached)


# --- locals that are dropped ------------------------------------------------------------------------------------------
def watch(frame: Frame) -> None:
    """Let the instructions of the root frame that drop an argument whose death is is_observable end the graph."""
    tracer = frame.tracer
    watched = [value for _, value in tracer.pending.values() if is_observable(value)]
    if not watched:
        return
    ops = list(frame.ops)
    for i, ins in enumerate(frame.dec.instrs):
        if ins.name in _DROPS:
            ops[i] = (_dropping(ops[i][0], _DROPS[ins.name], watched), ops[i][1])
    frame.ops = ops


def _local(frame: Frame, slot: int) -> t.Tracker | None:
    return frame.tracer.local(frame, slot)  # type: ignore[no-any-return]


_DROPS: dict[str, Callable[[Frame, Any], t.Tracker | None]] = {
    "STORE_FAST": _local, "DELETE_FAST": _local, "POP_TOP": lambda frame, _: frame.stack[-1],
}


def _dropping(handler: Callable[[Frame, Any], Any], what: Callable[[Frame, Any], t.Tracker | None],
              watched: list[Any]) -> Any:
    def drop(frame: Frame, arg: Any) -> None:
        old = what(frame, arg)
        handler(frame, arg)
        value = t.held(old)
        if any(value is w for w in watched) and not any(v is old for v in (*frame.locals, *frame.stack)):
            frame.tracer.stop_after(
                Unsupported(f"{old.describe()} is dropped, and its death is observable"))  # type: ignore[union-attr]
    return drop


_ARRANGES = STAYS | {"PUSH_NULL", "LOAD_FAST", "LOAD_CONST", "KW_NAMES", "PRECALL", "NOP", "PUSH_EXC_INFO",
                     "POP_EXCEPT",
                      "JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"}


def cannot_be_bridged(frame: Frame) -> bool:
    """Return whether no bridge can run the frame's present instruction, or none is needed: it only arranges the
    stack."""
    return frame.dec.instrs[frame.ip - 1].name in _ARRANGES


def check_mutation(x: t.Tracker) -> None:
    """Refuse to change a container from outside that holds an object whose death is observable."""
    value = x.value  # type: ignore[attr-defined]
    if type(value) in _CONTAINERS and any(_speaks(y) for y in itertools.islice(_reached(value, 1), _ROOM)):
        raise Unsupported(f"a change of {x.describe()}, which may drop an object whose death is observable")


# --- weak references that are read ------------------------------------------------------------------------------------
def may_have_died(tracer: Any, target: Any) -> bool:
    """Return whether an object that the frame has dropped or changed so far may have held `target`."""
    if _is_atom(target):
        return False
    here = {id(t.held(v)) for f in tracer.frames for v in (*f.locals, *f.stack)}
    now = tracer.frames[0].locals
    unread = {slot for slot in tracer.pending if now[slot] is None}
    dropped = [value for slot, value in tracer.arguments.items() if slot not in unread and id(value) not in here]
    changed = [x.value for x in tracer.mutated.values()
               if not isinstance(x, (t.Tensor, t.Module)) and getattr(x, "value", target) is not target]
    return any(_may_hold(value, target) for value in [*dropped, *changed, *_cells(tracer)])


def _cells(tracer: Any) -> Iterator[Any]:
    """Yield the real contents of the cells that the frame has stored to."""
    for x in tracer.mutated.values():
        if isinstance(x, t.Cell) and x.real_cell is not None:
            with contextlib.suppress(ValueError):
                yield x.real_cell.cell_contents


# --- what a frame that is left still holds ----------------------------------------------------------------------------
def kept_alive(rebuilder: Any, frame: Frame, code: CodeType, index: int) -> dict[str, str]:
    """Return the locals that are not read after instruction `index`, but keep alive an object that exists elsewhere or
    whose death is observable."""
    tracer = rebuilder.tracer
    out: dict[str, str] = {}
    dead = {*code.co_varnames} - liveness(code, index) - {*code.co_cellvars, *code.co_freevars}
    for slot, name in enumerate(frame.dec.localsplus):
        if name not in dead:
            continue
        v = frame.locals[slot]
        if v is None:
            if frame is tracer.frames[0] and slot in tracer.pending and (
                    not _is_atom(value := tracer.pending[slot][1]) or _is_local_class(value)):
                out[name] = rebuilder.arg_names[name]
        elif _keeps(rebuilder, v, 2):
            out[name] = rebuilder.value(v)
    return out


def _keeps(rebuilder: Any, x: t.Tracker, depth: int) -> bool:
    """Return whether a value is, or holds, an object that exists independently."""
    if isinstance(x, t.Class):  # its bases know a class that no module has
        known = not isinstance(x, t.MadeClass) or any(id(y) in rebuilder.names for y in (x, *x.bases))
        return known and _is_local_class(x.value)
    if x.constant or isinstance(x, (t.Null, t.Tensor, t.PyModule, t.Module)):
        return False
    if isinstance(x, t.WeakRef):
        return True
    if x.source is not None:
        return not _is_atom(t.held(x))
    if id(x) in rebuilder.names:
        return True
    return depth > 0 and any(_keeps(rebuilder, y, depth - 1) for y in _parts(x))


def _is_local_class(value: Any) -> bool:
    return issubclass(type(value), type) and "<locals>" in type.__getattribute__(value, "__qualname__")


def _parts(x: t.Tracker) -> list[t.Tracker]:
    if isinstance(x, t.Sequence):
        return list(x.items)
    if isinstance(x, t.Dict):
        return list(x.entries.values())
    return [v for v in x.attrs.values() if isinstance(v, t.Tracker)] if isinstance(x, t.Object) else []
