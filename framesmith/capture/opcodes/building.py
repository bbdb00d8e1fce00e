"""Containers, functions, strings, slices; unpacking."""

from __future__ import annotations

from typing import Any

from framesmith.util.errors import Unsupported

from .. import data
from .. import trackers as t
from ..frame import Frame
from ..registry import op
from ..sources import MISSING
from ..symbolic_arithmetic import is_symbolic, joined


def _take(f: Frame, n: int) -> list[t.Tracker]:
    if n == 0:
        return []
    s = f.stack
    out = s[-n:]
    del s[-n:]
    return out


@op("BUILD_TUPLE")
def _tuple(f: Frame, n: int) -> None:
    f.stack.append(t.Tuple(_take(f, n)))


@op("BUILD_LIST")
def _list(f: Frame, n: int) -> None:
    f.stack.append(t.List(_take(f, n)))


@op("BUILD_SET")
def _set(f: Frame, n: int) -> None:
    f.stack.append(t.Set.of(f.tracer, _take(f, n)))


@op("BUILD_MAP")
def _map(f: Frame, n: int) -> None:
    flat = _take(f, 2 * n)
    f.stack.append(t.Dict({k.key(f.tracer): v for k, v in zip(flat[::2], flat[1::2])}))


@op("BUILD_CONST_KEY_MAP")
def _const_key_map(f: Frame, n: int) -> None:
    keys = f.stack.pop().items_list(f.tracer)
    f.stack.append(t.Dict({k.key(f.tracer): v for k, v in zip(keys, _take(f, n))}))


@op("BUILD_STRING")
def _string(f: Frame, n: int) -> None:
    parts = _take(f, n)
    if any(type(p) is t.Data for p in parts):
        f.stack.append(data.joined(parts))
        return
    f.stack.append(joined(f.tracer, parts) if is_symbolic(*parts)
                   else t.Const("".join([p.real(f.tracer) for p in parts])))


@op("FORMAT_VALUE")
def _format(f: Frame, flags: int) -> None:
    spec = f.stack.pop().real(f.tracer) if flags & 4 else ""
    v = f.tracer.format_value(f.stack.pop(), flags & 3, spec)
    f.stack.append(v)


@op("BUILD_SLICE")
def _slice(f: Frame, n: int) -> None:
    parts = _take(f, n)
    f.stack.append(t.Slice(parts if n == 3 else [*parts, t.NONE]))


@op("LIST_APPEND")
def _list_append(f: Frame, n: int) -> None:
    v = f.stack.pop()
    f.stack[-n].extend(f.tracer, [v])  # type: ignore[attr-defined]


@op("SET_ADD")
def _set_add(f: Frame, n: int) -> None:
    v = f.stack.pop()
    f.stack[-n].change(f.tracer, "add", v.element(f.tracer))  # type: ignore[attr-defined]


@op("MAP_ADD")
def _map_add(f: Frame, n: int) -> None:
    v = f.stack.pop()
    k = f.stack.pop()
    f.stack[-n].set_item(f.tracer, k, v)


@op("LIST_EXTEND")
def _list_extend(f: Frame, n: int) -> None:
    v = f.stack.pop()
    f.stack[-n].extend(f.tracer, f.tracer.listed(iterable(f.tracer, v)))  # type: ignore[attr-defined]


def iterable(tracer: Any, v: t.Tracker, called: t.Tracker | None = None) -> t.Tracker:
    """`v`, if `*v` may be written for it, in a call of `called` or in a display."""
    if not isinstance(v, (t.Sequence, t.Dict, t.Set)) and not tracer.is_iterable(v):
        what = "Value" if called is None else f"{called_name(called)} argument"
        tracer.raise_(TypeError(f"{what} after * must be an iterable, not {v.pytype().__name__}"))
    return v


@op("SET_UPDATE")
def _set_update(f: Frame, n: int) -> None:
    v = f.stack.pop()
    f.stack[-n].builtin_method(f.tracer, "update", [v], {})


