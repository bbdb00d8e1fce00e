"""The side effects of the captured program, replayed as the last statements of residual code.

All values are computed before the first change is made, so that a path read from a source still leads to the old value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from framesmith.util.errors import Unsupported

from . import trackers as t
from .inference import set_autocast_depth
from .iterator_lookahead import advance
from .overrides import has_function, set_attribute
from .rebuild import Rebuilder, set_changes
from .rebuild_attributes import assignment
from .settings import restoring
from .sources import MISSING, DictAttr, Global
from .tracer import read_state


def replay(rebuilder: Rebuilder) -> list[str]:
    """Return the statements; the values that they use are computed through `rebuilder`."""
    tracer = rebuilder.tracer
    late: list[str] = []
    _classes(rebuilder)
    # iterators see the containers as they were read
    for x in sorted(tracer.mutated.values(), key=lambda x: not isinstance(x, t.Outside)):
        row = next(r for c, r in _ROWS.items() if isinstance(x, c))
        row(rebuilder, x, late)
    for lock in tracer.locks.values():
        late.extend([f"{rebuilder.value(lock)}.{'acquire' if lock.held > 0 else 'release'}()"] * abs(lock.held))
    for cls, names in tracer.class_writes.items():
        for name, now in names.items():
            if now is not None:
                late.append(f"{rebuilder.hold(type.__setattr__)}({rebuilder.hold(cls)}, {name!r}, "
                            f"{rebuilder.value(now)})")
            elif name in vars(cls):
                late.append(f"{rebuilder.hold(type.__delattr__)}({rebuilder.hold(cls)}, {name!r})")
    for fn, args, kwargs in tracer.deferred:
        called = rebuilder.value(fn)
        given = [*rebuilder.values(args), *(f"{k}={rebuilder.value(v)}" for k, v in kwargs.items())]
        late.append(f"{called}({', '.join(given)})")
    for space, name in [(s, n) for (_, n), (s, _) in tracer.global_writes.items()]:
        _global(rebuilder, space, name, late)
    _state(rebuilder, late)
    late.extend(restoring(rebuilder.hold, rebuilder.tracer.settings))
    return late


def _classes(rebuilder: Rebuilder) -> None:
    """Rebuild classes that the program created and dropped: their bases list them until the next garbage collection."""
    for x in [x for x in rebuilder.tracer.seen.values() if isinstance(x, t.MadeClass)]:
        if any(id(b) in rebuilder.names if isinstance(b, t.MadeClass)
               else _asked_for_subclasses(b.value)  # type: ignore[attr-defined]
               for b in x.bases):
            rebuilder.value(x)


def _asked_for_subclasses(base: type) -> bool:
    return bool(base.__flags__ & _HEAP) and base.__module__.partition(".")[0] not in _LIBRARY


_HEAP = 1 << 9
_LIBRARY = ("typing", "abc", "enum", "collections", "torch")


def _state(rebuilder: Rebuilder, late: list[str]) -> None:
    """Set the thread's torch state where the program leaves it changed."""
    before, now = rebuilder.tracer.state, read_state()
    if rebuilder.tracer.functions is not before.torch_functions:
        raise Unsupported("captured code ends where __torch_function__ is disabled")
    grad = before.grad_enabled
    for entered in rebuilder.tracer.modes.active:
        if entered.before != grad:
            late.append(f"{rebuilder.hold(torch._C._set_grad_enabled)}({entered.before})")
        late.append(f"{rebuilder.entered(entered)}.__enter__()")
        grad = entered.before and not entered.mode
    if now.grad_enabled != grad:
        late.append(f"{rebuilder.hold(torch._C._set_grad_enabled)}({now.grad_enabled})")
    for (device, enabled, dtype), old in zip(now.autocast, before.autocast):
        if (device, enabled, dtype) != old:
            late.append(f"{rebuilder.hold(torch.set_autocast_enabled)}({device!r}, {enabled})")
            late.append(f"{rebuilder.hold(torch.set_autocast_dtype)}({device!r}, {rebuilder.hold(dtype)})")
    if now.autocast_depth != before.autocast_depth:
        late.append(f"{rebuilder.hold(set_autocast_depth)}({now.autocast_depth})")
    if now.default_dtype is not before.default_dtype:
        late.append(f"{rebuilder.hold(torch.set_default_dtype)}({rebuilder.hold(now.default_dtype)})")
    late.extend(f"{rebuilder.hold(call)}({', '.join(map(rebuilder.hold, args))})" for call,
                args in rebuilder.tracer.device_changes)
    late.extend(f"{rebuilder.hold(setter)}({seed})" for setter, seed in rebuilder.tracer.seeds.behind)
    if now.autocast_cache != before.autocast_cache:
        late.append(f"{rebuilder.hold(torch.set_autocast_cache_enabled)}({now.autocast_cache})")


def _global(rebuilder: Rebuilder, space: dict[str, Any], name: str, late: list[str]) -> None:
    value = rebuilder.tracer.global_values[id(space)][name]
    if value is t.DELETED:
        late.append(f"{rebuilder.hold(dict.pop)}({rebuilder.hold(space)}, {name!r}, None)")
        return
    text = rebuilder.value(value)
    if space is rebuilder.tracer.root_globals and isinstance(rebuilder.tracer.global_source(space, name), Global):
        late.append(f"{rebuilder.namespace(space)}[{name!r}] = {text}")
    else:
        late.append(f"{rebuilder.hold(space)}[{name!r}] = {text}")


