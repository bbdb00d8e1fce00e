"""Tensors of classes that wrap others (`fake.wrappers`) at the borders of captured code.

One that comes in is flattened: the graph takes its parts, by their attributes, and guards hold its class and context.
One that leaves is rebuilt from the graph's outputs for its parts. Where gradients go through it, a node of the autograd
engine joins the wrapper and its part, in either direction.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from framesmith._C import CompiledFunction
from framesmith.fake.layout import strides_like
from framesmith.fake.tensor import FakeTensor, is_differentiable, tensors_in
from framesmith.fake.wrappers import flattened, is_distributed
from framesmith.symbolic.node import SymNode, hint_of
from framesmith.util.errors import OddTensor, Unsupported

from . import trackers as t
from .distributed_tensors import parted
from .dynamic_sizes import size_text
from .rebuild_classes import tuple_text
from .sources import Applied, Attr, Guard, Source

Place = tuple[str, int]
"""A size of a part: its name and the dimension."""


@dataclass(frozen=True, slots=True, eq=False)
class Wraps:
    """A tensor is made of parts of these names, with this context. `sizes`: of each dimension the size, the size of a
    part that it must be, or None if parts decide; `strides`: None if they vary."""

    names: tuple[str, ...]
    context: Any
    requires_grad: bool
    sizes: tuple[int | Place | None, ...]
    strides: tuple[int, ...] | None

    def __call__(self, x: torch.Tensor) -> bool:
        parts, context = flattened(x)
        if tuple(parts) != self.names or context != self.context:
            return False
        with torch._C.DisableTorchFunctionSubclass():
            return (x.requires_grad is self.requires_grad and x.dim() == len(self.sizes)
                    and all(want is None or size == (want if type(want) is int else parts[want[0]].shape[want[1]])  # type: ignore[index]
                            for size, want in zip(x.shape, self.sizes))
                    and (self.strides is None or x.stride() == self.strides))


def wrapper(tracer: Any, value: Any, source: Source) -> t.Tracker:
    """Return the tracker of a tensor of such a class, which came from outside or was computed of fakes."""
    parts, context = flattened(value)
    if not all(isinstance(x, torch.Tensor) for x in parts.values()):  # a DTensor has a mesh: its operators communicate
        raise OddTensor(f"a {type(value).__name__}, which has parts that are no tensors")
    tracer.surroundings.bind(f"operators on a {type(value).__qualname__}, which run whole: what they read is not seen")
    if any(isinstance(x, FakeTensor) for x in parts.values()):
        return tracer.remember(value, t.WrapperTensor(value))  # type: ignore[no-any-return]
    if value.is_nested:
        prepare_nested(tracer.recorder)
    cls: Any = type(value)
    for name in ("__torch_function__", "__torch_dispatch__", "__tensor_flatten__", "__tensor_unflatten__"):
        tracer.lookup(cls, name)
    tracer.guard(source, "type", cls)
    sources: dict[str, Source] = {name: Attr(source, name) for name in parts}
    with tracer.recorder.off(), torch.set_grad_enabled(tracer.state.grad_enabled):
        if (joined := carrier(value, parts)) is not None:
            sources[joined] = Applied(source, unwrapping(joined), f"{{}}.{joined}")
            marks, parts[joined] = vars(parts[joined]), unwrapping(joined)(value)
            vars(parts[joined]).update(marks)
        detached = flattened(value.detach())[1]
    tracer.wrapped_parts.update(dict.fromkeys(sources.values()))
    inner = {name: tracer.input(x, sources[name]) for name, x in parts.items()}
    fakes = {name: inner[name].fake for name in parts}
    places, size, stride = outer_layout(value, fakes)
    fake = cls.__tensor_unflatten__(fakes, detached, size, stride)
    kept = tuple([None if type(n) is torch.SymInt and not (size and n is size[d]) else places[d]
                  for d, n in enumerate(fake.shape)])
    fixed = value.stride() if stride is not None and all(type(n) is int for n in stride) else None
    tracer.guard(source, "callable", Wraps(tuple(parts), context, value.requires_grad, kept, fixed))
    return tracer.remember(value, t.WrapperTensor(fake, value=value, source=source))  # type: ignore[no-any-return]


def prepare_nested(recorder: Any) -> None:
    """Make the tensor that PyTorch keeps for its calls about nested tensors, which must not be of fakes."""
    nested = importlib.import_module("torch.nested._internal.nested_tensor")
    if nested._dummy_instance is None:
        with recorder.off():
            nested._nt_view_dummy()


def outer_layout(value: Any, parts: dict[str, Any]) -> tuple[list[Any], tuple[Any, ...] | None, tuple[Any, ...] | None]:
    """Return the sizes to guard, and the sizes and strides of a fake: a size is a symbol where an equal size of a part
    is. None: the class has its own symbols among them, and defines them."""
    with torch._C.DisableTorchFunctionSubclass():
        shape, strides = tuple(value.shape), value.stride()
    if any(type(n) is not int for n in (*shape, *strides)):
        return [None if type(n) is not int else n for n in shape], None, None
    found = {hint_of(n): ((name, k), n) for name, x in parts.items() for k, n in enumerate(x.shape)
             if type(n) is torch.SymInt}
    places = [found[n][0] if n in found else n for n in shape]
    size = tuple([found[n][1] if n in found else n for n in shape])
    return places, size, strides_like(value, size) if found else strides


def carrier(value: Any, parts: dict[str, Any]) -> str | None:
    """Return the part through which gradients of a tensor that requires grad go; None: there are none."""
    if not value.requires_grad:
        return None
    found = [name for name, x in parts.items() if is_differentiable(x.dtype) and x.numel()]
    if len(found) != 1:
        raise OddTensor(f"a {type(value).__name__} that requires grad")
    return found[0]


def needs_derivative(tracer: Any, own: list[Any], values: list[Any]) -> bool:
    """Return whether gradients are to go through an operator on tensors `own` that has another derivative than what
    their class does to their parts. Jagged nested tensors have one: what is done to their values."""
    return (not all(x.is_nested for x in own) and bool(tracer.differentiable) and torch.is_grad_enabled()
            and any(map(tracer.wants_grad, [*own, *tensors_in(values)])))


# --- tensors that leave -----------------------------------------------------------------------------------------------
def rewrapped(rebuilder: Any, x: t.WrapperTensor) -> str:
    """Return the expression that makes the tensor again."""
    if x.source is not None and x.value is not None:
        return rebuilder.temp(rebuilder.source(x.source))  # type: ignore[no-any-return]
    tracer = rebuilder.tracer
    if is_distributed(type(x.fake)):  # type: ignore[arg-type]
        local, make = parted(tracer, x.fake)
        made = rebuilder.hold(CompiledFunction(make, None))
        return rebuilder.temp(f"{made}({rebuilder.values([tracer.made(local)])[0]})")  # type: ignore[no-any-return]
    parts, context = flattened(x.fake)
    texts = rebuilder.values([tracer.made(part) for part in parts.values()])
    if any(type(n) is torch.SymInt for n in _leaves(context)):
        raise Unsupported(f"a {type(x.fake).__name__} whose context has sizes that vary leaves captured code")
    with torch._C.DisableTorchFunctionSubclass():
        shape, strides = tuple(x.fake.shape), x.fake.stride()
    foreign = any(type(n) is torch.SymInt and not isinstance(n.node, SymNode) for n in (*shape, *strides))
    layout = "None, None" if foreign else f"{size_text(rebuilder, shape)}, {size_text(rebuilder, strides)}"
    made = rebuilder.hold(CompiledFunction(functools.partial(wrap, type(x.fake), tuple(parts), context), None))
    return rebuilder.temp(f"{made}({tuple_text(texts)}, {layout})")  # type: ignore[no-any-return]


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    return [leaf for v in value for leaf in _leaves(v)] if isinstance(value, (list, tuple)) else [value]


def wrap(cls: Any, names: tuple[str, ...], context: Any, parts: tuple[Any, ...], size: Any, stride: Any) -> Any:
    """Make a tensor of `cls`; gradients go through it to the part that requires grad."""
    given = dict(zip(names, parts))
    wanted = [name for name, x in given.items() if x.requires_grad] if torch.is_grad_enabled() else []
    if not wanted:
        return cls.__tensor_unflatten__(given, context, size, stride)
    made = functools.partial(_made, cls, given, context, size, stride)
    return _Wrap.apply(tuple(wanted), made, *[given[name] for name in wanted])


def _made(cls: Any, parts: dict[str, Any], context: Any, size: Any, stride: Any, fresh: dict[str, Any]) -> Any:
    return cls.__tensor_unflatten__({**parts, **fresh}, context, size, stride)


@functools.cache
def unwrapping(name: str) -> Callable[[Any], torch.Tensor]:
    """Return the function that gives the part `name` of a tensor, with its history."""
    return lambda x: _Unwrap.apply(x, (name,))[0]  # type: ignore[no-any-return]


class _Wrap(torch.autograd.Function):
    """A tensor of parts, `make({name: part})`."""

    @staticmethod
    def forward(ctx: Any, names: tuple[str, ...], make: Callable[..., Any],  # type: ignore[override]
                *parts: Any) -> Any:
        ctx.names = names
        return make({name: x.detach() for name, x in zip(names, parts)})

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:  # type: ignore[override]
        return None, None, *_Unwrap.apply(grad, ctx.names)


class _Unwrap(torch.autograd.Function):
    """The parts of a tensor at `names`; its gradient is a tensor of the same class."""

    @staticmethod
    def forward(ctx: Any, x: Any, names: tuple[str, ...]) -> Any:  # type: ignore[override]
        ctx.names = names
        parts, context = flattened(x.detach())
        with torch._C.DisableTorchFunctionSubclass():
            ctx.make = functools.partial(_made, type(x), parts, context, tuple(x.shape), x.stride())
        return tuple([parts[name].detach() for name in names])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:  # type: ignore[override]
        return _Wrap.apply(ctx.names, ctx.make, *grads), None


def distinct_part_guards(sources: dict[Source, None]) -> list[Guard]:
    """Guard that parts of wrappers are different objects: a class may compare them."""
    return [Guard(None, "distinct", tuple(sources))] if len(sources) > 1 else []
