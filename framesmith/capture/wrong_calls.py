"""Calls of builtins with arguments that they do not take: a handler's row fails on them, the builtin itself says what is wrong."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from framesmith.util.errors import Unsupported

FAILURES = (TypeError, IndexError, ValueError)
"""What a row raises by itself on too few or too many arguments."""


KEYWORDS: dict[Any, frozenset[str]] = {min: frozenset({"key", "default"}), max: frozenset({"key", "default"}),
                                       itertools.product: frozenset({"repeat"})}
"""The keywords of functions that have no signature to read them from."""

_fits: dict[tuple[Any, int, tuple[str, ...]], bool] = {}


def fits(fn: Any, n: int, names: tuple[str, ...]) -> bool:
    """Whether `n` arguments in all, the last of them under `names`, may be right for a builtin function; unknown counts as right."""
    if fn in KEYWORDS:
        return KEYWORDS[fn].issuperset(names)
    key = (fn, n, names)
    known = _fits.get(key)
    if known is None:
        try:
            inspect.signature(fn).bind(*range(n - len(names)), **dict.fromkeys(names))
            known = True
        except TypeError:
            known = False
        except ValueError:
            known = True
        _fits[key] = known
    return known


def explain(cx: Any, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """The program raises what `fn` raises for such arguments; if `fn` takes them, nothing happens: the row is at fault."""
    try:
        inspect.signature(fn).bind(*args, **kwargs)
        return
    except TypeError:
        pass
    except ValueError:
        if fn in KEYWORDS and not KEYWORDS[fn].issuperset(kwargs):
            cx.folded(fn, (None,) * len(args), dict.fromkeys(kwargs))
        raise Unsupported(f"call of {getattr(fn, '__qualname__', fn)} with {len(args)} arguments") from None
    # the arguments do not fit, so the call fails before it looks at any of them
    cx.folded(fn, (None,) * len(args), dict.fromkeys(kwargs))
