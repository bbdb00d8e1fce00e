"""Advice on graph breaks: by the words of the reason, the first row that fits."""

from __future__ import annotations

import re

_ROWS: tuple[tuple[str, str], ...] = (
    (r"graph_break\(\) was called", "remove the call of graph_break()"),
    (r"is disabled|disallowed", "take the mark off the function, or call it before or after the compiled code"),
    (r"^truth of|assertion on|bool\b.*tensor",
     "choose with torch.where, or decide before the call; a check can run outside of the compiled code"),
    (r"known at run time only|tensor's data|\.item\b|\.tolist\b|nonzero|a tensor as the index",
     "keep the value in a tensor, or read it before or after the compiled code"),
    (r"NumPy|numpy", "use the torch function of the same name, or convert before and after the compiled code"),
    (r"tensor subclass|layout", "pass a plain strided tensor"),
    (r"requires grad|training|grad mode|\.grad", "call it under torch.no_grad() or torch.inference_mode()"),
    (r"message about|logging|warning|print", "format the message first, or emit it outside of the compiled code"),
    (r"global state|autocast on", "set the state around the call of the compiled code"),
    (r"generator|coroutine|async|iterator", "compile the functions that it calls instead"),
    (r"repr of|hash of|id\(\) of|address", "do not depend on an object's address in compiled code"),
    (r"metaclass|instance of|__del__", "make the object outside of the compiled code and pass it in"),
    (r"call of|method|attribute",
     "call it outside of the compiled code; if it is a pure function of constants, mark it with "
     "framesmith.assume_constant_result, "
     "if of tensors, with framesmith.allow_in_graph"),
)
_COMPILED = tuple((re.compile(pattern), advice) for pattern, advice in _ROWS)
_DEFAULT = "move it out of the compiled code; the break costs the fusion across it and nothing else"


def advice(reason: str) -> str:
    """A suggestion in one line; never empty."""
    return next((text for pattern, text in _COMPILED if pattern.search(reason)), _DEFAULT)
