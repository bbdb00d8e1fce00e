"""Parameters that a program creates while it runs: a detached tensor of class Parameter, which residual code turns into
a real one.

Its gradient is not captured: where grad mode is on, or is turned on later, capture refuses.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from framesmith.util.errors import Unsupported

from .. import trackers as t
from ..registry import calls
from ..trackers import Args, Kwargs


@calls(nn.Parameter)
def _parameter(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    data, flag = _arguments(*args, **kwargs)
    if data is None:
        data = tracer.torch_call(torch.empty, [t.Const(0)], {})
    if not isinstance(data, t.Tensor) or not isinstance(flag, t.Const) or data.pyclass not in (torch.Tensor,
                                                                                               nn.Parameter):
        raise Unsupported(f"a Parameter made of {data.describe()}")
    if flag.value and torch.is_grad_enabled():
        raise Unsupported("a Parameter made in grad mode",
                          hint="make parameters in the module's __init__, or under torch.no_grad()")
    made = tracer.torch_call(torch.Tensor.detach, [data], {})
    made.pyclass = nn.Parameter
    made.attrs = {"requires_grad": t.boolean(bool(flag.value))}
    tracer.makes_parameters = tracer.makes_parameters or bool(flag.value)
    return made


def _arguments(data: t.Tracker | None = None, requires_grad: t.Tracker = t.TRUE) -> tuple[t.Tracker | None, t.Tracker]:
    return (None if data is t.NONE else data), requires_grad


@calls(torch._C._set_grad_enabled)
def _set_grad(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    if tracer.makes_parameters and args[0].real(tracer):
        raise Unsupported("grad mode turned on after a Parameter was made in the frame")
    torch._C._set_grad_enabled(args[0].real(tracer))
    return t.NONE
