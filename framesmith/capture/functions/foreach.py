"""Functions over lists of tensors, captured as a call for each tensor; and the fused steps of optimisers, which are
such loops."""

from __future__ import annotations

import functools
from typing import Any

import torch

from framesmith.util.errors import Unsupported

from .. import trackers as t
from ..polyfills import fused
from ..registry import calls
from ..trackers import Args, Kwargs

_PREFIX = "_foreach_"
_WHOLE = frozenset({"mm", "powsum"})
_FUNCTIONS = {"norm": torch.linalg.vector_norm, "maximum": torch.clamp_min, "minimum": torch.clamp_max,
              "pow": torch.pow,
              "maximum_": torch.Tensor.clamp_min_, "minimum_": torch.Tensor.clamp_max_}
"""The functions for names that no method of a tensor has, or whose method takes no number in place of a tensor."""
_SCALES = frozenset({"addcdiv", "addcdiv_", "addcmul", "addcmul_"})
"""Those whose last argument, by position or as `scalars`, is the keyword `value` of the tensor's method."""


@functools.cache
def _gives_lists() -> bool:
    """Return whether this version's functions that write tensors return the list of these."""
    write: Any = torch._foreach_zero_
    return write([torch.zeros((), device="cpu")]) is not None


def _each(name: str, fn: Any) -> None:
    single = _FUNCTIONS.get(name) or getattr(torch.Tensor, name)

    @calls(fn)
    def row(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
        args, kwargs = list(args), dict(kwargs)
        if name in _SCALES and (len(args) > 3 or "scalars" in kwargs):
            kwargs["value"] = kwargs.pop("scalars") if "scalars" in kwargs else args.pop()
        lists = [x for x in (*args, *kwargs.values()) if isinstance(x, t.Sequence)]
        count = {x.size(tracer) for x in lists}
        if not args or count in (set(), {0}) or len(count) > 1 or isinstance(kwargs.get("value"), t.Tensor):
            return tracer.torch_call(fn, args, kwargs)  # type: ignore[no-any-return]
        at = {id(x): x.items_list(tracer) for x in lists}

        def taken(x: t.Tracker, i: int) -> t.Tracker:
            return at[id(x)][i] if id(x) in at else x

        made = [tracer.torch_call(single, [taken(x, i) for x in args], {k: taken(x, i) for k, x in kwargs.items()})
                for i in range(count.pop())]
        if name.endswith("_"):
            return args[0] if _gives_lists() else t.NONE
        return t.Tuple(made)


for _name in dir(torch):
    if _name.startswith(_PREFIX) and _name.removeprefix(_PREFIX) not in _WHOLE:
        _each(_name.removeprefix(_PREFIX), getattr(torch, _name))


def _fused(python: Any, fn: Any) -> None:
    @calls(fn)
    def row(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
        if any(kwargs.get(name, t.NONE) is not t.NONE for name in ("grad_scale", "found_inf")):
            raise Unsupported("a fused step under a GradScaler")
        return tracer.made(python).call(tracer, args, kwargs)  # type: ignore[no-any-return]


_fused(fused.adam, torch._fused_adam_)
_fused(fused.adamw, torch._fused_adamw_)
_fused(fused.sgd, torch._fused_sgd_)
_fused(fused.adagrad, torch._fused_adagrad_)
