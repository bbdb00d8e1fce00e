"""What the captured program changed outside of itself, replayed as the last statements of residual code.

All values are computed before the first change is made, so that a path read from a source still leads to the old value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from . import trackers as t
from .inference import set_autocast_depth
from .peeking import advance
from .rebuild import Rebuilder, set_changes
from .rebuild_attributes import assignment
from .session import read_state
from .settings import restoring
from .sources import MISSING, DictAttr, Global


def replay(rb: Rebuilder) -> list[str]:
    """The statements; the values that they use are computed through `rb`."""
    cx = rb.cx
    late: list[str] = []
    _classes(rb)
    for x in sorted(cx.mutated.values(), key=lambda x: not isinstance(x, t.Outside)):  # iterators see the containers as they were read
        row = next(r for c, r in _ROWS.items() if isinstance(x, c))
        row(rb, x, late)
    for lock in cx.locks.values():
        late.extend([f"{rb.value(lock)}.{'acquire' if lock.held > 0 else 'release'}()"] * abs(lock.held))
    for cls, names in cx.class_writes.items():
        for name, now in names.items():
            if now is not None:
                late.append(f"{rb.hold(type.__setattr__)}({rb.hold(cls)}, {name!r}, {rb.value(now)})")
            elif name in vars(cls):
                late.append(f"{rb.hold(type.__delattr__)}({rb.hold(cls)}, {name!r})")
    for fn, args, kwargs in cx.deferred:
        late.append(f"{rb.value(fn)}({', '.join([*rb.values(args), *(f'{k}={rb.value(v)}' for k, v in kwargs.items())])})")
    for space, name in [(s, n) for (_, n), (s, _) in cx.global_writes.items()]:
        _global(rb, space, name, late)
    _state(rb, late)
    late.extend(restoring(rb.hold, rb.cx.settings))
    return late


def _classes(rb: Rebuilder) -> None:
    """Classes that the program made and lets go of: its own bases know them, until a collection of garbage."""
    for x in [x for x in rb.cx.seen.values() if isinstance(x, t.MadeClass)]:
        if any(id(b) in rb.names if isinstance(b, t.MadeClass) else _asked_for_subclasses(b.value) for b in x.bases):  # type: ignore[attr-defined]
            rb.value(x)


def _asked_for_subclasses(base: type) -> bool:
    return bool(base.__flags__ & _HEAP) and base.__module__.partition(".")[0] not in _LIBRARY


_HEAP = 1 << 9
_LIBRARY = ("typing", "abc", "enum", "collections", "torch")


def _state(rb: Rebuilder, late: list[str]) -> None:
    """The thread's torch state where the program leaves it changed."""
    before, now = rb.cx.state, read_state()
    grad = before.grad_enabled
    for entered in rb.cx.modes.active:
        if entered.before != grad:
            late.append(f"{rb.hold(torch._C._set_grad_enabled)}({entered.before})")
        late.append(f"{rb.entered(entered)}.__enter__()")
        grad = entered.before and not entered.mode
    if now.grad_enabled != grad:
        late.append(f"{rb.hold(torch._C._set_grad_enabled)}({now.grad_enabled})")
    for (device, enabled, dtype), old in zip(now.autocast, before.autocast):
        if (device, enabled, dtype) != old:
            late.append(f"{rb.hold(torch.set_autocast_enabled)}({device!r}, {enabled})")
            late.append(f"{rb.hold(torch.set_autocast_dtype)}({device!r}, {rb.hold(dtype)})")
    if now.autocast_depth != before.autocast_depth:
        late.append(f"{rb.hold(set_autocast_depth)}({now.autocast_depth})")
    if now.default_dtype is not before.default_dtype:
        late.append(f"{rb.hold(torch.set_default_dtype)}({rb.hold(now.default_dtype)})")
    late.extend(f"{rb.hold(call)}({', '.join(map(rb.hold, args))})" for call, args in rb.cx.device_changes)
    late.extend(f"{rb.hold(setter)}({seed})" for setter, seed in rb.cx.seeds.behind)
    if now.autocast_cache != before.autocast_cache:
        late.append(f"{rb.hold(torch.set_autocast_cache_enabled)}({now.autocast_cache})")


def _global(rb: Rebuilder, space: dict[str, Any], name: str, late: list[str]) -> None:
    value = rb.cx.global_values[id(space)][name]
    if value is t.DELETED:
        late.append(f"{rb.hold(dict.pop)}({rb.hold(space)}, {name!r}, None)")
        return
    text = rb.value(value)
    if space is rb.cx.root_globals and isinstance(rb.cx.global_source(space, name), Global):
        late.append(f"{rb.namespace(space)}[{name!r}] = {text}")
    else:
        late.append(f"{rb.hold(space)}[{name!r}] = {text}")


