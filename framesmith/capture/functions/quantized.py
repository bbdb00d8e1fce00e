"""Layers of torch.ao with dynamic quantisation: what a library packed is unpacked into tensors, which the graph takes.

A packed weight does not change; guards hold it by identity.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from framesmith.util.errors import Unsupported

from .. import trackers as t
from ..polyfills import quantized as py
from ..registry import calls
from ..sources import Attr, Pinned
from ..trackers import Args, Kwargs

library = torch.ops.quantized


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Unpacked:
    """`weight`: the integers of a matrix with `scale` for each row; or float16, without."""

    weight: torch.Tensor
    scale: torch.Tensor | None
    bias: torch.Tensor | None


_unpacked = WeakIdKeyDictionary()


def _integers(packed: Any) -> Unpacked:
    """Raises `Unsupported` for a weight whose levels are not symmetric."""
    weight, bias = library.linear_unpack(packed)
    rows = weight.qscheme() in (torch.per_channel_affine, torch.per_channel_symmetric)
    if weight.q_per_channel_zero_points().any() if rows else weight.q_zero_point():
        raise Unsupported("a quantised weight with a zero point", hint="quantise weights symmetrically")
    scale = weight.q_per_channel_scales().float() if rows else torch.full((len(weight),), weight.q_scale())
    return Unpacked(weight.int_repr(), scale, None if bias is None else bias.detach())


def _halves(packed: Any) -> Unpacked:
    weight, bias = library.linear_unpack_fp16(packed)
    return Unpacked(weight.half(), None, None if bias is None else bias.detach())


def _unpacks(unpack: Callable[[Any], Unpacked], python: Callable[..., torch.Tensor], relu: bool, *defaults: Any,
             name: str) -> None:
    operator = getattr(library, name)

    @calls(operator, operator.default)
    def row(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
        x, packed = (args[k] if k < len(args) else kwargs[key] for k, key in enumerate(("X", "W_prepack")))
        if not isinstance(packed, t.Object) or packed.source is None:
            raise Unsupported("a packed weight that the program makes in the call")
        tracer.guard(packed.source, "id", packed.value)
        if (found := _unpacked.get(packed.value)) is None:
            with tracer.recorder.off():
                found = _unpacked[packed.value] = unpack(packed.value)
        parts = [tracer.made(None) if part is None else tracer.wrap(part, Attr(Pinned(found), key))
                 for key, part in (("weight", found.weight), ("scale", found.scale), ("bias", found.bias))
                 if key != "scale" or part is not None]
        rest = [args[k + 2] if k + 2 < len(args) else kwargs.get("reduce_range", tracer.made(value))
                for k, value in enumerate(defaults)]
        return tracer.made(python).call(tracer, [x, *parts, tracer.made(relu), *rest], {})


for _name, _relu in (("linear_dynamic", False), ("linear_relu_dynamic", True)):
    _unpacks(_integers, py.linear_dynamic, _relu, False, name=_name)
    _unpacks(_halves, py.linear_of_halves, _relu, name=f"{_name}_fp16")
