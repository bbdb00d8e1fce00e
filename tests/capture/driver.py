"""Runs functions through capture and the hook, with eager's kernels for the graphs."""

from __future__ import annotations

from types import CodeType, FunctionType
from typing import Any

import torch

from framesmith import _C
from framesmith.capture.dynamic_sizes import DynamicSizes
from framesmith.capture.entry import Captured, convert_frame
from framesmith.capture.guards import compile_guards
from framesmith.capture.origins import is_continuation
from framesmith.graph.interpreter import run


class Compiled:
    """A function that runs by its captures under the hook: one capture a frame (no cache), continuations captured
    too. `symbols`: the sizes of inputs are symbols."""

    def __init__(self, fn: Any, config: Any = None, symbols: bool = False) -> None:
        self.code = getattr(fn, "__func__", fn).__code__
        self.callback = self.capture  # entries belong to the callback by its identity
        self.call = _C.CompiledFunction(fn, self.callback)
        self.config, self.symbols = config, symbols
        self.captures: list[Captured] = []
        self.entries: list[Any] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.call(*args, **kwargs)

    def capture(self, code: CodeType, fn: FunctionType, f_locals: dict[str, Any]) -> Any:
        if code is not self.code and not is_continuation(code):
            return _C.SKIP
        _C.reset(code)
        cap = convert_frame(code, f_locals, fn.__globals__, fn.__closure__, self.config,
                            lambda g, *_: lambda ins: tuple(run(g, ins)),
                            sizes=DynamicSizes(every=True) if self.symbols else None)
        self.captures.append(cap)
        entry = _C.Entry(compile_guards(cap.guards, cap.input_sources, fn.__globals__), code, cap.residual_code,
                         self.callback)
        self.entries.append(entry)
        return entry

    @property
    def graphs(self) -> int:
        return sum(c.graph is not None for c in self.captures)

    @property
    def breaks(self) -> list[Any]:
        return [b for c in self.captures for b in c.breaks]


def same(a: Any, b: Any) -> bool:
    """Equal values, tensors closely."""
    if isinstance(a, torch.Tensor):
        return (isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape
                and torch.allclose(a, b, atol=1e-6, equal_nan=True))
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return type(a) is type(b) and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    return type(a) is type(b) and a == b
