"""`Emitter`: makes the nodes of one ONNX graph, and what rows ask of values: their dtype, shape, and as constants."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import onnx
import onnx_ir as ir
import torch
from onnx_ir.tensor_adapters import TorchTensor, from_torch_dtype

from framesmith.prims.core import DTYPES, Spec
from framesmith.symbolic.expr import Expr

Value = ir.Value
Number = bool | int | float
LAST = 2**63 - 1
"""The end of a Slice that reaches past the last element."""


class NoForm(Exception):
    """A call has no form in ONNX; the text says why, unless the whole operator has none."""


class Problem(NamedTuple):
    """A call that has no form: its operator, the user's line, and why."""

    operator: str
    place: str
    why: str

    def __str__(self) -> str:
        return f"{self.operator}{self.place and f', at {self.place}'}{self.why and f': {self.why}'}"


class Emitter:
    """Makes nodes in order: `m("Add", x, y)` is the value of one.

    `opset`: the version of ONNX's operators. `out`: the metadata of the call that a row is at. `initializers` belong to
    the main graph: those of inner graphs are in it, too. A size is a value of type int64 and shape [1], and a number
    that is computed of sizes a float64 of that shape; both are marked by `number`.
    """

    def __init__(self, opset: int, outer: Emitter | None = None) -> None:
        self.opset = opset
        self.nodes: list[ir.Node] = []
        self.initializers: dict[str, Value] = {} if outer is None else outer.initializers
        self.constants: dict[Any, Value] = {} if outer is None else outer.constants
        self.names: set[str] = set() if outer is None else outer.names
        self.problems: list[Problem] = [] if outer is None else outer.problems
        self.out: Any = None
        self.place = ""

    # --- nodes
    def __call__(self, op: str, *inputs: Value | None, outputs: int = 1, **attributes: Any) -> Any:
        """Return the value of a new node, or a tuple of `outputs` values. An input that is left out is None."""
        allowed, results = _types(op, self.opset)
        for x, types in zip(inputs, allowed, strict=False):
            if x is not None and x.dtype is not None and f"tensor({x.dtype.name.lower()})" not in types:
                raise NoForm(f"{op} takes no {x.dtype.name.lower()}")
        given = {k: v for k, v in attributes.items() if v is not None}
        about = {"source": self.place} if self.place else None
        node = ir.node(op, inputs, given, num_outputs=outputs, metadata_props=about)
        self.nodes.append(node)
        dtypes = [None if x is None else x.dtype for x in inputs]
        for made, result in zip(node.outputs, results, strict=False):
            if (kind := result(dtypes)) is not None:
                made.dtype = kind
        if op == "Cast":
            node.outputs[0].dtype = attributes["to"]
        return node.outputs[0] if outputs == 1 else tuple(node.outputs)

    def unique(self, name: str) -> str:
        """Return the name, or one made of it that no value has yet."""
        made, k = name, 1
        while made in self.names:
            made, k = f"{name}_{k}", k + 1
        self.names.add(made)
        return made

    def describe(self, value: Value, spec: Any) -> Value:
        """Return the value with its dtype and named sizes."""
        if spec.dtype not in DTYPES:
            raise NoForm(f"values of {str(spec.dtype).removeprefix('torch.')}")
        value.meta["spec"] = spec
        value.dtype = from_torch_dtype(spec.dtype)
        value.shape = ir.Shape([n if isinstance(n, int) else str(n) for n in spec.shape])
        return value

    # --- constants
    def initializer(self, name: str, tensor: torch.Tensor) -> Value:
        """Return a tensor of the file."""
        value = Value(name=self.unique(name), const_value=TorchTensor(tensor.detach(), name))
        value.const_value.name = value.name  # type: ignore[union-attr]
        self.describe(value, Spec.of(tensor))
        self.initializers[value.name] = value  # type: ignore[index]
        return value

    def constant(self, value: Any, dtype: torch.dtype) -> Value:
        """Return a scalar, or an array of nested tuples."""
        key = (repr(value), dtype)
        if key not in self.constants:
            self.constants[key] = self.initializer("const", torch.tensor(value, dtype=dtype))
        return self.constants[key]

    def ints(self, values: Iterable[Any]) -> Value:
        """Return a vector of integers, each of them an int or a size."""
        values = list(values)
        if all(isinstance(v, int) for v in values):
            return self.constant([int(v) for v in values], torch.int64)
        parts: list[Any] = []
        for v in values:
            if isinstance(v, int) and parts and isinstance(parts[-1], list):
                parts[-1].append(v)
            else:
                parts.append([v] if isinstance(v, int) else self("Reshape", v, self.ints([1])))
        made = [self.ints(p) if isinstance(p, list) else p for p in parts]
        return made[0] if len(made) == 1 else self("Concat", *made, axis=0)  # type: ignore[no-any-return]

    def number(self, x: Any, dtype: torch.dtype) -> Value:
        """Return a Python number or a size as a scalar."""
        if isinstance(x, Value):
            return self.cast(self("Reshape", x, self.ints([])), dtype)
        if not dtype.is_floating_point and isinstance(x, float):
            x = bool(x) if dtype is torch.bool else int(x)
        return self.constant(bool(x) if dtype is torch.bool else x, dtype)

    # --- dtypes
    def cast(self, x: Any, dtype: torch.dtype) -> Value:
        """Return a value, or a number, in a dtype."""
        if dtype not in DTYPES:
            raise NoForm(f"values of {str(dtype).removeprefix('torch.')}")
        if not isinstance(x, Value) or ("number" in x.meta and "spec" not in x.meta):
            return self.number(x, dtype)
        kind = from_torch_dtype(dtype)
        if x.dtype == kind:
            return x
        made: Value = self("Cast", x, to=kind)
        made.dtype, made.shape = kind, x.shape
        if (spec := x.meta.get("spec")) is not None:
            made.meta["spec"] = Spec(spec.shape, dtype, spec.device)
        return made

    def cast_number(self, x: Value, dtype: torch.dtype) -> Value:
        """Return a size, or a number that is computed of sizes, in a dtype, as a vector still."""
        made: Value = self("Cast", x, to=from_torch_dtype(dtype))
        made.meta["number"] = float if dtype.is_floating_point else int
        return made

    def common(self, *xs: Any) -> torch.dtype:
        """Return the dtype to which eager promotes operands."""
        given = sorted(map(_example, xs), key=_precedence)  # those with dimensions decide within a category
        made = given[0]
        for x in given[1:]:
            made = torch.empty([1] * made.dim(), dtype=torch.result_type(made, x))
        return made.dtype  # type: ignore[no-any-return]

    def size(self, x: Value, dim: int) -> Any:
        """Return a size of a value: an int, or a value."""
        n = shape_of(x)[dim]
        if isinstance(n, int):
            return n
        d = dim % len(shape_of(x))
        made = self("Shape", x, start=d, end=d + 1)
        made.meta["number"] = int
        return made

    def sizes(self, x: Value) -> list[Any]:
        """Return all sizes of a value."""
        return [self.size(x, d) for d in range(len(shape_of(x)))]

    # --- what many rows do
    def reshape(self, x: Value, shape: Sequence[Any], values: Sequence[Any]) -> Value:
        """Return the elements of a value in another shape. `shape`: its sizes as metadata, `values`: as ints or
        values."""
        if shape_of(x) == tuple(shape):
            return x
        if 0 in shape or 0 in shape_of(x):
            return self("Reshape", x, self.ints(values), allowzero=1)  # type: ignore[no-any-return]
        before = shape_of(x)
        made = [n if isinstance(n, int) else 0 if d < len(before) and before[d] == n else None
                for d, n in enumerate(shape)]
        if made.count(None) == 1 and all(_may_be_left_open(n) for n in shape):
            made[made.index(None)] = -1
        return self("Reshape", x, self.ints([v if n is None else n  # type: ignore[no-any-return]
                                             for n, v in zip(made, values, strict=True)]))

    def like(self, x: Value, other: Value) -> Value:
        """Return the elements of a value in the shape of another."""
        return self("Reshape", x, self("Shape", other), allowzero=1)  # type: ignore[no-any-return]

    def squeeze(self, x: Value, *dims: int) -> Value:
        return self("Squeeze", x, self.ints(dims))  # type: ignore[no-any-return]

    def unsqueeze(self, x: Value, *dims: int) -> Value:
        return self("Unsqueeze", x, self.ints(dims))  # type: ignore[no-any-return]

    def transpose(self, x: Value, dims: Sequence[int]) -> Value:
        return x if list(dims) == list(range(len(dims))) else self("Transpose", x, perm=list(dims))  # type: ignore

    def slice(self, x: Value, dim: int, start: Any, end: Any, step: int = 1) -> Value:
        return self("Slice", x, *[self.ints([v]) for v in (start, end, dim, step)])  # type: ignore[no-any-return]

    def concat(self, xs: Sequence[Value], dim: int) -> Value:
        return xs[0] if len(xs) == 1 else self("Concat", *xs, axis=dim)  # type: ignore[no-any-return]

    def full(self, values: Sequence[Any], fill: Any, dtype: torch.dtype) -> Value:
        """Return a tensor of equal elements."""
        return self("Expand", self.number(fill, dtype), self.ints(values))  # type: ignore[no-any-return]