@op("DICT_UPDATE")
def _dict_update(f: Frame, n: int) -> None:
    v = f.stack.pop()
    if f.tracer.lookup(v.pytype(), "keys") is MISSING:
        f.tracer.raise_(TypeError(f"'{v.pytype().__name__}' object is not a mapping"))
    f.stack[-n].builtin_method(f.tracer, "update", [v], {})


@op("DICT_MERGE")
def _dict_merge(f: Frame, n: int) -> None:
    v = f.stack.pop()
    into = f.stack[-n]
    called = f.stack[-n - 2]
    entries = into.touch(f.tracer)  # type: ignore[attr-defined]
    for k, x in keyword_mapping(f.tracer, v, called).items():
        if k in entries:
            f.tracer.raise_(TypeError(f"{called_name(called)} got multiple values for keyword argument '{k}'"))
        entries[k] = x


def keyword_mapping(tracer: Any, v: t.Tracker, called: t.Tracker) -> dict[Any, t.Tracker]:
    """Return the entries of `**v` in a call of `called`."""
    if not isinstance(v, t.Dict) and not tracer.has_attr(v, "keys"):
        tracer.raise_(TypeError(f"{called_name(called)} argument after ** must be a mapping, "
                                f"not {v.pytype().__name__}"))
    return tracer.mapping(v)


def called_name(fn: t.Tracker) -> str:
    """Return the name of a callable in errors of its call."""
    if isinstance(fn, t.Method):
        fn = fn.func
    if isinstance(fn, t.Function):
        return f"{fn.globals.get('__name__', '?')}.{fn.qualname}()"
    value = getattr(fn, "value", None)
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    return f"{name}()" if module in (None, "builtins") else f"{module}.{name}()"


@op("LIST_TO_TUPLE")
def _list_to_tuple(f: Frame, n: int) -> None:
    f.stack[-1] = t.Tuple(f.stack[-1].items_list(f.tracer))


@op("UNPACK_SEQUENCE")
def _unpack(f: Frame, n: int) -> None:
    v = f.stack.pop()
    values = first_values(f.tracer, v, n + 1)
    if len(values) < n:
        f.tracer.raise_(ValueError(f"not enough values to unpack (expected {n}, got {len(values)})"))
    if len(values) > n:
        f.tracer.raise_(ValueError(f"too many values to unpack (expected {n})"))
    values.reverse()
    f.stack.extend(values)


def first_values(tracer: Any, v: t.Tracker, n: int | None) -> list[t.Tracker]:
    """Return the values that `a, b = v` takes from `v`: at most `n`, if that is given."""
    if isinstance(v, (t.Sequence, t.Set)):
        return v.items_list(tracer)
    if not isinstance(v, (t.Tensor, t.Dict)) and not tracer.is_iterable(v):
        tracer.raise_(TypeError(f"cannot unpack non-iterable {v.pytype().__name__} object"))
    it = v.iterate(tracer)
    out: list[t.Tracker] = []
    while n is None or len(out) < n:
        value = it.next(tracer)
        if value is None:
            break
        out.append(value)
    return out


@op("UNPACK_EX")
def _unpack_ex(f: Frame, arg: int) -> None:
    before, after = arg & 255, arg >> 8
    values = first_values(f.tracer, f.stack.pop(), None)
    if len(values) < before + after:
        f.tracer.raise_(ValueError(f"not enough values to unpack (expected at least {before + after}, got "
                                   f"{len(values)})"))
    cut = len(values) - after
    out = [*values[:before], t.List(values[before:cut]), *values[cut:]]
    out.reverse()
    f.stack.extend(out)


@op("MAKE_FUNCTION")
def _function(f: Frame, flags: int) -> None:
    s = f.stack
    code: Any = s.pop()
    if not isinstance(code, t.Const):
        raise Unsupported("function of code that is no constant")
    fn = t.Function(code.value, f.globals, name=code.value.co_name, qualname=code.value.co_qualname)
    if flags & 8:
        fn.closure = s.pop().items_list(f.tracer)  # type: ignore[assignment]
    if flags & 4:
        fn.annotations = s.pop()
    if flags & 2:
        fn.kwdefaults = dict(s.pop().open(f.tracer))  # type: ignore[attr-defined]
    if flags & 1:
        fn.defaults = s.pop().items_list(f.tracer)
    s.append(fn)
