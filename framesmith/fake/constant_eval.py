"""Evaluation, on demand, of tensors that depend only on constants of the program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node
from torch.fx.node import map_aggregate

from framesmith.fake.layout import is_of_data
from framesmith.fake.recording import Content, Recording
from framesmith.fake.schema import is_random
from framesmith.fake.tensor import FakeTensor
from framesmith.graph.symbols import flat
from framesmith.symbolic.node import specialised
from framesmith.util.interrupts import raised_by_handler

_MOST_NODES = 500
_MOST_ELEMENTS = 1 << 16


def known_value(
    rec: Recording, fake: FakeTensor, assuming: bool = False, most: int = _MOST_ELEMENTS,
    device: torch.device | None = None
) -> torch.Tensor | None:
    """Return a real tensor with the present value of `fake`, or None if it depends on inputs, on random numbers, or on
    more than `most` elements, or if an operator refuses the values, as it will when the graph runs.

    `assuming`: inputs whose content may be assumed (`Recorder.content`) count as constants. `device`: the device of the
    computation and the result; by default that of `fake`.
    """
    node = rec.nodes(fake)
    order: list[Node] = []
    values: dict[Node, Any] = {}
    contents: dict[Node, tuple[torch.Tensor, Callable[[], None]]] = {}
    with torch._C._DisableTorchDispatch():
        if not _slice(node, set(), order, rec.content if assuming else None, contents, most):
            return None
        values.update({at: value for at, (value, _) in contents.items()})
        try:
            for step in order:
                if step not in values:
                    values[step] = _run(step, values, device)
        except Exception as problem:
            if raised_by_handler(problem):
                raise
            return None
        for _, assume in contents.values():
            assume()
        return values[node].detach().clone()


def _slice(node: Node, seen: set[Node], order: list[Node], content: Content | None, contents: dict[Node, Any],
           most: int) -> bool:
    """Return all nodes that `node` depends on, in order; False if one of them is no constant, and may not be
    assumed."""
    if node in seen:
        return True
    seen.add(node)
    val = node.meta.get("val")
    if "binds" in node.meta or any(map(is_of_data, [*getattr(val, "shape", ()), *flat((node.args, node.kwargs))])):
        return False
    if len(seen) > _MOST_NODES:
        return False
    target: Any = node.target
    if node.op == "placeholder":
        if "constant" not in node.meta:
            found = None if content is None else content(node)
            if found is None:
                return False
            contents[node] = found
    elif isinstance(target, torch._ops.OpOverload) and (is_random(target) or target._schema.is_mutable
                                                        or target.namespace != "aten"):
        return False
    elif not isinstance(target, torch._ops.OpOverload) and (not node.all_input_nodes
                                                            or not getattr(target, "is_pure", True)):
        return False  # it stands for what is not known yet, or draws
    if not all(_slice(n, seen, order, content, contents, most) for n in node.all_input_nodes):
        return False
    if isinstance(val, torch.Tensor) and val.numel() > most:  # asks about sizes, so of constants alone
        return False
    order.append(node)
    return True


def _run(node: Node, values: dict[Node, Any], device: torch.device | None) -> Any:
    if node.op == "placeholder":
        constant = node.meta["constant"]
        return constant if device is None else constant.to(device)

    args, kwargs = map_aggregate((node.args, dict(node.kwargs)),
                                 lambda a: values[a] if isinstance(a, Node) else specialised(a))
    if device is not None and "device" in kwargs:
        kwargs = {**kwargs, "device": device}
    return node.target(*args, **kwargs)  # type: ignore[operator]
