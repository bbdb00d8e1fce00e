"""torch functions for which a run on fakes is not enough."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributions.utils import _lazy_property_and_property

from framesmith.util.errors import DataDependent, Unsupported

from .. import data
from .. import trackers as t
from ..registry import by_name, by_position, calls, named, refuses
from ..trackers import Args, Kwargs
from ..trackers.opaque import Opaque


@calls(_lazy_property_and_property)
def _lazy_in_class(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    """Return the value of a lazy property in a class of distributions: a marker, of which only the type is read."""
    return Opaque(_lazy_property_and_property, None, None)


@by_name("torch.fx.graph_module.GraphModule.recompile.<locals>.call_wrapped")
def _graph_module(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    """Call a GraphModule as an nn.Module; only the wording of errors differs."""
    if args[0].pytype()._wrapped_call.cls_call is not None:  # type: ignore[attr-defined]
        raise Unsupported("a GraphModule whose class defines __call__")
    return t.Method(tracer.class_function(nn.Module.__call__), args[0]).call(tracer, args[1:], kwargs)


@calls(torch._assert)
def _assert(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    if data.decides(tracer, args[0]):
        data.asserted(tracer, args[0], True)
    elif not args[0].truth(tracer):
        tracer.raise_(AssertionError(args[1].real(tracer)))
    return t.NONE


@calls(torch._check, torch._check_with)
def _check(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    rest = args[1:] if not isinstance(args[0], t.Class) else args[2:]
    cond = args[0] if not isinstance(args[0], t.Class) else args[1]
    if isinstance(cond, t.Tensor):
        raise Unsupported("an assertion on a tensor's data")
    if type(cond) is t.Sym:
        if cond.value.node.expect_true("", 0):
            return t.NONE
        cond = t.FALSE
    if type(cond) is t.Data and data.expected(tracer, cond):
        return t.NONE
    if type(cond) is t.Data and cond.kind is bool:
        data.asserted(tracer, cond, True)
    elif not cond.truth(tracer):
        message = rest[0].call(tracer, [], {}) if rest else t.Const("Expected cond to be True")
        error = args[0].value if isinstance(args[0], t.Class) else RuntimeError
        tracer.raise_(error(message.real(tracer)))
    return t.NONE


@calls(torch._check_is_size)
def _check_is_size(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    _check(tracer, [tracer.compare(">=", args[0], t.Const(0)), *args[1:]], {})
    if (most := kwargs.get("max", t.NONE)) is not t.NONE:
        _check(tracer, [tracer.compare("<=", args[0], most)], {})
    return t.NONE


@by_name("torch.jit.isinstance")
def _script_isinstance(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    klass = args[1].real(tracer)
    if not isinstance(klass, type):
        raise Unsupported("torch.jit.isinstance of a generic type")
    return tracer.made(isinstance).call(tracer, args, kwargs)


@calls(torch._C._group_tensors_by_device_and_dtype)
def _grouped(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    """Group lists of tensors by the first list's device and dtype, as foreach functions ask. Raises Unsupported where
    there is more than one group."""
    lists = [x.items_list(tracer) for x in args[0].items_list(tracer)]
    kinds = {(x.fake.device, x.fake.dtype) for x in lists[0] if isinstance(x, t.Tensor)}
    if len(kinds) != 1 or any(x is t.NONE for one in lists for x in one):
        raise Unsupported("tensors of several devices or dtypes, in groups whose order is not told")
    indices: list[t.Tracker] = ([t.Const(i) for i in range(len(lists[0]))] if len(args) > 1
                                and args[1].truth(tracer) else [])
    return t.Dict({kinds.pop(): t.Tuple([t.List([t.List(one) for one in lists]), t.List(indices)])})


def _all(tracer: Any, condition: t.Tracker) -> t.Tracker:
    data.asserted(tracer, tracer.torch_call(torch.all, [condition], {}), True)
    return t.NONE


by_position({
    torch.is_tensor: lambda tracer, x: t.boolean(isinstance(x, t.Tensor)),
    torch.numel: lambda tracer, *args, **kwargs: tracer.torch_call(torch.numel, list(args), kwargs),
    torch._check_tensor_all: lambda tracer, condition, *message: _all(tracer, condition),
    torch._check_tensor_all_with: lambda tracer, error, condition, *message: _all(tracer, condition),
})
refuses(DataDependent, "the lengths of a packed sequence",
        torch._VF._pack_padded_sequence, torch._VF._pad_packed_sequence,  # type: ignore[attr-defined]
        hint="pack and unpack sequences outside of the compiled code")
refuses(Unsupported, "torch.compile inside of compiled code", named("torch.compile"))
