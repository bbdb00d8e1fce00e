"""What handlers of operators ask of the recorder that calls them; `Recorder` is the one class that provides it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch.fx import Graph, Node

from framesmith.fake.tensor import Alias, FakeTensor

Content = Callable[[Node], "tuple[torch.Tensor, Callable[[], None]] | None"]
"""A placeholder's value and what assumes it; None if it is not to be assumed."""


class Recording(Protocol):
    """A graph under construction. `Recorder` documents the attributes."""

    graph: Graph
    autocast: tuple[str, ...]
    content: Content | None
    follows_grad: bool
    keeps_history: Callable[[FakeTensor], bool] | None
    on_cuda: bool
    on_current_device: bool
    placed: list[FakeTensor]
    shape_env: Any
    bound: dict[Any, Any]

    def dispatch(self, func: Any, args: tuple, kwargs: dict) -> Any: ...
    def inside(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any: ...
    def constant(self, real: torch.Tensor) -> FakeTensor: ...
    def number(self, value: Any, dtype: torch.dtype) -> FakeTensor: ...

    def number_of(self, number: Any) -> Any: ...
    def emit(self, func: Any, args: tuple, val: Any, kwargs: dict = ...) -> Node: ...
    def own(self, fake: FakeTensor, node: Node) -> FakeTensor: ...
    def view(self, source: FakeTensor, func: Any, args: tuple, fake: FakeTensor) -> FakeTensor: ...
    def results(self, node: Node, vals: Any) -> Any: ...
    def nodes(self, value: Any) -> Any: ...
    def read(self, alias: Alias) -> Node: ...
    def write(self, alias: Alias, node: Node) -> None: ...
    def laid_out(self, node: Node, val: FakeTensor) -> Node: ...
