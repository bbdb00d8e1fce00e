"""Derivatives of operators on tensors that are made of others.

Autograd differentiates the operator, not the class's computation on the parts (which may round, say). So an operator
runs above autograd on leaves over the same parts, and the engine runs over it at once, with tangents that are made of
tangents of parts. What is recorded then is the derivative of the parts of the results: see `graph.derivative`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from framesmith.fake.tensor import FakeTensor, is_differentiable, metadata_of
from framesmith.fake.wrappers import flattened, is_wrapper
from framesmith.graph.derivative import Traced
from framesmith.graph.purity import draws
from framesmith.util.errors import Unsupported

from .arms import like
from .history import attach, spare_region, tangent


def differentiated(tracer: Any, fn: Callable[..., Any], real: list[Any], named: dict[str, Any]) -> Any:
    """`fn(*real, **named)`, whose results have the history that autograd gives them."""
    recorder = tracer.recorder
    if isinstance(bound := getattr(fn, "__self__", None), torch.Tensor):
        fn, real = getattr(type(bound), fn.__name__), [bound, *real]
    values, tree = tree_flatten((real, named))
    leaves = {k: _leaf(x) for k, x in enumerate(values)
              if (isinstance(x, FakeTensor) or is_wrapper(type(x))) and tracer.wants_grad(x)}  # type: ignore[arg-type]
    given, keywords = tree_unflatten([leaves.get(k, x) for k, x in enumerate(values)], tree)
    last, writes = tracer.end()
    with recorder.above_autograd():
        out = fn(*given, **keywords)
    with torch.no_grad():
        tracer.follow(last, writes)
    if len(recorder.written) > writes:
        raise Unsupported(f"{getattr(fn, '__name__', fn)} writes a tensor where gradients are wanted")
    found, form = tree_flatten(out)
    places = [k for k, x in enumerate(found) if isinstance(x, torch.Tensor) and x.grad_fn is not None]
    if not places:
        return out
    results = [_apart(tracer, found[k]) for k in places]
    last, writes = tracer.end()
    tangents = [_tangent(recorder, x) for x in results]
    engine: Any = torch.autograd.Variable._execution_engine  # type: ignore[attr-defined]
    with recorder.above_autograd():
        grads = engine.run_backward(tuple([found[k] for k in places]), tuple(tangents), False, False,
                                    tuple(leaves.values()), allow_unreachable=True, accumulate_grad=False)
    tracer.follow(last, writes)
    region = spare_region(tracer, last)
    if len(recorder.written) > writes or any(map(draws, region)):
        raise Unsupported(f"the derivative of {getattr(fn, '__name__', fn)} writes tensors or draws random numbers")
    inputs = [values[k] for k in leaves]
    traced = Traced(region, _nodes(recorder, tangents), [
        None if g is None else recorder.nodes(g) for x, whole in zip(inputs, grads) for g in _gradients(x, whole)])
    attach(tracer, [x for one in results for x in _numbers(one)], _nodes(recorder, inputs),
           {(True,) * len(_nodes(recorder, results)): traced}, True)
    return tree_unflatten([results[places.index(k)] if k in places else x for k, x in enumerate(found)], form)


def _numbers(x: Any) -> list[FakeTensor]:
    """Return the tensors through which gradients of `x` go: itself, or parts."""
    return [x] if type(x) is FakeTensor else [p for p in flattened(x)[0].values() if is_differentiable(p.dtype)]


def _nodes(recorder: Any, values: list[Any]) -> list[Any]:
    return [recorder.nodes(part) for x in values for part in _numbers(x)]


def _made(x: Any, change: Callable[[FakeTensor], FakeTensor]) -> Any:
    """Return a tensor like `x`, with other values for the tensors that gradients go through."""
    if type(x) is FakeTensor:
        return change(x)
    parts, context = flattened(x)
    with torch._C.DisableTorchFunctionSubclass():
        layout = tuple(x.shape), x.stride()
    return type(x).__tensor_unflatten__({n: change(p) if is_differentiable(p.dtype) else p for n, p in parts.items()},
                                        context, *layout)


def _bare(x: FakeTensor) -> FakeTensor:
    """Return the same value without autograd's nodes."""
    found = metadata_of(x)
    found._alias = x._alias
    return found


def _leaf(x: Any) -> Any:
    if type(x) is not FakeTensor:
        return _made(x, _bare).requires_grad_()
    found = metadata_of(x, True)
    found._alias = x._alias
    return found


def _apart(tracer: Any, x: Any) -> Any:
    """Return a result in memory of its own: history belongs to a whole storage."""
    def own(part: FakeTensor) -> FakeTensor:
        alias = part._alias
        if alias.parent is None and alias.storage.input is None:
            return _bare(part)
        return torch.ops.aten.clone.default(_bare(part))  # type: ignore[no-any-return]

    with torch.no_grad():
        return _made(x, own)


def _tangent(recorder: Any, x: Any) -> Any:
    def one(part: FakeTensor) -> FakeTensor:
        val = like(part)
        node = recorder.emit(tangent, (), val)
        node.meta["grad"] = True
        return recorder.own(val, node)  # type: ignore[no-any-return]

    return _made(x, one)


def _gradients(x: Any, grad: Any) -> list[FakeTensor | None]:
    """Return the gradients of the tensors that `_numbers` returns for `x`."""
    if grad is None:
        return [None] * len(_numbers(x))
    if type(grad) is not type(x):
        raise Unsupported(f"a gradient that is a {type(grad).__name__}, of a {type(x).__name__}")
    return list(_numbers(grad))
