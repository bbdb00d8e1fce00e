"""Frames in the user's terms. A frame of framesmith's own that calls a user's function or module stands for that."""

from __future__ import annotations

import inspect
import re
from types import CodeType, FunctionType
from typing import Any

from torch import nn

_OWN = __file__.rsplit("/", 1)[0] + "/"


def is_own(file: str) -> bool:
    """Return whether a source file is framesmith's own."""
    return file.startswith(_OWN)


def called_code(code: CodeType, func: FunctionType) -> CodeType:
    """Return the user's code that a frame of ours calls; else the frame's own."""
    cells = dict(zip(code.co_freevars, func.__closure__ or ())) if is_own(code.co_filename) else {}
    called: Any = cells["module"].cell_contents if "module" in cells else None
    inner = inspect.unwrap(type(called).forward if isinstance(called, nn.Module) else called) if called else None
    return getattr(inner, "__code__", code)


def place_of(code: CodeType, func: FunctionType) -> tuple[str, str, int]:
    """Return function, file and line of a frame: for one that calls a module, of the module's `forward`."""
    called = called_code(code, func)
    return called.co_qualname, called.co_filename, called.co_firstlineno


def named(code: CodeType) -> str:
    """Return the name and the place of a function, for messages."""
    return f"{code.co_qualname} ({code.co_filename}:{code.co_firstlineno})"


def user_path(code: CodeType, func: FunctionType, path: str) -> str:
    """Return a guard's path (or a text with some) as the user's function names it, if a frame of ours passes it on."""
    called = called_code(code, func)
    if called is code:
        return path
    first = called.co_varnames[:1] == ("self",)
    names = called.co_varnames[first:called.co_argcount]
    path = re.sub(r"L\['kwargs'\]\['(\w+)'\]", r"L['\1']", path).replace("L['kwargs']", "the keyword arguments")
    return re.sub(r"L\['args'\]\[(\d+)\]", lambda m: f"L['{names[int(m[1])]}']" if int(m[1]) < len(names) else m[0],
                  path)


def module_of(f_locals: dict[str, Any]) -> nn.Module | None:
    """Return the module that the frame works for: the first among its arguments, `self` of a method."""
    return next((v for v in f_locals.values() if issubclass(type(v), nn.Module)), None)
