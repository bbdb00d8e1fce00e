"""Digests of graphs: equal texts mean equal programs, for any names of nodes."""

from __future__ import annotations

from types import FunctionType
from typing import Any

from torch.fx import Graph, Node

from framesmith.graph.symbols import symbols_of


def digest_text(graph: Graph) -> str:
    """Return a text of operators, arguments, sizes, strides and types of `graph`, with nodes by number, and of the
    ranges of its symbols, without user lines (`meta["stack"]`)."""
    numbers: dict[Node, int] = {}
    lines = []
    for number, node in enumerate(graph.nodes):
        numbers[node] = number
        lines.append(
            f"{number} {node.op} {_target(node)} {_argument(node.args, numbers)} {_argument(node.kwargs, numbers)} "
            f"{_value(node.meta.get('val'))} {bool(node.meta.get('param'))} "
            f"{node.meta.get('layout', '')}{node.meta.get('bits', '')} "
            f"{'given up' if node.op == 'placeholder' and node.meta.get('given up') else ''}"
        )
    lines += [f"{s.name} in {s.lo}..{s.hi}" for s in sorted(symbols_of(graph.nodes), key=lambda s: s.name)]
    return "\n".join(lines)


def _target(node: Node) -> str:
    target = node.target
    if node.op in ("placeholder", "output"):
        return ""
    return target if isinstance(target, str) else f"{getattr(target, '__module__', '')}.{target_name(target)}"


def target_name(target: Any) -> str:
    """Return a target's name, the same in every process: a module's function has its qualified name, not its
    address."""
    if isinstance(target, FunctionType) and target.__closure__ is None and "<" not in target.__qualname__:
        return target.__qualname__
    return str(target)


def _argument(value: Any, numbers: dict[Node, int]) -> str:
    if isinstance(value, Node):
        return f"%{numbers[value]}"
    if isinstance(value, tuple | list):
        return f"[{', '.join(_argument(v, numbers) for v in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{k}: {_argument(v, numbers)}' for k, v in value.items())}}}"
    return f"{type(value).__name__}:{value!r}"


def _value(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"({', '.join(map(_value, value))})"
    shape = getattr(value, "shape", None)
    if shape is None:
        return str(value)
    stride = value.stride() if callable(value.stride) else value.stride
    return f"{value.dtype}{tuple(shape)}{stride}{value.device}"
