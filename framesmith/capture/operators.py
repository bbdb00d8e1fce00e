"""Python's operators: functions of the module `operator`, with their symbols and special methods."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

COMPARE: dict[str, Callable[..., Any]] = {"<": operator.lt, "<=": operator.le, "==": operator.eq, "!=": operator.ne,
                                          ">": operator.gt, ">=": operator.ge}
MIRROR = {"<": ">", "<=": ">=", "==": "==", "!=": "!=", ">": "<", ">=": "<="}
DUNDER = {symbol: f"__{fn.__name__}__" for symbol, fn in COMPARE.items()}
COMPARED = {fn: symbol for symbol, fn in COMPARE.items()}
MIRRORED = {fn: COMPARE[MIRROR[symbol]] for symbol, fn in COMPARE.items()}
SIGNS = {operator.neg: "-", operator.pos: "+"}
BINARY = {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**", "matmul": "@",
          "and_": "&", "or_": "|", "xor": "^", "lshift": "<<", "rshift": ">>"}
OPERATORS: dict[str, Callable[..., Any]] = {
    n: getattr(operator, n)
    for n in (*BINARY, *["i" + name.rstrip("_") for name in BINARY], "neg", "pos", "invert")
}


def symbols(*names: str) -> dict[Any, str]:
    """Binary operators, in place too, with their symbols."""
    return {getattr(operator, how + name): BINARY[name] for name in names for how in ("", "i")}
