"""Function transforms (`torch.func`): torch's own Python of them runs for real, on fakes and under the recorder, so
that what a transform makes of each operator is recorded; the function that it transforms is followed like any other."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from framesmith.util.errors import FramesmithError, Unsupported

from .. import trackers as t
from ..registry import CODES, by_name, calls
from ..sources import Pinned
from ..trackers import Args, Kwargs
from ..values import MADE


class _Run:
    """One run of a transform. `other`: a value passed through it that torch cannot inspect."""

    def __init__(self, tracer: Any) -> None:
        self.tracer = tracer
        self.other = False

    def callback(self, fn: t.Tracker) -> Callable[..., Any]:
        """Return `fn` in the form that the transform calls."""

        def call(*args: Any, **kwargs: Any) -> Any:
            tracer = self.tracer
            out = fn.call(tracer, [tracer.made(a) for a in args], {k: tracer.made(v) for k, v in kwargs.items()})
            return self.given(out)

        call.__name__ = getattr(fn, "name", call.__name__)  # torch's messages name it
        return call

    def given(self, x: t.Tracker) -> Any:
        """Return a value in the form that torch's Python sees."""
        if type(x) is t.Tuple or type(x) is t.List:
            items = [self.given(v) for v in x.open(self.tracer)]
            return getattr(x.pytype(), "_make", x.pytype())(items)
        if type(x) is t.Dict:
            return x.like({k: self.given(v) for k, v in x.open(self.tracer).items()}, None)
        if isinstance(x, (t.Tensor, t.Const)):
            return x.real(self.tracer)
        self.other = True
        return t.Handed(x)

    def __call__(self, transform: Callable[..., Any], args: Args, kwargs: Kwargs) -> t.Tracker:
        tracer = self.tracer
        if tracer.asks(*args, *kwargs.values()):
            raise Unsupported("a function transform of tensors of a class with a __torch_function__")
        grad = tracer.transformed
        given = [self.given(a) for a in args], {k: self.given(v) for k, v in kwargs.items()}
        before = tracer.end()
        tracer.transformed = True
        try:
            out = transform(*given[0], **given[1])
        except (FramesmithError, t.CapturedError, RecursionError, MemoryError):
            raise
        except Exception as e:
            if self.other:
                raise Unsupported(
                    f"a function transform over values that are no tensors ({type(e).__name__}: {e})") from e
            return tracer.raise_(e)
        finally:
            tracer.transformed = grad
        if not grad and tracer.differentiable:
            tracer.follow(*before, transformed=True)
        return tracer.made(out)


def _applied(tracer: Any, fn: t.Function, args: Args, kwargs: Kwargs) -> t.Tracker:
    """Call the result of `vmap(f)`, `grad(f)` or a similar transform: its own closure, over a callback in place of
    `f`."""
    fn.open(tracer)
    run = _Run(tracer)
    cells = []
    for name, cell in zip(fn.code.co_freevars, fn.closure or ()):
        value = tracer.load_cell(cell, name)
        cells.append(types.CellType(run.callback(value) if name == "func" else value.real(tracer)))
    return run(types.FunctionType(fn.code, fn.globals, fn.name, None, tuple(cells)), args, kwargs)


def _wrappers(*transforms: Callable[..., Any]) -> Iterator[types.CodeType]:
    """Yield the code of the functions that the transforms give."""
    for transform in transforms:
        for code in transform.__code__.co_consts:
            if isinstance(code, types.CodeType) and "func" in code.co_freevars:
                yield code


for _code in _wrappers(torch.func.vmap, torch.func.grad, torch.func.grad_and_value, torch.func.jacrev,
                       torch.func.jacfwd):
    CODES[id(_code)] = _applied


@calls(torch.func.jvp)
def _jvp(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    run = _Run(tracer)
    callback = run.callback(args[0])
    return run(lambda *rest, **named: torch.func.jvp(callback, *rest, **named), args[1:], kwargs)


@calls(torch.func.vjp)
def _vjp(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    run = _Run(tracer)
    callback = run.callback(args[0])

    def transform(*rest: Any, **named: Any) -> Any:
        out, pullback, *aux = torch.func.vjp(callback, *rest, **named)
        return (out, t.Handed(t.Pullback(pullback)), *aux)

    return run(transform, args[1:], kwargs)


@by_name("torch._functorch.apis._wraps_without_dynamo_attrs")
def _wraps(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    """`functools.wraps` of the transformed function; a partial has no name."""
    partial = args[0]
    if not isinstance(partial, t.Partial):
        return tracer.made(functools.wraps).call(tracer, args, kwargs)

    def wraps(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
        for name in ("__module__", "__doc__"):
            args[0].set(tracer, name, tracer.made(getattr(functools.partial, name)))
        args[0].set(tracer, "__wrapped__", partial)
        return args[0]

    return t.ByRow(wraps)


def _like_meta(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")


def _tensor(tracer: Any, value: Any) -> t.Tracker:
    if value.is_meta:  # torch.tensor makes it without an operator
        return tracer.torch_call(_like_meta, [t.Const(value)], {})
    if not torch._C._functorch.is_functorch_wrapped_tensor(value):
        return tracer.wrap(value, Pinned(value))
    found = tracer.seen.get(id(value))
    return found if found is not None else tracer.remember(value, t.Inner(value))


MADE[torch.Tensor] = _tensor
MADE[t.Handed] = lambda tracer, value: value.tracker
