"""Functions by which a program directs the compiler: graph breaks, and functions that are taken whole, refused, or run
once."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch import nn

from framesmith.fake.wrappers import declare
from framesmith.util import marks
from framesmith.util.errors import Unsupported

from .. import trackers as t
from ..registry import CALLS, CODES, by_name, calls
from ..trackers import Args, Kwargs


@calls(marks.graph_break)
@by_name("torch._dynamo.decorators.graph_break", "torch._dynamo.decorators.skip_frame",
         "torch._dynamo.decorators.step_unsupported")
def _break(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    raise Unsupported("graph_break() was called")


@by_name("torch._dynamo.external_utils.is_compiling")
@calls(marks.is_compiling)
def _compiling(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    return t.TRUE


@by_name("torch._higher_order_ops.invoke_subgraph.invoke_subgraph_placeholder")
def _region(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    """Capture the body of a function that `nested_compile_region` marks with its caller."""
    return args[0].call(tracer, args[1:], kwargs)


@by_name("torch.compiler.cudagraph_mark_step_begin", *(f"torch._dynamo.decorators.{n}" for n in (
    "mark_dynamic", "maybe_mark_dynamic", "mark_static", "mark_static_address", "mark_unbacked")))
@calls(marks.mark_dynamic, marks.mark_static)
def _no_effect(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    return t.NONE


@by_name("torch._dynamo.mutation_guard.install_generation_tagging_init.<locals>.patched_init")
def _tagged(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    """Call the original `nn.Module.__init__` in place of the one that torch.compile installs once it was used."""
    patched: Any = vars(nn.Module)["__init__"]
    cells = dict(zip(patched.__code__.co_freevars, patched.__closure__, strict=True))
    return tracer.class_function(cells["init"].cell_contents).call(tracer, args, kwargs)


def _kept_from_dynamo(tracer: Any, fn: t.Function, args: Args, kwargs: Kwargs) -> t.Tracker:
    """Call a function that torch hides from torch.compile until its first call. An optimiser's, other than `step`, is
    not hidden from capture."""
    original = getattr(fn.value, "__wrapped__", None)
    if (isinstance(original, FunctionType) and original.__module__.startswith("torch.optim.")
        and original.__name__ != "step"):
        return tracer.made(original).call(tracer, args, kwargs)
    return tracer.inline(fn, args, kwargs)


CODES[id(torch._disable_dynamo(lambda: None).__code__)] = _kept_from_dynamo


def allow(fn: Callable[..., Any]) -> None:
    """Let calls of `fn` run as a whole on fakes: every operator that they reach is recorded, their Python is not
    followed. If `fn` is a class of tensors, so do operators on them (`fake.wrappers.declare`)."""
    if isinstance(fn, type) and issubclass(fn, torch.Tensor):
        declare(fn)
    else:
        def row(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
            name = getattr(fn, '__qualname__', fn)
            tracer.surroundings.bind(f"{name}, which is taken whole: what it reads is not seen")
            return tracer.torch_call(fn, args, kwargs)  # type: ignore[no-any-return]

        calls(fn)(row)


def disallow(fn: Callable[..., Any], why: str) -> None:
    """Let calls of `fn` end the graph."""

    @calls(fn)
    def row(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
        raise Unsupported(f"call of {getattr(fn, '__qualname__', fn)}: {why}")


def constant(fn: Callable[..., Any]) -> None:
    """Let calls of `fn` run during capture, and their results be constants of the compiled code."""

    def asked(*args: Any, **kwargs: Any) -> Any:
        with torch._C._EnableTorchFunction():  # capture itself asks no class of tensors
            return fn(*args, **kwargs)

    def row(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
        tracer.surroundings.bind(f"the result of {getattr(fn, '__qualname__', fn)}, which is asked for once a process")
        return tracer.fold_call(asked if tracer.functions else fn, args, kwargs)

    calls(fn)(row)


def substitute(original: Callable[..., Any], fn: Callable[..., Any]) -> None:
    """Let calls of `original` be captured as calls of `fn`."""
    calls(original)(lambda tracer, args, kwargs: tracer.made(fn).call(tracer, args, kwargs))


def forget(fn: Callable[..., Any]) -> None:
    """Let calls of `fn` be captured like any other's again."""
    CALLS.pop(fn, None)
