"""Code that may look at its own frame: it is captured whole or runs as plain Python, for a continuation's locals are
not the user's."""

from __future__ import annotations

from types import CodeType

from .bytecode import Decoded, decoded
from .code_cache import kept_with_code

_ALWAYS = frozenset({"locals", "eval", "exec"})
_WITHOUT_ARGUMENTS = frozenset({"vars", "dir"})
_ATTRIBUTES = frozenset({"_getframe", "currentframe"})


@kept_with_code
def looks_at_itself(code: CodeType) -> bool:
    """Return whether the names in `code` say that it may read its locals, or the frame itself."""
    names = _ALWAYS | _WITHOUT_ARGUMENTS | _ATTRIBUTES
    return not names.isdisjoint(code.co_names) and any(_asks(decoded(code), i)
                                                       for i in range(len(decoded(code).instrs)))


def _asks(dec: Decoded, at: int) -> bool:
    ins = dec.instrs[at]
    if ins.name in ("LOAD_ATTR", "LOAD_METHOD"):
        return ins.val in _ATTRIBUTES
    if ins.name not in ("LOAD_GLOBAL", "LOAD_NAME") or not isinstance(ins.val, str):
        return False
    return ins.val in _ALWAYS or ins.val in _ATTRIBUTES or ins.val in _WITHOUT_ARGUMENTS and _calls_at_once(dec, at)


def _calls_at_once(dec: Decoded, at: int) -> bool:
    """The instruction loads a function that is called without arguments."""
    after = next((i for i in dec.instrs[at + 1:at + 3] if i.name == "CALL"), None)
    return after is not None and after.arg == 0


def calls_super(dec: Decoded, at: int) -> bool:
    """Return whether the instruction is the call in `super()`, which looks for the first argument of the very frame
    that it stands in."""
    ins = dec.instrs[at]
    before = next((i for i in reversed(dec.instrs[:at]) if i.name != "PRECALL"), None)
    return (ins.name == "CALL" and ins.arg == 0 and before is not None and before.name == "LOAD_GLOBAL"
            and before.val == "super")