def _is(now: t.Tracker, raw: Any) -> bool:
    """Whether a tracker stands for the very value `raw`.  A tracker of what capture made has `value` None, which says nothing."""
    if type(now) is t.Late:
        return False
    if isinstance(now, t.Const):
        return now.value is raw or (type(now.value) is type(raw) and type(raw) in (int, str) and now.value == raw)
    return raw is not None and getattr(now, "value", None) is raw


def _unchanged(rb: Rebuilder, x: t.Object, name: Any, now: t.Tracker) -> bool:
    """The attribute was set back to what it was; then what it was is guarded."""
    assert x.before is not None
    raw = x.before[name]
    if raw is MISSING:
        return False
    same = _is(now, raw) and (type(name) is not str or name in x.own)
    if same and type(name) is str:
        rb.cx.wrap(raw, None if x.source is None else DictAttr(x.source, name))
    return same


def _object(rb: Rebuilder, x: t.Object, late: list[str]) -> None:
    for name in x.before or ():
        now = x.attrs.get(name, t.DELETED)
        if now is t.DELETED:
            if x.before is not None and x.before[name] is not MISSING:
                late.append(assignment(rb, x, rb.value(x), name, None))
        elif not _unchanged(rb, x, name, now):
            if type(name) is str and name not in x.own and x.before is not None and x.before[name] is not MISSING:  # deleted meanwhile
                late.append(assignment(rb, x, rb.value(x), name, None))
            late.append(assignment(rb, x, rb.value(x), name, rb.value(now)))


def _list(rb: Rebuilder, x: t.List, late: list[str]) -> None:
    if x._items is None:
        late.append(f"{rb.hold(list.extend)}({rb.value(x)}, [{', '.join(rb.values(x.added))}])")
        return
    items = ", ".join(rb.values(x.items))
    late.append(f"{rb.hold(list.__setitem__)}({rb.value(x)}, {rb.hold(slice(None))}, [{items}])")


def _deque(rb: Rebuilder, x: t.Deque, late: list[str]) -> None:
    if not x.version:  # iterators over it may go on
        late.extend(f"{rb.value(x)}[{i}] = {rb.value(v)}" for i, v in enumerate(x.items))
        return
    items = ", ".join(rb.values(x.items))
    late.append(f"{rb.value(x)}.clear()")
    late.append(f"{rb.value(x)}.extend([{items}])")


def _dict(rb: Rebuilder, x: t.Dict, late: list[str]) -> None:
    cx = rb.cx
    cls: Any = x.cls  # its own methods: the program's class may have others
    keys = list(cls.__iter__(x.value))
    old = dict(zip(cx.stored_keys(keys, x.value), keys))
    new = list(x.entries)
    kept = [k for k in old if k in x.entries]
    name = rb.value(x)
    if x.cleared or new[:len(kept)] != kept:
        late.append(f"{rb.hold(cls.clear)}({name})")
        kept = []
    else:
        gone = [k for k in old if k not in x.entries]
        if gone and x.popped == len(gone) and gone == list(old)[-len(gone):]:
            late.extend([f"{rb.hold(cls.popitem)}({name})"] * len(gone))
        else:
            late.extend(f"{rb.hold(cls.__delitem__)}({name}, {rb.key(k)})" for k in gone)
    still = set(kept)
    for k, v in x.entries.items():
        if k in still and _is(v, cls.__getitem__(x.value, old[k])):
            continue
        late.append(f"{rb.hold(cls.__setitem__)}({name}, {rb.key(k)}, {rb.value(v)})")
    late.extend(f"{name}.{k} = {rb.value(v)}" for k, v in (x.attrs or {}).items())


def _set(rb: Rebuilder, x: t.Set, late: list[str]) -> None:
    """The changes as they were made: the order of a set depends on its history.  Nothing, if all were taken back."""
    if x.first is not None and list(x.open(rb.cx)) == x.first:
        return
    late.extend(set_changes(rb, rb.value(x), x))


def _cell(rb: Rebuilder, x: t.Cell, late: list[str]) -> None:
    name = rb.value(x)
    late.append(f"{name}.cell_contents = {rb.value(x.content)}" if x.content is not None else f"del {name}.cell_contents")


def _function(rb: Rebuilder, x: t.Function, late: list[str]) -> None:
    name = rb.value(x)
    late.extend(f"{name}.{k} = {rb.value(v)}" for k, v in (x.attrs or {}).items())


def _tensor(rb: Rebuilder, x: t.Tensor, late: list[str]) -> None:
    name = rb.value(x)
    for k, v in (x.attrs or {}).items():
        late.append(f"del {name}.{k}" if v is t.DELETED else f"{name}.{k} = {rb.value(v)}")


def _outside(rb: Rebuilder, x: t.Outside, late: list[str]) -> None:
    late.append(f"{rb.hold(advance)}({rb.value(x)}, {x.index})")


_ROWS: dict[type, Callable[[Rebuilder, Any, list[str]], None]] = {
    t.Cell: _cell, t.Function: _function, t.Tensor: _tensor, t.Object: _object, t.List: _list, t.Deque: _deque, t.Dict: _dict,
    t.Set: _set, t.Outside: _outside,
}
