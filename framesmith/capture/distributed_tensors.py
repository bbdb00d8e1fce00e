"""Tensors that are distributed over processes (`fake.wrappers.DISTRIBUTED`) in captured code.

A fake of such a class wraps the fake of its local part: PyTorch's own dispatch resolves an operator to operators on
local parts and collectives, which are recorded. It is differentiated there, too, since the way in which a gradient is
distributed follows from all operators behind the tensor: fakes keep autograd's graph, from the leaves, where a tensor
enters this part of the program, to where a plain tensor leaves it. The engine then runs from there to the leaves, and
what it computes is recorded as the derivative of that plain tensor: see `graph.derivative`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.fx import Node
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from framesmith.fake.layout import is_dense
from framesmith.fake.tensor import FakeTensor, metadata_of, with_sizes
from framesmith.graph.derivative import Traced
from framesmith.graph.purity import draws
from framesmith.graph.traversal import nodes_after
from framesmith.util.errors import Unsupported

from .arms import like
from .history import attach, refusing, spare_region, tangent


@dataclass(frozen=True, slots=True, eq=False)
class Leaf:
    """A tensor at which gradients leave this part of the program: the leaf of autograd's graph. `plain`: of its
    gradient the node that has it as gradient, and the plain tensor that it is."""

    tensor: Any
    plain: Callable[[Any], tuple[Node, FakeTensor]]


@dataclass(frozen=True, slots=True)
class Making:
    """A function that makes a distributed tensor of plain ones."""

    function: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


class Kind(Protocol):
    """A class of distributed tensors."""

    def parted(self, x: Any) -> tuple[dict[str, Any], Callable[[torch.Tensor], Any]]:
        """Return, for a fake, the keywords of `to_local` that make the local part which leaves captured code, and what
        makes the tensor of that."""
        ...

    def engine(self) -> AbstractContextManager[Any]:
        """Return the context in which the engine runs: it makes zeros that are plain for gradients that are missing."""
        ...


KINDS: dict[str, Kind] = {}
"""Module and name of classes of distributed tensors."""


def parted(tracer: Any, x: Any) -> tuple[FakeTensor, Callable[[torch.Tensor], Any]]:
    """Return the local part of a computed tensor that leaves captured code, with its derivative, and what makes the
    tensor of it."""
    cls: Any = type(x)
    keywords, make = KINDS[f"{cls.__module__}.{cls.__qualname__}"].parted(x)
    with torch.set_grad_enabled(x.requires_grad):
        return computed(tracer, cls.to_local, [x], keywords), make


def fixed(x: FakeTensor, grad: bool = False) -> FakeTensor:
    """Return the same value with sizes that are specialised, without history; `grad`: it requires grad. Layouts over
    processes are found by concrete sizes."""
    found = with_sizes(x, int) if any(type(n) is torch.SymInt for n in x.shape) else metadata_of(x)
    found._alias = x._alias
    return found.requires_grad_(grad)  # type: ignore[return-value]


def computed(tracer: Any, fn: Callable[..., Any], real: list[Any], named: dict[str, Any]) -> Any:
    """Return `fn(*real, **named)`, which reads or makes distributed tensors: plain results have their derivative."""
    recorder = tracer.recorder
    if tracer.transformed:
        raise Unsupported("distributed tensors in a function transform")
    if isinstance(bound := getattr(fn, "__self__", None), FakeTensor):
        fn, real = getattr(type(bound), fn.__name__), [bound, *real]
    enabled = torch.is_grad_enabled()
    values, tree = tree_flatten((real, named))
    given = [_entered(tracer, x, enabled) if isinstance(x, FakeTensor) else x for x in values]
    real, named = tree_unflatten(given, tree)
    last, writes = tracer.end()
    with recorder.above_autograd() if enabled else nullcontext():
        out = fn(*real, **named)
    if enabled and not {n for *_, n in recorder.written[writes:]} <= set(nodes_after(recorder.graph, last)):
        raise Unsupported(f"{getattr(fn, '__name__', fn)} writes a distributed tensor where gradients may be wanted")
    out = tree_map(lambda x: _without_history(tracer, x) if type(x) is FakeTensor else x, out)
    with torch.no_grad():
        tracer.follow(last, writes)
    return tree_map(lambda x: left(tracer, x) if type(x) is FakeTensor and x.grad_fn is not None else x, out)


def _without_history(tracer: Any, x: FakeTensor) -> FakeTensor:
    """Return a plain result; autograd has no history of the local part of a tensor."""
    if x.grad_fn is not None or not tracer.wants_grad(x):
        return x
    with torch.enable_grad():
        return x.detach()  # type: ignore[return-value]


def _entered(tracer: Any, x: FakeTensor, enabled: bool) -> FakeTensor:
    """Return a plain operand with concrete sizes, as a leaf if gradients go to it."""
    wanted = enabled and tracer.wants_grad(x)
    found = fixed(x, wanted)
    if wanted:
        node = tracer.recorder.nodes(x)
        tracer.leaves.append(Leaf(found, lambda grad: (node, grad)))
    return found


def left(tracer: Any, x: FakeTensor) -> FakeTensor:
    """Return a plain tensor that was computed of distributed ones, with its derivative in the graph."""
    recorder = tracer.recorder
    result = _apart(tracer, x)
    last, writes = tracer.end()
    val = like(result)
    node = recorder.emit(tangent, (), val)
    node.meta["grad"] = True
    tangents = recorder.own(val, node)
    engine: Any = torch.autograd.Variable._execution_engine  # type: ignore[attr-defined]
    leaves = tuple([leaf.tensor for leaf in tracer.leaves])
    with recorder.above_autograd(), ExitStack() as stack:
        for kind in KINDS.values():
            stack.enter_context(kind.engine())
        grads = engine.run_backward((x,), (tangents,), True, False, leaves, allow_unreachable=True,
                                    accumulate_grad=False)
        found = [leaf.plain(g) for leaf, g in zip(tracer.leaves, grads) if g is not None]
    tracer.follow(last, writes)
    places, parts = [n for n, _ in found], [recorder.own(metadata_of(g), recorder.nodes(g)) for _, g in found]
    if parts:  # operators of the forward have no history of their own
        refusing(tracer, parts, [node, *places], "a derivative of second order of operators on distributed tensors")
    region = spare_region(tracer, last)
    if any(map(draws, region)) or not {n for *_, n in recorder.written[writes:]} <= set(region):
        raise Unsupported("a derivative of distributed tensors writes tensors or draws random numbers")
    attach(tracer, [result], places, {(True,): Traced(region, [node], [recorder.nodes(g) for g in parts])}, True)
    return result


def _apart(tracer: Any, x: FakeTensor) -> FakeTensor:
    """Return a tensor with a storage of its own: history belongs to a whole storage. What the tensor is a view of is
    not seen while it is within the graph."""
    found = tracer.recorder.own(metadata_of(x), tracer.recorder.nodes(x))
    if x._alias.storage.input is not None or not is_dense(x.shape, x.stride()):
        tracer.former_views.append(found._alias.storage)
    return found  # type: ignore[no-any-return]
