"""Function transforms (`torch.func`): torch's own Python of them runs for real, on fakes and under the recorder, so that what a transform
makes of each operator is recorded; the function that it transforms is followed like any other."""

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
from ..values import MADE

Args = list[t.Tracker]
Kwargs = dict[str, t.Tracker]


class _Run:
    """One run of a transform. `other`: a value went through it that torch cannot look into."""

    def __init__(self, cx: Any) -> None:
        self.cx = cx
        self.other = False

    def callback(self, fn: t.Tracker) -> Callable[..., Any]:
        """`fn` as the transform calls it."""

        def call(*args: Any, **kwargs: Any) -> Any:
            cx = self.cx
            out = fn.call(cx, [cx.made(a) for a in args], {k: cx.made(v) for k, v in kwargs.items()})
            return self.given(out)

        call.__name__ = getattr(fn, "name", call.__name__)  # torch's messages name it
        return call

    def given(self, x: t.Tracker) -> Any:
        """A value as torch's Python sees it."""
        if type(x) is t.Tuple or type(x) is t.List:
            items = [self.given(v) for v in x.open(self.cx)]
            return getattr(x.pytype(), "_make", x.pytype())(items)
        if type(x) is t.Dict:
            return x.like({k: self.given(v) for k, v in x.open(self.cx).items()}, None)
        if isinstance(x, (t.Tensor, t.Const)):
            return x.real(self.cx)
        self.other = True
        return t.Handed(x)

    def __call__(self, transform: Callable[..., Any], args: Args, kwargs: Kwargs) -> t.Tracker:
        cx = self.cx
        grad = cx.transformed
        given = [self.given(a) for a in args], {k: self.given(v) for k, v in kwargs.items()}
        before = cx.end()
        cx.transformed = True
        try:
            out = transform(*given[0], **given[1])
        except (FramesmithError, t.CapturedError, RecursionError, MemoryError):
            raise
        except Exception as e:
            if self.other:
                raise Unsupported(f"a function transform over values that are no tensors ({type(e).__name__}: {e})") from e
            return cx.raise_(e)
        finally:
            cx.transformed = grad
        if not grad and cx.differentiable:
            cx.follow(*before, transformed=True)
        return cx.made(out)


def _applied(cx: Any, fn: t.Function, args: Args, kwargs: Kwargs) -> t.Tracker:
    """A call of what `vmap(f)`, `grad(f)` and their kin gave: their own closure over a callback in the place of `f`."""
    fn.open(cx)
    run = _Run(cx)
    cells = []
    for name, cell in zip(fn.code.co_freevars, fn.closure or ()):
        value = cx.load_cell(cell, name)
        cells.append(types.CellType(run.callback(value) if name == "func" else value.real(cx)))
    return run(types.FunctionType(fn.code, fn.globals, fn.name, None, tuple(cells)), args, kwargs)


def _wrappers(*transforms: Callable[..., Any]) -> Iterator[types.CodeType]:
    """The code of the functions that the transforms give."""
    for transform in transforms:
        for code in transform.__code__.co_consts:
            if isinstance(code, types.CodeType) and "func" in code.co_freevars:
                yield code


for _code in _wrappers(torch.func.vmap, torch.func.grad, torch.func.grad_and_value, torch.func.jacrev, torch.func.jacfwd):
    CODES[id(_code)] = _applied


@calls(torch.func.jvp)
def _jvp(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    run = _Run(cx)
    callback = run.callback(args[0])
    return run(lambda *rest, **named: torch.func.jvp(callback, *rest, **named), args[1:], kwargs)


@calls(torch.func.vjp)
def _vjp(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    run = _Run(cx)
    callback = run.callback(args[0])

    def transform(*rest: Any, **named: Any) -> Any:
        out, pullback, *aux = torch.func.vjp(callback, *rest, **named)
        return (out, t.Handed(t.Pullback(pullback)), *aux)

    return run(transform, args[1:], kwargs)


@by_name("torch._functorch.apis._wraps_without_dynamo_attrs")
def _wraps(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    """`functools.wraps` of what is transformed; a partial has no name to give."""
    partial = args[0]
    if not isinstance(partial, t.Partial):
        return cx.made(functools.wraps).call(cx, args, kwargs)

    def wraps(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
        for name in ("__module__", "__doc__"):
            args[0].set(cx, name, cx.made(getattr(functools.partial, name)))
        args[0].set(cx, "__wrapped__", partial)
        return args[0]

    return t.ByRow(wraps)


def _like_meta(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")


def _tensor(cx: Any, value: Any) -> t.Tracker:
    if value.is_meta:  # torch.tensor makes it without an operator
        return cx.torch_call(_like_meta, [t.Const(value)], {})
    if not torch._C._functorch.is_functorch_wrapped_tensor(value):
        return cx.wrap(value, Pinned(value))
    found = cx.seen.get(id(value))
    return found if found is not None else cx.remember(value, t.Inner(value))


MADE[torch.Tensor] = _tensor
MADE[t.Handed] = lambda cx, value: value.tracker

__all__: list[str] = []
