"""Back ends by name: (graph, example inputs, config) -> (callable over one tuple, report or None)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from framesmith.config import Config
from framesmith.graph.interpreter import run
from framesmith.pipeline import Report, compile_graph

Compiled = Callable[[tuple[Any, ...]], tuple[Any, ...]]
Backend = Callable[[fx.Graph, Sequence[Any], Config], tuple[Compiled, Report | None]]


def compile_native(graph: fx.Graph, examples: Sequence[Any], config: Config) -> tuple[Compiled, Report | None]:
    """The pipeline's machine code."""
    result = compile_graph(graph, config, examples)
    return result.call, result.report


def run_eager(graph: fx.Graph, examples: Sequence[Any], config: Config) -> tuple[Compiled, Report | None]:
    """The captured graph, operator by operator: for finding out which stage is to blame."""
    return (lambda inputs: tuple(run(graph, inputs))), None


BACKENDS: dict[str, Backend] = {"native": compile_native, "inductor": compile_native, "eager": run_eager, "aot_eager": run_eager}
_users: dict[str, Callable[..., Any]] = {}


def register_backend(fn: Callable[..., Any] | None = None, *, name: str | None = None) -> Any:
    """Make `backend=name` (default: the function's name) mean `fn(gm, example_inputs) -> callable`; also a decorator."""
    if fn is None:
        return lambda f: register_backend(f, name=name)
    _users[name or fn.__name__] = fn

    def adapter(graph: fx.Graph, examples: Sequence[Any], config: Config) -> tuple[Compiled, Report | None]:
        call = fn(fx.GraphModule(torch.nn.Module(), graph), list(examples))
        return (lambda inputs: tuple(call(*inputs))), None

    BACKENDS[name or fn.__name__] = adapter
    return fn


def list_backends() -> list[str]:
    """The names that `backend=` takes."""
    return sorted(BACKENDS)


def lookup_backend(name: str) -> Callable[..., Any]:
    """The callable behind a name. Raises KeyError for an unknown one."""
    return _users.get(name) or BACKENDS[name]
