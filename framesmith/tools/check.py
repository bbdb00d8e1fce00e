"""`check`: compare one call in eager, compiled and in float64, and find the first wrong operator."""

from __future__ import annotations

import copy
import linecache
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from rich.markup import escape
from rich.table import Table
from torch import fx, nn
from torch.utils._pytree import tree_leaves, tree_map

from framesmith import _C
from framesmith.compiler import FrameCompiler
from framesmith.config import Config
from framesmith.graph.traversal import placeholders_of
from framesmith.ledger import Ledger
from framesmith.tools.compared import Blame, Comparison
from framesmith.tools.difference import distance, mismatch, to_float64
from framesmith.tools.judge import tangent
from framesmith.tools.recorded import Recorded, copied, own, seeded
from framesmith.util.state_restored import state_restored


@dataclass(frozen=True, slots=True)
class Row:
    """A result or a gradient of the call: how far eager and compiled are from float64 (or from each other, where there
    is none), and what differs by more than rounding."""

    name: str
    eager: float
    compiled: float
    detail: str


@dataclass(frozen=True, slots=True)
class Check:
    """The outcome of `check`. `rows`: one for each result and gradient. `operator`, `place`: the first operator whose
    compiled value is wrong, and the user's line (file, line, function); `graph`: "forward", "backward" or "" where no
    graph is to blame, but what stands around the graphs. `refusals`: faults of the compiler, past which the program
    went on in eager."""

    rows: list[Row]
    graph: str = ""
    blame: Blame | None = None
    refusals: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return self.blame is None and not self.refusals and not any(r.detail for r in self.rows)

    @property
    def operator(self) -> str:
        return self.blame.operator if self.blame else ""

    @property
    def place(self) -> tuple[str, int, str] | None:
        return self.blame.place if self.blame else None

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        if self.ok:
            worst = max((r.compiled for r in self.rows), default=0.0)
            return f"right: {len(self.rows)} results and gradients, at most {worst:.3g} from float64"
        lines = [f"compiler fault: {r}" for r in self.refusals]
        lines += [f"{r.name}: {r.detail}" for r in self.rows if r.detail]
        if self.blame is not None:
            b = self.blame
            lines.append(f"first wrong operator: {b.operator} ({self.graph}): {b.detail}")
            if b.compiled:
                lines.append(f"  from float64: eager {b.eager:.3g}, compiled {b.compiled:.3g}")
            if b.place is not None:
                file, line, function = b.place
                lines += [f"  {file}:{line} in {function}", f"    {linecache.getline(file, line).strip()}"]
        elif not self.refusals:
            lines.append("each graph by itself is right: capture, the cut into forward and backward, or what runs "
                         "between graphs is to blame")
        return "\n".join(lines)

    def __rich__(self) -> Table:
        table = Table(title="right" if self.ok else "wrong", caption=None if self.ok else escape(str(self)))
        for name in ("", "eager from float64", "compiled from float64", "difference"):
            table.add_column(name)
        for r in self.rows:
            table.add_row(r.name, f"{r.eager:.3g}", f"{r.compiled:.3g}", escape(r.detail[:80]))
        return table


def check_call(model: Any, root: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], config: Config,
               train: bool, tolerance: float | None) -> Check:
    """See `framesmith.check`. `root`: the function to compile, which calls `model`."""
    ledger = Ledger()
    parts: list[tuple[str, Recorded]] = []
    native = FrameCompiler(config.with_(warn=False), ledger)
    noting = FrameCompiler(config.with_(backend=_Noting(parts), warn=False))
    try:
        with state_restored(model):
            eager, _ = _named(model, model, args, kwargs, train)
        with state_restored(model):
            compiled, _ = _named(model, _C.CompiledFunction(root, native), args, kwargs, train)
        wide = _in_float64(model, args, kwargs, train)
        faults = [r.reason for r in ledger.refusals if r.internal]
        rows = _rows(eager, compiled, wide, tolerance)
        if not faults and not any(r.detail for r in rows):
            return Check(rows)
        with state_restored(model):
            _named(model, _C.CompiledFunction(root, noting), args, kwargs, train)
    finally:
        native.forget()
        noting.forget()
    scoped = config.with_(scoped_memory=True) if train else config
    for kind, part in parts:
        blame = Comparison(part, scoped, tolerance).blame()
        if blame is not None:
            return Check(rows, kind, blame, faults)
    return Check(rows, refusals=faults)


class _Noting:
    """A back end that runs graphs operator by operator, and records the first call of each."""

    def __init__(self, parts: list[tuple[str, Recorded]]) -> None:
        self.parts = parts

    def __call__(self, gm: fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        places = placeholders_of(gm.graph)
        kind = "backward" if any(n.name.startswith("tangent_") for n in places) else "forward"
        self.parts.append((kind, Recorded(copied(gm.graph), [own(x) for x in examples])))
        return gm.forward


def _named(model: Any, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any],
           train: bool) -> tuple[dict[str, Any], bool]:
    """Return the results of a call and, in training, the gradients of parameters and arguments, by name; whether it
    drew random numbers."""
    args, kwargs = tree_map(own, (args, kwargs))
    with torch.set_grad_enabled(train), seeded() as drawn:
        out = [x for x in tree_leaves(fn(*args, **kwargs)) if isinstance(x, torch.Tensor)]
        found = {f"result {k}": x.detach().clone() for k, x in enumerate(out)}
        wanted: dict[str, Any] = dict(model.named_parameters()) if isinstance(model, nn.Module) else {}
        wanted |= {f"argument {k}": x for k, x in enumerate(tree_leaves((args, kwargs)))
                   if isinstance(x, torch.Tensor) and x.requires_grad}
        wanted = {name: x for name, x in wanted.items() if x.requires_grad}
        leaving = [y for y in out if y.requires_grad]
        if train and leaving and wanted:
            grads = torch.autograd.grad(leaving, list(wanted.values()), [tangent(y) for y in leaving],
                                        allow_unused=True)
            found |= {f"gradient of {name}": g for name, g in zip(wanted, grads) if g is not None}
        return found, drawn()


def _in_float64(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], train: bool) -> dict[str, Any]:
    """Return the same in float64; nothing if the call does not support it, or draws random numbers."""
    try:
        wide = copy.deepcopy(model).double() if isinstance(model, nn.Module) else model
        args, kwargs = tree_map(lambda x: to_float64(x) if isinstance(x, torch.Tensor) else x, (args, kwargs))
        found, draws = _named(wide, wide, args, kwargs, train)
    except Exception:  # an operator without a kernel for float64, or a model that cannot be copied
        return {}
    return {} if draws else found


def _rows(eager: dict[str, Any], compiled: dict[str, Any], wide: dict[str, Any],
          tolerance: float | None) -> list[Row]:
    rows = []
    for name in dict.fromkeys([*eager, *compiled]):
        a, b, exact = eager.get(name), compiled.get(name), wide.get(name)
        if a is None or b is None:
            given: Any = a if b is None else b
            wrong = f"there is none in {'eager' if a is None else 'compiled code'}" if bool(given.any()) else ""
            rows.append(Row(name, 0.0, 0.0, wrong))
            continue
        base = a if exact is None else exact
        rows.append(Row(name, distance(base, a), distance(base, b), mismatch(a, b, exact, tolerance=tolerance)))
    return rows
