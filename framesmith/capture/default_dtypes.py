"""The default dtype, while a program changes it: a graph is recorded, compiled and run under one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from framesmith.fake import Recorder
from framesmith.util.errors import Unsupported

Call = Callable[[tuple[Any, ...]], tuple[Any, ...]]


class DefaultDtypes:
    """`used`: the default dtypes under which operators were recorded, from the first change on; None before."""

    __slots__ = ("nodes", "recorder", "used")

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.used: set[torch.dtype] | None = None
        self.nodes = 0

    def change(self) -> None:
        """Note that the program is about to set the default dtype."""
        if self.used is None:
            self.used = set()
            if any(node.op == "call_function" for node in self.recorder.graph.nodes):
                self.used.add(torch.get_default_dtype())
        self.nodes = len(self.recorder.graph.nodes)

    def note(self) -> None:
        """Note that a call has been recorded."""
        if self.used is not None and len(self.recorder.graph.nodes) > self.nodes:
            self.used.add(torch.get_default_dtype())
            if len(self.used) > 1:
                raise Unsupported("operators under another default dtype than those before them",
                                  hint="name the dtype in the calls")

    def of_graph(self) -> torch.dtype | None:
        """Return the default dtype that the graph needs, if the program may have set another than the frame began
        with."""
        return next(iter(self.used), None) if self.used else None


def under(dtype: torch.dtype, call: Callable[..., Any], *args: Any) -> Any:
    """`call(*args)` under a default dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        return call(*args)
    finally:
        torch.set_default_dtype(before)


class Under:
    """A caller of a graph that sets a default dtype around the call by `inner`."""

    __slots__ = ("dtype", "inner")

    def __init__(self, dtype: torch.dtype, inner: Callable[[Call, tuple[Any, ...]], tuple[Any, ...]] | None) -> None:
        self.dtype = dtype
        self.inner = inner

    def __call__(self, graph: Call, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        if self.inner is None:
            return under(self.dtype, graph, inputs)
        return under(self.dtype, self.inner, graph, inputs)
