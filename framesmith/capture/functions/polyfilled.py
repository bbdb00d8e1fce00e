"""Functions written in C whose Python statement is inlined: ours (`polyfills/`), or the standard library's own
fallback."""

from __future__ import annotations

import _bisect
import _heapq
import builtins
import collections
import functools
import importlib.util
import inspect
import itertools
import operator
import types
from types import FunctionType
from typing import Any

from framesmith.util.errors import Unsupported

from .. import trackers as t
from ..polyfills import functions as py
from ..polyfills import iterators as its
from ..registry import CONSTANT_METHODS, OPAQUE, calls
from ..trackers import Args, Kwargs


def states(python: Any, *functions: Any) -> None:
    """Calls of `functions` are calls of `python`, a Python function or class."""

    @calls(*functions)
    def row(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
        return tracer.made(python).call(tracer, args, kwargs)


def without(name: str, missing: str) -> dict[str, Any]:
    """The namespace of a module of the standard library as it is where its C part `missing` does not exist."""
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.loader is not None
    real = builtins.__import__

    def absent(wanted: str, *args: Any, **kwargs: Any) -> Any:
        if wanted == missing:
            raise ImportError(wanted)
        return real(wanted, *args, **kwargs)

    space: dict[str, Any] = {"__name__": name, "__builtins__": {**vars(builtins), "__import__": absent}}
    exec(spec.loader.get_code(name), space)  # type: ignore[attr-defined]
    return space


def _fallbacks(name: str, native: Any) -> None:
    python = without(name, native.__name__)
    for attr, fn in vars(native).items():
        if isinstance(fn, types.BuiltinFunctionType) and isinstance(python.get(attr), FunctionType):
            states(python[attr], fn)


_fallbacks("heapq", _heapq)
_fallbacks("bisect", _bisect)


def iterates(python: Any, fn: Any, *places: int, cls: Any = None) -> None:
    """Calls of `fn` make an iterator of class `cls` (itself), whose values `python` gives. At once it asks the
    arguments at `places` for their iterators; at all, if there are none."""

    @calls(fn)
    def row(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
        if not _FITS[fn](len(args), kwargs):
            tracer.folded(fn, (None,) * len(args), dict.fromkeys(kwargs))
            raise Unsupported(f"a call of {fn.__name__} with these arguments")
        given = [a.iterate(tracer) if i in places or not places else a for i, a in enumerate(args)]
        steps = tracer.made(python).call(tracer, given, kwargs)
        return t.Lazy(iter(lambda: steps.next(tracer), None), cls or fn, given, (), fn, kwargs)

    _FITS[fn] = _arity(python)


def _arity(python: Any) -> Any:
    """Return whether a number of arguments, and keywords, are right for a Python function or class."""
    signature = inspect.signature(python)

    def fits(n: int, names: Any) -> bool:
        try:
            signature.bind(*[None] * n, **dict.fromkeys(names))
        except TypeError:
            return False
        return True

    return fits


_FITS: dict[Any, Any] = {}

for _fn, _places in (("accumulate", (0,)), ("compress", (0, 1)), ("cycle", (0,)), ("dropwhile", (1,)),
                     ("takewhile", (1,)),
                     ("filterfalse", (1,)), ("starmap", (1,)), ("pairwise", (0,)), ("batched", (0,)),
                     ("zip_longest", ())):
    if hasattr(itertools, _fn):
        iterates(getattr(its, _fn), getattr(itertools, _fn), *_places)
iterates(its.from_iterable, itertools.chain.from_iterable, 0, cls=itertools.chain)
iterates(its.Groups, itertools.groupby, 0)


@calls(itertools.tee)
def _tee(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    made = tracer.made(its.tee).call(tracer, args, kwargs).open(tracer)
    return t.Tuple([t.Lazy(iter(functools.partial(one.next, tracer), None), _TEE) for one in made])


_TEE: Any = type(itertools.tee(())[0])
states(py.count_elements, collections._count_elements)  # type: ignore[attr-defined]
states(py.cmp_to_key, functools.cmp_to_key)
for _fn, _python in (("delitem", py.delitem), ("concat", py.concat), ("iconcat", py.iconcat), ("countOf", py.count_of),
                     ("indexOf", py.index_of), ("call", py.call), ("length_hint", py.length_hint)):
    if hasattr(operator, _fn):
        states(_python, getattr(operator, _fn))
OPAQUE[(types.SimpleNamespace, "__repr__")] = lambda tracer, self: tracer.made(py.namespace_repr).call(tracer, [self],
                                                                                                       {})


def _fromkeys(tracer: Any, self: t.Const, args: Args, kwargs: Kwargs) -> t.Tracker | None:
    return tracer.made(py.fromkeys).call(tracer, [tracer.made(self.value), *args],
                                         kwargs) if args and issubclass(self.value, dict) else None


CONSTANT_METHODS[(type, "fromkeys")] = _fromkeys
