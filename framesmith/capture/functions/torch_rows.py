"""torch functions that need more than a run on fakes."""

from __future__ import annotations

from typing import Any

import torch

from framesmith.util.errors import Unsupported

from .. import trackers as t
from ..registry import calls, named

Args = list[t.Tracker]
Kwargs = dict[str, t.Tracker]


@calls(torch.is_tensor)
def _is_tensor(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    return t.boolean(isinstance(args[0], t.Tensor))


@calls(torch.Tensor, torch.FloatTensor, torch.LongTensor)
def _legacy(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    raise Unsupported("a legacy tensor constructor", hint="use torch.tensor or torch.empty")


@calls(torch._assert)
def _assert(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    if isinstance(args[0], t.Tensor):
        raise Unsupported("an assertion on a tensor's data")
    if not args[0].truth(cx):
        cx.raise_(AssertionError(args[1].real(cx)))
    return t.NONE


@calls(torch._check, torch._check_with)
def _check(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    rest = args[1:] if not isinstance(args[0], t.Class) else args[2:]
    cond = args[0] if not isinstance(args[0], t.Class) else args[1]
    if isinstance(cond, t.Tensor):
        raise Unsupported("an assertion on a tensor's data")
    if not cond.truth(cx):
        message = rest[0].call(cx, [], {}) if rest else t.Const("Expected cond to be True")
        error = args[0].value if isinstance(args[0], t.Class) else RuntimeError
        cx.raise_(error(message.real(cx)))
    return t.NONE


@calls(torch.numel)
def _numel(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    return cx.torch_call(torch.numel, args, kwargs)


@calls(torch.autograd.Function.apply.__func__)  # type: ignore[attr-defined]
def _apply(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    """Without grad, Function.apply is its forward."""
    klass = args[0]
    if torch.is_grad_enabled() and any(isinstance(a, t.Tensor) and a.fake.requires_grad for a in args):
        raise Unsupported("torch.autograd.Function under grad mode")
    forward = klass.get(cx, "forward")
    if klass.real(cx).setup_context is not torch.autograd.function._SingleLevelFunction.setup_context:
        return forward.call(cx, args[1:], kwargs)
    return forward.call(cx, [t.Object(torch.autograd.function.FunctionCtx), *args[1:]], kwargs)


def _untorch(name: str, *functions: Any) -> None:
    for fn in functions:

        @calls(fn)
        def _row(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
            raise Unsupported(name)


_untorch("function transforms are not captured yet", torch.vmap, torch.func.grad, torch.func.jvp, torch.func.vjp)
_untorch("torch.compile inside of compiled code", named("torch.compile"))
_untorch("NumPy arrays are not captured yet", torch.from_numpy)
