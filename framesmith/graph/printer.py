"""Printing of graphs: one line for each node, with shape, dtype and the user's line.

    graph(x: f32[2, 3], w: f32[4, 3]):
      linear = aten.linear(x, w)  # f32[2, 4]  model.py:12 forward
      return (linear,)
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Graph, Node

from framesmith.graph.traversal import placeholders_of

_DTYPES = {
    torch.float32: "f32", torch.float64: "f64", torch.float16: "f16", torch.bfloat16: "bf16", torch.bool: "b8",
    torch.uint8: "u8",
    torch.int8: "i8", torch.int16: "i16", torch.int32: "i32", torch.int64: "i64", torch.complex64: "c64",
    torch.complex128: "c128",
}


def dtype_text(dtype: torch.dtype) -> str:
    """Return a short name of a dtype: f32, bf16, i64, b8."""
    return _DTYPES.get(dtype, str(dtype).removeprefix("torch."))


def print_graph(graph: Graph, name: str = "graph", *, strides: bool = False) -> str:
    """Return the graph as text; `strides` adds those of each value."""
    inputs = placeholders_of(graph)
    head = ", ".join(f"{n.name}: {text}" if (text := val_text(n.meta.get("val"), strides)) else n.name for n in inputs)
    lines = [f"{name}({head}):"]
    for node in graph.nodes:
        if node.op == "output":
            lines.append(f"  return {_arg(node.args[0])}")
        elif node.op != "placeholder":
            lines.append(f"  {node.name} = {_call(node)}{_comment(node, strides)}")
    return "\n".join(lines) + "\n"


def val_text(val: Any, strides: bool = False) -> str:
    """Dtype and sizes of a value with `.shape` and `.dtype`, of a tuple of such, or of a symbolic scalar."""
    if val is None:
        return ""
    if isinstance(val, (tuple, list)):
        return f"({', '.join(val_text(v, strides) or 'None' for v in val)})"
    shape, dtype = getattr(val, "shape", None), getattr(val, "dtype", None)
    if shape is None or dtype is None:
        return str(val)
    text = f"{dtype_text(dtype)}[{', '.join(map(str, shape))}]"
    if strides:
        stride = val.stride() if callable(getattr(val, "stride", None)) else getattr(val, "stride", None)
        text += "" if stride is None else f"({', '.join(map(str, stride))})"
    device = getattr(val, "device", None)
    return text if device is None or device.type == "cpu" else f"{text}@{device}"


def target_text(node: Node) -> str:
    """Return the name of what the node calls, as a user would write it."""
    target = node.target
    if isinstance(target, str):
        return target
    if isinstance(target, OpOverload):
        return str(target).removesuffix(".default")
    name = getattr(target, "name", None)
    if isinstance(name, str):
        return f"prims.{name}"
    module = (getattr(target, "__module__", None) or "").removeprefix("_")
    return f"{module}.{target.__name__}" if module and module != "builtins" else getattr(target, "__name__",
                                                                                         str(target))


def _call(node: Node) -> str:
    if node.op == "get_attr":
        return f"self.{node.target}"
    args = [_arg(a) for a in node.args]
    args += [f"{k}={_arg(v)}" for k, v in node.kwargs.items()]
    if node.op == "call_method":
        return f"{args[0]}.{node.target}({', '.join(args[1:])})"
    prefix = "self." if node.op == "call_module" else ""
    return f"{prefix}{target_text(node)}({', '.join(args)})"


def _arg(x: Any) -> str:
    if isinstance(x, Node):
        return x.name
    if isinstance(x, tuple):
        return f"({', '.join(map(_arg, x))}{',' if len(x) == 1 else ''})"
    if isinstance(x, list):
        return f"[{', '.join(map(_arg, x))}]"
    if isinstance(x, dict):
        return "{" + ", ".join(f"{k!r}: {_arg(v)}" for k, v in x.items()) + "}"
    if isinstance(x, slice):
        return f"slice({_arg(x.start)}, {_arg(x.stop)}, {_arg(x.step)})"
    if isinstance(x, torch.dtype):
        return dtype_text(x)
    return repr(x) if isinstance(x, str) else str(x)


def _comment(node: Node, strides: bool) -> str:
    parts = [text for text in (val_text(node.meta.get("val"), strides), where(node)) if text]
    return "  # " + "  ".join(parts) if parts else ""


def where(node: Node) -> str:
    """`file:line function` of the user's innermost frame, or nothing."""
    stack = node.meta.get("stack")
    if not stack:
        return ""
    file, line, function = stack[-1][:3]
    return f"{os.path.basename(file)}:{line} {function}"
