"""Calls of builtins with invalid arguments: a handler's row fails on them, and the builtin itself raises the error."""

from __future__ import annotations

import collections
import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from framesmith.util.errors import Unsupported

FAILURES = (TypeError, IndexError, ValueError)
"""Exceptions that a row raises by itself on too few or too many arguments."""


MANY = 1 << 30
TAKES: dict[Any, tuple[int, int, frozenset[str]]] = {
    min: (1, MANY, frozenset({"key", "default"})), max: (1, MANY, frozenset({"key", "default"})),
    itertools.product: (0, MANY, frozenset({"repeat"})), map: (2, MANY, frozenset()), getattr: (2, 3, frozenset()),
    bool: (0, 1, frozenset()), int: (0, 2, frozenset({"base"})), slice: (1, 3, frozenset()),
    zip: (0, MANY, frozenset({"strict"})), filter: (2, 2, frozenset()),
    enumerate: (1, 2, frozenset({"iterable", "start"})),
    **dict.fromkeys((list, tuple, set, frozenset, dir), (0, 1, frozenset())), range: (1, 3, frozenset()),
    reversed: (1, 1, frozenset()), iter: (1, 2, frozenset()), next: (1, 2, frozenset()),
    itertools.chain: (0, MANY, frozenset()),
    collections.deque: (0, 2, frozenset({"iterable", "maxlen"})),
}
"""The minimal and maximal number of arguments, and the keywords, of functions without a readable signature."""

_fits: dict[tuple[Any, int, tuple[str, ...]], bool] = {}


def fits(fn: Any, n: int, names: tuple[str, ...]) -> bool:
    """Return whether `n` arguments in all, the last of them under `names`, may be right for a builtin function; unknown
    counts as right."""
    if fn in TAKES:
        least, most, keywords = TAKES[fn]
        return least <= n <= most and keywords.issuperset(names)
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


def explain(tracer: Any, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise, in the program, the error of `fn` for such arguments; if `fn` accepts them, do nothing: the row is
    wrong."""
    try:
        inspect.signature(fn).bind(*args, **kwargs)
        return
    except TypeError:
        pass
    except ValueError:
        if fn in TAKES and not fits(fn, len(args) + len(kwargs), tuple(kwargs)):
            tracer.folded(fn, (None,) * len(args), dict.fromkeys(kwargs))
        raise Unsupported(f"call of {getattr(fn, '__qualname__', fn)} with {len(args)} arguments") from None
    # the arguments do not fit, so the call fails before it looks at any of them
    tracer.folded(fn, (None,) * len(args), dict.fromkeys(kwargs))