def _is(now: t.Tracker, raw: Any) -> bool:
    """Return whether a tracker represents the object `raw` itself. A tracker of an object made during capture has the
    `value` None, which means nothing."""
    if type(now) is t.SymbolicNumber:
        return False
    if isinstance(now, t.Const):
        return now.value is raw or (type(now.value) is type(raw) and type(raw) in (int, str) and now.value == raw)
    return raw is not None and t.held(now) is raw


def _unchanged(rebuilder: Rebuilder, x: t.Object, name: Any, now: t.Tracker) -> bool:
    """Return whether the attribute was set back to its first value; then that value is guarded."""
    assert x.before is not None
    raw = x.before[name]
    if raw is MISSING:
        return False
    if not _is(now, raw) or type(name) is str and name not in x.own:
        return False
    if type(name) is not str:
        return True
    guarded = rebuilder.tracer.wrap(raw, None if x.source is None else DictAttr(x.source, name))
    return guarded is now or type(guarded) is not t.SymbolicNumber


def _object(rebuilder: Rebuilder, x: t.Object, late: list[str]) -> None:
    for name in x.before or ():
        now = x.attrs.get(name, t.DELETED)
        if now is t.DELETED:
            if x.before is not None and x.before[name] is not MISSING:
                late.append(assignment(rebuilder, x, rebuilder.value(x), name, None))
        elif not _unchanged(rebuilder, x, name, now):
            # deleted meanwhile
            if type(name) is str and name not in x.own and x.before is not None and x.before[name] is not MISSING:
                late.append(assignment(rebuilder, x, rebuilder.value(x), name, None))
            late.append(assignment(rebuilder, x, rebuilder.value(x), name, rebuilder.value(now)))


def _list(rebuilder: Rebuilder, x: t.List, late: list[str]) -> None:
    if x._items is None:
        late.append(f"{rebuilder.hold(list.extend)}({rebuilder.value(x)}, [{', '.join(rebuilder.values(x.added))}])")
        return
    items = ", ".join(rebuilder.values(x.items))
    late.append(f"{rebuilder.hold(list.__setitem__)}({rebuilder.value(x)}, {rebuilder.hold(slice(None))}, [{items}])")


def _deque(rebuilder: Rebuilder, x: t.Deque, late: list[str]) -> None:
    if not x.version:  # iterators over it may go on
        late.extend(f"{rebuilder.value(x)}[{i}] = {rebuilder.value(v)}" for i, v in enumerate(x.items))
        return
    items = ", ".join(rebuilder.values(x.items))
    late.append(f"{rebuilder.value(x)}.clear()")
    late.append(f"{rebuilder.value(x)}.extend([{items}])")


def _dict(rebuilder: Rebuilder, x: t.Dict, late: list[str]) -> None:
    tracer = rebuilder.tracer
    cls: Any = x.cls  # its own methods: the program's class may have others
    keys = list(cls.__iter__(x.value))
    old = dict(zip(tracer.stored_keys(keys, x.value), keys))
    new = list(x.entries)
    kept = [k for k in old if k in x.entries]
    name = rebuilder.value(x)
    if x.cleared or new[:len(kept)] != kept:
        late.append(f"{rebuilder.hold(cls.clear)}({name})")
        kept = []
    else:
        gone = [k for k in old if k not in x.entries]
        if gone and x.popped == len(gone) and gone == list(old)[-len(gone):]:
            late.extend([f"{rebuilder.hold(cls.popitem)}({name})"] * len(gone))
        else:
            late.extend(f"{rebuilder.hold(cls.__delitem__)}({name}, {rebuilder.key(k)})" for k in gone)
    still = set(kept)
    for k, v in x.entries.items():
        if k in still and x.first.get(k) is v:
            continue
        late.append(f"{rebuilder.hold(cls.__setitem__)}({name}, {rebuilder.key(k)}, {rebuilder.value(v)})")
    late.extend(f"{name}.{k} = {rebuilder.value(v)}" for k, v in (x.attrs or {}).items())


def _set(rebuilder: Rebuilder, x: t.Set, late: list[str]) -> None:
    """Replay the changes of a set in order, since its iteration order depends on its history; nothing if all were
    undone."""
    if x.first is not None and list(x.open(rebuilder.tracer)) == x.first:
        return
    late.extend(set_changes(rebuilder, rebuilder.value(x), x))


def _cell(rebuilder: Rebuilder, x: t.Cell, late: list[str]) -> None:
    name = rebuilder.value(x)
    late.append(f"{name}.cell_contents = {rebuilder.value(x.content)}" if x.content is not None
                else f"del {name}.cell_contents")


def _function(rebuilder: Rebuilder, x: t.Function, late: list[str]) -> None:
    name = rebuilder.value(x)
    late.extend(f"{name}.{k} = {rebuilder.value(v)}" for k, v in (x.attrs or {}).items())


def _tensor(rebuilder: Rebuilder, x: t.Tensor, late: list[str]) -> None:
    name = rebuilder.value(x)
    for k, v in (x.attrs or {}).items():
        if has_function(x.pyclass):
            value = "" if v is t.DELETED else f", {rebuilder.value(v)}"
            late.append(f"{rebuilder.hold(set_attribute)}({name}, {k!r}{value})")
        else:
            late.append(f"del {name}.{k}" if v is t.DELETED else f"{name}.{k} = {rebuilder.value(v)}")


def _outside(rebuilder: Rebuilder, x: t.Outside, late: list[str]) -> None:
    late.append(f"{rebuilder.hold(advance)}({rebuilder.value(x)}, {x.index})")


_ROWS: dict[type, Callable[[Rebuilder, Any, list[str]], None]] = {
    t.Cell: _cell, t.Function: _function, t.Tensor: _tensor, t.Object: _object, t.List: _list, t.Deque: _deque,
    t.Dict: _dict,
    t.Set: _set, t.Outside: _outside,
}
