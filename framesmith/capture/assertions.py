"""Assertions on the data of tensors: the graph computes their conditions, residual code looks at them before it changes anything, and where
one does not hold the whole frame runs again in plain Python, which raises what it raises and leaves what it leaves."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

from framesmith import _C


class Again:
    """Calls a frame's own code with the hook off. The code is not kept alive: what calls this hangs on it."""

    __slots__ = ("code",)

    def __init__(self, code: CodeType) -> None:
        self.code = weakref.ref(code)

    def __call__(self, space: dict[str, Any], closure: Callable[[], Any] | None, *values: Any) -> Any:
        """`values`: the frame's argument locals; `closure`: a function with the same free variables."""
        code = self.code()
        assert code is not None
        cells = {} if closure is None else dict(zip(closure.__code__.co_freevars, closure.__closure__ or (), strict=True))
        fn = FunctionType(code, space, code.co_name, None, tuple(cells[name] for name in code.co_freevars))
        at, end = code.co_argcount, code.co_argcount + code.co_kwonlyargcount
        rest = list(values[end:])
        positional = [*values[:at], *(rest.pop(0) if code.co_flags & inspect.CO_VARARGS else ())]
        named = dict(zip(code.co_varnames[at:end], values[at:end], strict=True))
        return _C.CompiledFunction(fn, None)(*positional, **named, **(rest[0] if rest else {}))


def checks(rb: Any) -> list[str]:
    """The statements of residual code that hold the conditions to their word."""
    cx = rb.cx
    if not cx.checks:
        return []
    code = cx.frames[0].code
    space = "globals()" if "globals" not in cx.root_globals else rb.hold(cx.root_globals)
    free = code.co_freevars
    closure = f"lambda: ({', '.join(free)},)" if free else "None"
    again = f"{rb.hold(Again(code))}({', '.join([space, closure, *rb.arg_names.values()])})"
    return [f"if not ({' and '.join(f'{rb.hold(bool)}({text})' for text in rb.values(cx.checks))}): return {again}"]
