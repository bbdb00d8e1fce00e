"""The compiled functions that share variants: those of one code object with equal options and similar closures.

This decides the ownership of variants; guards decide which variant takes a call. Similar closures hold the same
objects, except for numbers and tensors: so no closure uses a variant that packed the weights of another's module.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from types import FunctionType, MethodType
from typing import Any

import torch

from framesmith.capture.origins import forgetter
from framesmith.capture.tracer import UNSET, contents
from framesmith.compiler import FrameCompiler
from framesmith.config import Config

MOST = 256
"""The number of frame compilers that are kept even if nothing compiled with them is alive."""

_BY_TYPE = (int, float, complex, torch.Tensor, torch.nn.Parameter)
_BY_VALUE = (str, bytes, bool, type(None), torch.dtype, torch.device)

_alive: weakref.WeakValueDictionary[Any, FrameCompiler] = weakref.WeakValueDictionary()
_kept: OrderedDict[Any, tuple[FrameCompiler, list[weakref.ref[Any]]]] = OrderedDict()


def compiler_for(fn: Any, config: Config) -> FrameCompiler:
    """Return the frame compiler of an earlier `compile` of the same function with the same options, or a new one.

    It is kept until the function's code, or an object that the function holds, is gone. With a back end of the
    program's, which may hold anything, it lives as long as what is compiled with it.
    """
    own_backend = not isinstance(config.backend, str)
    parts = _Parts()
    key = config.with_(backend="") if own_backend else config, parts.of(config.backend), parts.of(fn)
    compiler = _alive.get(key)
    if compiler is None:
        compiler = _alive[key] = FrameCompiler(config)
    if key in _kept:
        _kept.move_to_end(key)
    elif not own_backend:
        try:
            _kept[key] = compiler, [weakref.ref(x, forgetter(_kept, key)) for x in parts.objects]
        except TypeError:
            return compiler
        if len(_kept) > MOST:
            _kept.popitem(last=False)
    return compiler


class _Parts:
    """Descriptions of values for `compiler_for`; `objects` are those that are compared by identity."""

    def __init__(self) -> None:
        self.objects: list[Any] = []
        self._functions: set[int] = set()

    def of(self, value: Any) -> Any:
        """Describe `value` without keeping objects of the program's alive."""
        kind = type(value)
        if kind in _BY_VALUE:
            return kind, value
        if kind in _BY_TYPE:
            return kind
        if kind is tuple:
            return tuple([self.of(v) for v in value])
        if kind is MethodType:
            return MethodType, self.of(value.__func__), self.of(value.__self__)
        if kind is FunctionType and id(value) not in self._functions:
            self._functions.add(id(value))
            held = [v for cell in value.__closure__ or () if (v := contents(cell)) is not UNSET]
            given = *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()
            return self._same(value.__code__), id(value.__globals__), len(held), *[self.of(v) for v in (*held, *given)]
        return self._same(value)

    def _same(self, x: Any) -> int:
        self.objects.append(x)
        return id(x)
