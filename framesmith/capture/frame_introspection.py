"""Code that may inspect its own frame: it is captured whole or runs as plain Python, since a continuation's locals are
not the user's."""

from __future__ import annotations

from types import CodeType
from typing import Any

import torch

from .bytecode import Decoded, decoded
from .code_cache import kept_with_code

_ALWAYS = frozenset({"locals", "eval", "exec"})
_WITHOUT_ARGUMENTS = frozenset({"vars", "dir"})
_WATCHING = frozenset({"retain_grad", "register_hook", "register_multi_grad_hook", "get_gradient_edge"})
_ATTRIBUTES = frozenset({"_getframe", "currentframe"})


@kept_with_code
def looks_at_itself(code: CodeType) -> bool:
    """Return whether `code` may read its locals as a dict, or its own frame, judged by its names."""
    names = _ALWAYS | _WITHOUT_ARGUMENTS | _ATTRIBUTES
    return not names.isdisjoint(code.co_names) and any(_asks(decoded(code), i)
                                                       for i in range(len(decoded(code).instrs)))


def asks_for_gradients(code: CodeType, space: dict[str, Any]) -> bool:
    """Return whether `code`, with the globals `space`, may ask the autograd engine for the gradients of tensors that
    are not leaves, judged by its names."""
    names = code.co_names
    return (not _WATCHING.isdisjoint(names) or "autograd" in names and "grad" in names
            or "backward" in names and any(type(c) is tuple and "inputs" in c for c in code.co_consts)
            or any(space.get(name) is torch.autograd.grad for name in names))


def _asks(dec: Decoded, at: int) -> bool:
    ins = dec.instrs[at]
    if ins.name in ("LOAD_ATTR", "LOAD_METHOD"):
        return ins.val in _ATTRIBUTES
    if ins.name not in ("LOAD_GLOBAL", "LOAD_NAME") or not isinstance(ins.val, str):
        return False
    return ins.val in _ALWAYS or ins.val in _ATTRIBUTES or ins.val in _WITHOUT_ARGUMENTS and _calls_at_once(dec, at)


def _calls_at_once(dec: Decoded, at: int) -> bool:
    """Return whether the instruction loads a function that is then called without arguments."""
    after = next((i for i in dec.instrs[at + 1:at + 3] if i.name == "CALL"), None)
    return after is not None and after.arg == 0


def calls_super(dec: Decoded, at: int) -> bool:
    """Return whether the instruction is the call in `super()`, which reads the first argument of its own frame."""
    ins = dec.instrs[at]
    before = next((i for i in reversed(dec.instrs[:at]) if i.name != "PRECALL"), None)
    return (ins.name == "CALL" and ins.arg == 0 and before is not None and before.name == "LOAD_GLOBAL"
            and before.val == "super")
