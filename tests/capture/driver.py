"""Runs functions through capture without the C++ hook: guards and the graph are interpreted in Python."""

from __future__ import annotations

import inspect
import sys
from types import CodeType, FunctionType
from typing import Any

import torch
from torch.fx import Graph, Node

from framesmith.capture import sources as s
from framesmith.capture.convert import Captured, convert_frame
from framesmith.capture.residual import argument_names


def evaluate(graph: Graph, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Run a captured graph with eager's kernels."""
    env: dict[Node, Any] = {}
    feed = iter(inputs)
    out: Any = ()

    def val(a: Any) -> Any:
        if isinstance(a, Node):
            return env[a]
        if isinstance(a, (list, tuple)):
            return type(a)(val(x) for x in a)
        return a

    for node in graph.nodes:
        if node.op == "placeholder":
            env[node] = next(feed)
        elif node.op == "call_function":
            env[node] = node.target(*val(node.args), **{k: val(v) for k, v in node.kwargs.items()})
        elif node.op == "output":
            out = val(node.args[0])
    return tuple(out)


def read(source: s.Source, frame: dict[str, Any]) -> Any:
    """The value at a source."""
    kind = type(source)
    if kind is s.Local:
        return frame["locals"][source.name]
    if kind is s.Global:
        return frame["globals"][source.name]
    if kind is s.GlobalOf:
        return sys.modules[source.module].__dict__[source.name]
    if kind is s.Cell:
        return frame["cells"][source.name].cell_contents
    if kind is s.Pinned:
        return source.obj
    base = read(source.base, frame)
    if kind is s.Attr:
        return getattr(base, source.name)
    if kind is s.DictAttr:
        return object.__getattribute__(base, "__dict__")[source.name]
    if kind is s.Item:
        raw = dict if isinstance(base, dict) else list if isinstance(base, list) else tuple
        return raw.__getitem__(base, source.key)
    raise NotImplementedError(kind)


class Compiled:
    """A function that runs by its captures: one capture a call (no cache), continuations captured too."""

    def __init__(self, fn: Any, config: Any = None) -> None:
        self.fn = fn
        self.config = config
        self.captures: list[Captured] = []
        self.plain: list[tuple[CodeType, BaseException]] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        fn = self.fn
        if inspect.ismethod(fn):
            args = (fn.__self__, *args)
            fn = fn.__func__
        return self.run(fn, args, kwargs)

    def run(self, fn: FunctionType, args: Any, kwargs: Any) -> Any:
        bound = inspect.signature(fn, follow_wrapped=False).bind(*args, **kwargs)
        bound.apply_defaults()
        f_locals = dict(bound.arguments)
        code = fn.__code__
        cap = convert_frame(code, f_locals, fn.__globals__, fn.__closure__, self.config, lambda g, ex: lambda ins: evaluate(g, ins))
        self.captures.append(cap)
        cells = dict(zip(code.co_freevars, fn.__closure__ or ()))
        frame = {"locals": f_locals, "globals": fn.__globals__, "cells": cells}
        inputs = tuple(read(x, frame) for x in cap.input_sources)
        code2 = self.hook(cap.residual_code)
        residual = FunctionType(code2, fn.__globals__, fn.__name__, None, fn.__closure__)
        return residual(*[f_locals[n] for n in argument_names(code)], inputs)

    def hook(self, code: CodeType) -> CodeType:
        """Continuations in the constants run through capture as well."""
        consts = []
        for c in code.co_consts:
            if isinstance(c, FunctionType) and c.__code__.co_varnames[:1] and c.__code__.co_flags and _is_continuation(c.__code__):
                consts.append(lambda *a, c=c: self.run(c, a, {}))
            else:
                consts.append(c)
        return code.replace(co_consts=tuple(consts))

    @property
    def graphs(self) -> int:
        return sum(c.graph is not None for c in self.captures)

    @property
    def breaks(self) -> list[Any]:
        return [b for c in self.captures for b in c.breaks]


def _is_continuation(code: CodeType) -> bool:
    from framesmith.capture.resume import is_continuation

    return is_continuation(code)


def same(a: Any, b: Any) -> bool:
    """Equal values, tensors closely."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape and torch.allclose(a, b, atol=1e-6, equal_nan=True)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return type(a) is type(b) and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    return type(a) is type(b) and a == b