@functools.cache
def _types(op: str, opset: int) -> tuple[tuple[frozenset[str], ...], tuple[Callable[..., Any], ...]]:
    """Return the types that each input of an operator may have, and for each output a function of the inputs' dtypes
    that gives its own, or None where the operator leaves it open. The last input may stand for more."""
    schema = onnx.defs.get_schema(op, opset)
    allowed = [frozenset(i.types) for i in schema.inputs]
    if allowed and len(allowed) < schema.max_input:
        allowed += [allowed[-1]] * 64
    names = [i.type_str for i in schema.inputs]
    return tuple(allowed), tuple([_result(o, names) for o in schema.outputs])


def _result(output: Any, names: list[str]) -> Callable[[Sequence[Any]], Any]:
    if output.type_str in names:
        place = names.index(output.type_str)
        return lambda dtypes: dtypes[place] if place < len(dtypes) else None
    known = [kind for kind in ir.DataType if output.types == {f"tensor({kind.name.lower()})"}]
    return lambda dtypes: known[0] if known else None


def _may_be_left_open(n: Any) -> bool:
    """A Reshape finds one size by the others, unless one of these may be 0."""
    return n > 0 if isinstance(n, int) else n.lo is not None and n.lo > 0


def spec_of(x: Value) -> Spec:
    """Return the metadata of a value of the graph."""
    return x.meta["spec"]  # type: ignore[no-any-return]


def shape_of(x: Value) -> tuple[Any, ...]:
    return tuple(spec_of(x).shape)


def dtype_of(x: Value) -> torch.dtype:
    return spec_of(x).dtype


def rank(x: Value) -> int:
    return len(spec_of(x).shape)


def count(shape: Sequence[Any]) -> Any:
    """Return the number of elements of a shape."""
    return math.prod(shape)


def lowest(n: Any) -> int:
    """Return a lower bound of a size."""
    return n if isinstance(n, int) else (n.lo or 0) if isinstance(n, Expr) else 0


def _example(x: Any) -> Any:
    """Return an example of an operand for `torch.result_type`."""
    if not isinstance(x, Value):
        return x
    if "spec" in x.meta:
        return torch.empty([1] * rank(x), dtype=dtype_of(x))
    return x.meta["number"](1)


def _precedence(x: Any) -> int:
    return -min(x.dim() + 1, 2) if isinstance(x, torch.Tensor) else 0
