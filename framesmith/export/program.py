"""The exported program: a graph of operators, what its inputs and outputs are in the program, and its state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx, nn

from framesmith.export.flow import calls
from framesmith.export.operators import SETS
from framesmith.export.ranges import Constraints, check, solve
from framesmith.export.sizes import SIZE_OPERATORS
from framesmith.export.trace import Leaf
from framesmith.export.trees import Tree, flatten, unflatten
from framesmith.prims.core import Spec
from framesmith.symbolic.expr import Expr

STATE = ("parameter", "buffer", "constant")


@dataclass(frozen=True, slots=True)
class Input:
    """A placeholder: `kind` is "parameter", "buffer", "constant" (of `state`, by the name `target`), "input" (which
    leaf of the arguments) or "tangent" (of which output)."""

    name: str
    kind: str
    target: Any
    spec: Spec
    requires_grad: bool = False
    persistent: bool = True


@dataclass(frozen=True, slots=True)
class Output:
    """An output of the graph: `kind` is "result" (of the program), "mutation" (the new value of the state or argument
    `target`, a placeholder's name) or "gradient" (of the placeholder `target`)."""

    kind: str
    target: str = ""


@dataclass(slots=True)
class Runnable:
    """An exported program, as far as it runs: it is called as the model was.

    `graph` takes `inputs` and gives `outputs`; `results` are the leaves of what a call returns, in the tree `result`;
    `arguments` the tree of `(args, kwargs)`, and `fixed` the leaves of these that are no tensors, by number, which the
    program was exported for. `constraints`: dimensions with their ranges, and relations between them. `notes`: what the
    export left out.
    """

    graph: fx.Graph
    inputs: list[Input]
    outputs: list[Output]
    results: list[Leaf]
    result: Tree
    arguments: Tree
    fixed: dict[int, Any]
    constraints: Constraints
    state: dict[str, torch.Tensor]
    operators: str = "core"
    name: str = "program"
    notes: list[str] = field(default_factory=list)
    _flat: Callable[..., Any] | None = None

    # --- what is in it
    @property
    def parameters(self) -> dict[str, torch.Tensor]:
        return self._of_kind("parameter")

    @property
    def buffers(self) -> dict[str, torch.Tensor]:
        return self._of_kind("buffer")

    @property
    def constants(self) -> dict[str, torch.Tensor]:
        """Tensors that the program reads and that are neither parameters nor buffers."""
        return self._of_kind("constant")

    def _of_kind(self, kind: str) -> dict[str, torch.Tensor]:
        return {i.target: self.state[i.target] for i in self.inputs if i.kind == kind}

    @property
    def mutations(self) -> list[str]:
        """Names of the state, and `input N`, that a call writes."""
        by_name = {i.name: i for i in self.inputs}
        return [str(i.target) if i.kind in STATE else i.name
                for o in self.outputs if o.kind == "mutation" for i in [by_name[o.target]]]

    @property
    def dimensions(self) -> dict[str, tuple[int, int | None]]:
        """The sizes that vary, with their inclusive ranges."""
        return {d.name: (d.lo, d.hi) for d in self.constraints.dimensions}

    @property
    def beyond(self) -> list[str]:
        """Operators in the graph that are no part of its set: they have no form in it."""
        belongs = SETS[self.operators]
        targets = {n.target for n in calls(self.graph)} - SIZE_OPERATORS
        return sorted(str(target) for target in targets if not belongs(target))

    @property
    def is_joint(self) -> bool:
        """Return whether the graph has its backward: it takes tangents and gives gradients."""
        return any(o.kind == "gradient" for o in self.outputs)

    def with_graph(self, graph: fx.Graph, operators: str, outputs: list[Output]) -> Runnable:
        """Return the program with another graph of the same inputs."""
        return replace(self, graph=graph, operators=operators, outputs=outputs, _flat=None)

    # --- running it
    @property
    def flat(self) -> Callable[..., Any]:
        """The graph as a function of its inputs in order; it writes nothing."""
        if self._flat is None:
            self._flat = fx.GraphModule(nn.Module(), self.graph).forward
        return self._flat

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program. Raises TypeError or ValueError where arguments do not fit what it was exported for. The
        results have no autograd history: gradients are computed by `step` of a joint program."""
        leaves = self.bind(args, kwargs)
        with torch.no_grad():
            if self.is_joint:
                return self.finish(self._run_joint(leaves, None)[0], leaves)
            return self.finish(self.flat(*self._given(leaves)), leaves)

    def step(self, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None,
             tangents: Sequence[torch.Tensor] | None = None) -> tuple[Any, dict[str, torch.Tensor]]:
        """Run a joint program: its result, and the gradients of its parameters (by name) and of those arguments that
        required grad in the export. `tangents`: for each result that requires grad, ones by default."""
        if not self.is_joint:
            raise TypeError("a program without its backward; export with joint=True")
        leaves = self.bind(tuple(args), dict(kwargs or {}))
        with torch.no_grad():
            given, found = self._run_joint(leaves, tangents)
            return self.finish(given, leaves), found

    def _run_joint(self, leaves: list[Any],
                   tangents: Sequence[torch.Tensor] | None) -> tuple[list[Any], dict[str, torch.Tensor]]:
        asked = [i for i in self.inputs if i.kind == "tangent"]
        if tangents is None:
            sizes = self.sizes(leaves)
            tangents = [torch.ones([n if isinstance(n, int) else n.evaluate(sizes) for n in i.spec.shape],
                                   dtype=i.spec.dtype, device=i.spec.device) for i in asked]
        if len(tangents) != len(asked):
            raise TypeError(f"the program has {len(asked)} results that require grad, not {len(tangents)}")
        out = self.flat(*self._given(leaves), *tangents)
        by_name = {i.name: i for i in self.inputs}
        found = {str(i.target if i.kind in STATE else i.name): value
                 for o, value in zip(self.outputs, out, strict=True) if o.kind == "gradient"
                 for i in [by_name[o.target]] if value is not None}
        return [v for o, v in zip(self.outputs, out, strict=True) if o.kind != "gradient"], found

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Return the leaves of the arguments. Raises TypeError or ValueError where they do not fit."""
        leaves, tree = flatten((args, kwargs))
        if not self.arguments.accepts(tree):
            names = self.arguments.parts[1].keys
            leaves, tree = flatten((args, {k: kwargs[k] for k in names if k in kwargs}))
            if not self.arguments.accepts(tree) or len(names) != len(kwargs):
                raise TypeError(f"the program was exported for arguments {self.arguments}, not {tree}")
        for i, value in self.fixed.items():
            if type(leaves[i]) is not type(value) or leaves[i] != value:
                raise ValueError(f"argument {i} is {leaves[i]!r}; the program was exported for {value!r}")
        self.sizes(leaves)
        return leaves

    def sizes(self, leaves: list[Any]) -> dict[str, int]:
        """Return the sizes of the dimensions that vary, for these leaves. Raises TypeError or ValueError where a tensor
        does not fit."""
        values: dict[str, int] = {}
        late: list[tuple[Input, int, Expr, int]] = []
        for i in self.inputs:
            if i.kind != "input":
                continue
            x = leaves[i.target]
            if not isinstance(x, torch.Tensor):
                raise TypeError(f"{i.name} is to be a tensor, not {type(x).__name__}")
            if x.dtype is not i.spec.dtype or x.device != i.spec.device or x.dim() != len(i.spec.shape):
                raise TypeError(f"{i.name} is to be {i.spec}, not {Spec.of(x)}")
            for d, (n, size) in enumerate(zip(i.spec.shape, x.shape, strict=True)):
                if isinstance(n, int):
                    if n != size:
                        raise ValueError(f"dimension {d} of {i.name} is {size}; the program was exported for {n}")
                elif (found := solve(n, size)) is None:
                    late.append((i, d, n, size))
                elif values.setdefault(found[0], found[1]) != found[1]:
                    raise ValueError(f"{found[0]} is {values[found[0]]}, and {found[1]} by dimension {d} of {i.name}")
        check(self.constraints, values)
        for i, d, n, size in late:
            if any(s.name not in values for s in n.free) or n.evaluate(values) != size:
                raise ValueError(f"dimension {d} of {i.name} is {size}, which is to be {n}")
        return values

    def _given(self, leaves: list[Any]) -> list[torch.Tensor]:
        """Return the graph's inputs but for tangents; a tensor that lies otherwise in memory than the example is
        copied."""
        return [_laid_out(leaves[i.target], i.spec) if i.kind == "input" else self.state[i.target].detach()
                for i in self.inputs if i.kind != "tangent"]

    def finish(self, out: Sequence[Any], leaves: list[Any], state: Callable[[str], torch.Tensor] | None = None) -> Any:
        """Write what the program writes, and put its results together. `state`: finds a parameter or buffer."""
        find = state or self.state.__getitem__
        by_name = {i.name: i for i in self.inputs}
        for o, value in zip([o for o in self.outputs if o.kind != "gradient"], out, strict=True):
            if o.kind == "mutation":
                i = by_name[o.target]
                target = leaves[i.target] if i.kind == "input" else find(i.target)
                target.detach().copy_(value)
        sizes = self.sizes(leaves) if any(r.kind == "size" for r in self.results) else {}
        made = [_RESULTS[r.kind](find, r.value, out, leaves, sizes) for r in self.results]
        return unflatten(made, self.result)


def _laid_out(x: torch.Tensor, spec: Spec) -> torch.Tensor:
    """Return the tensor with strides in the order of the example's."""
    if spec.stride is None:
        return x
    order = sorted(range(x.dim()), key=lambda d: (-_hinted_stride(spec.stride[d]), d))  # type: ignore[index]
    stride, step = [0] * x.dim(), 1
    for d in reversed(order):
        stride[d] = step
        step *= x.shape[d]
    if all(n == 1 or have == want for n, have, want in zip(x.shape, x.stride(), stride, strict=True)) or (
            not x.numel() or all(isinstance(s, int) for s in spec.stride) and tuple(spec.stride) == x.stride()):
        return x
    return torch.empty_strided(x.shape, stride, dtype=x.dtype, device=x.device).copy_(x)


def _hinted_stride(stride: Any) -> int:
    """Return a stride for sizes that are all 97, to put strides in order."""
    return stride if isinstance(stride, int) else stride.evaluate({s.name: 97 for s in stride.free})


_RESULTS: dict[str, Callable[..., Any]] = {
    "output": lambda find, value, out, leaves, sizes: out[value],
    "input": lambda find, value, out, leaves, sizes: leaves[value],
    "state": lambda find, value, out, leaves, sizes: find(value),
    "size": lambda find, value, out, leaves, sizes: value if isinstance(value, int) else value.evaluate(sizes),
    "constant": lambda find, value, out, leaves, sizes: value,
}
