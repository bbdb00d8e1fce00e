"""Readable and canonical text of kernels and programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from framesmith.loops.contract import Accumulator, Contract
from framesmith.loops.ir import (
    Allocate,
    Batch,
    Bitcast,
    Buffer,
    Cast,
    Const,
    Extern,
    Index,
    Indirect,
    Kernel,
    Launch,
    Load,
    Loop,
    Node,
    Op,
    Origin,
    Part,
    Pred,
    Program,
    Reduce,
    Ref,
    Release,
    Scalar,
    Scan,
    Step,
    Store,
)
from framesmith.loops.product import MatrixProduct
from framesmith.symbolic.expr import Expr, linear

ALIGNED = 16  # elements: as well as any vector asks for


def dtype_name(dtype: torch.dtype) -> str:
    """`float32` for torch.float32."""
    return str(dtype)[6:]


def origins_of(program: Program) -> dict[Kernel, tuple[Origin, ...]]:
    """Return what each kernel of a program computes."""
    found: dict[Kernel, dict[Origin, None]] = {}
    for step in program.steps:
        if isinstance(step, Launch | Batch):
            found.setdefault(step.kernel, {}).update(dict.fromkeys(step.origins))
    return {kernel: tuple(origins) for kernel, origins in found.items()}


def operators_by_place(pairs: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Join the operators of each place, in order, of pairs (place, operator)."""
    places: dict[str, dict[str, None]] = {}
    for place, operator in pairs:
        places.setdefault(place, {})[operator] = None
    return tuple([(place, ", ".join(operators)) for place, operators in places.items()])


class _Names:
    """Numbers the operations of one kernel in order of first use. `offsets`: see `kernel_text`."""

    def __init__(self, offsets: bool = True) -> None:
        self.of: dict[Op, str] = {}
        self.offsets = offsets

    def new(self, op: Op) -> str:
        name = self.of[op] = f"v{len(self.of)}"
        return name

    def args(self, op: Op) -> str:
        return " ".join(self.of.get(a, "?") for a in op.args)

    def index(self, e: Expr) -> Expr:
        """Return an index of memory in printed form."""
        return e if self.offsets else e - linear(e)[1] // ALIGNED * ALIGNED


def _load(op: Load, n: _Names) -> str:
    mask = f" if {n.args(op)}" if op.args else ""
    return f"load {op.buffer}[{n.index(op.index)}]{mask}"


def _indirect(op: Indirect, n: _Names) -> str:
    flags = (" wrap" if op.wrap else "") + (" check" if op.check else "")
    return f"indirect {op.symbol} = {n.args(op)} < {op.size}{flags}"


def _cast(op: Cast, n: _Names) -> str:
    rounding = f" rounded to {dtype_name(op.rounding)}" if op.rounding else ""
    return f"cast {n.args(op)} to {dtype_name(op.dtype)}{rounding}"


_FORMS: dict[type, Callable[..., str]] = {
    Const: lambda op, n: f"const {op.value} {dtype_name(op.dtype)}",
    Index: lambda op, n: f"index {op.expr} {dtype_name(op.dtype)}",
    Pred: lambda op, n: f"pred {op.lhs} < {op.rhs}",
    Indirect: _indirect,
    Load: _load,
    Scalar: lambda op, n: f"{op.name} {n.args(op)}",
    Cast: _cast,
    Bitcast: lambda op, n: f"bitcast {n.args(op)} to {dtype_name(op.dtype)}",
    Reduce: lambda op, n: f"reduce {op.kind} {n.args(op)}",
    Scan: lambda op, n: f"scan {op.kind} {n.args(op)}",
    Part: lambda op, n: f"part {op.part} of {n.args(op)}",
    Accumulator: lambda op, n: "accumulator",
}


def _statement(op: Op, names: _Names) -> str:
    if type(op) is Store:
        value, *mask = (names.of.get(a, "?") for a in op.args)
        mode = f" {op.mode}" if op.mode else ""
        return f"store{mode} {op.buffer}[{names.index(op.index)}] = {value}" + (f" if {mask[0]}" if mask else "")
    text = _FORMS[type(op)](op, names)
    return f"{names.new(op)} = {text}"


def _block(body: tuple[Node, ...], names: _Names, indent: int, out: list[str]) -> None:
    pad = "  " * indent
    for node in body:
        if type(node) is Loop:
            kind = "red" if node.reduce else "for"
            out.append(f"{pad}{kind} {node.axis.symbol} < {node.axis.extent}{' vec' if node.vector else ''}:")
            _block(node.body, names, indent + 1, out)
        elif type(node) is Contract:
            out.append(pad + _contract(node))
            _block(node.body, names, indent + 1, out)
        elif type(node) is MatrixProduct:
            _product(node, names, indent, out)
        else:
            out.append(pad + _statement(node, names))  # type: ignore[arg-type]


def _contract(c: Contract) -> str:
    runs = "".join(f" + {s}*run{k}<{r}" for k, (r, s) in enumerate(zip(c.runs, c.strides)) if r != 1)
    shape = f"{c.m.symbol}<{c.m.extent} {c.n.symbol}<{c.n.extent} k<{c.depth}"
    panels = f"from {c.b_index} in panels of {c.columns} ({c.rows} rows of {c.vectors} vectors, lane {c.lane})"
    if c.window is not None:
        w = c.window
        image = f"{w.height}x{w.width} at ({w.y}, {w.x}) by {w.dilation}"
        return f"contract depthwise {shape}: {c.a}[{c.a_index}{runs} + {c.n.symbol}] in {image} * {c.b} {panels}"
    return f"contract {shape}: {c.a}[{c.a_index}{runs} + k] * {c.b} {panels}"


def _product(p: MatrixProduct, names: _Names, indent: int, out: list[str]) -> None:
    pad = "  " * indent
    axes = f"{p.m.symbol}<{p.m.extent} {p.n.symbol}<{p.n.extent} over {p.k.symbol}<{p.k.extent}"
    out.append(f"{pad}product {axes} in {dtype_name(p.dtype)}{' rounded to tf32' if p.tf32 else ''}")
    for name, block in (("left", p.left), ("right", p.right)):
        out.append(f"{pad}  {name}:")
        _block(block, names, indent + 2, out)
    _block(p.body, names, indent + 1, out)


def body_text(body: tuple[Node, ...], indent: int = 0) -> str:
    """Return a block as lines; operations are numbered v0, v1, ... from its start."""
    out: list[str] = []
    _block(body, _Names(), indent, out)
    return "\n".join(out)


def kernel_text(kernel: Kernel, offsets: bool = True) -> str:
    """Return the kernel's canonical text: equal for equal kernels; without `offsets` also for kernels that differ only
    in equally aligned offsets."""
    params = ", ".join(
        f"{p.name}: {dtype_name(p.dtype)} {p.mode}{'' if p.restrict else ' alias'}{' host' if p.host else ''}"
        for p in kernel.params
    )
    symbols = "".join(f", {s}" for s in kernel.symbols)
    out = [f"kernel({params}{symbols})"]
    if kernel.tile:
        out.append(f"  tile {kernel.tile[0]} {kernel.tile[1]}")
    out += [f"  local {t.name}: {dtype_name(t.dtype)}[{t.size}]" for t in kernel.locals]
    if kernel.parts:
        out.append(f"  parts {kernel.parts}")
    indent = 1
    for axis in kernel.outer:
        out.append(f"{'  ' * indent}par {axis.symbol} < {axis.extent}:")
        indent += 1
    _block(kernel.body, _Names(offsets), indent, out)
    return "\n".join(out) + "\n"


def buffer_text(b: Buffer) -> str:
    """Return one line: name, type, size, strides, kind and place."""
    place = {
        "input": f" {b.index}",
        "arena": f" at {b.offset}, {b.nbytes} bytes",
        "view": f" of {b.base} from {b.offset}",
    }.get(b.kind, "")
    size, stride = (", ".join(map(str, t)) for t in (b.size, b.stride))
    return f"{b.name}: {dtype_name(b.dtype)}[{size}] strides ({stride}) {b.kind}{place}"


def _arg(value: object) -> str:
    if type(value) is Ref:
        return value.name
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(map(_arg, value)) + "]"
    return str(value)


def step_text(step: Step, kernels: dict[int, int]) -> str:
    """Return one line for a step; `kernels` numbers the kernels by id()."""
    if type(step) is Launch:
        return f"k{kernels[id(step.kernel)]}({', '.join(step.args)})"
    if type(step) is Batch:
        rows = "; ".join(", ".join(row) + (f" to {size}" if step.kernel.symbols else "") for row,
                         size in zip(step.rows, step.sizes))
        return f"k{kernels[id(step.kernel)]}({rows})"
    if type(step) is Allocate or type(step) is Release:
        return f"{type(step).__name__.lower()} {', '.join(step.names)}"
    assert type(step) is Extern
    args = [_arg(a) for a in step.args] + [f"{k}={_arg(v)}" for k, v in step.kwargs.items()]
    return f"{', '.join(str(o) for o in step.outputs)} = {step.target}({', '.join(args)})"


def program_text(program: Program) -> str:
    """Return the whole program: buffers, kernels, steps, outputs."""
    number = {id(k): i for i, k in enumerate(program.kernels)}
    out = [f"program: arena {program.arena_bytes} bytes"]
    out += [f"  symbol {s} = {src}" for s, src in program.symbols.items()]
    out += [f"  {buffer_text(b)}" for b in program.buffers.values()]
    for i, kernel in enumerate(program.kernels):
        out += ["", f"k{i}: {kernel_text(kernel).rstrip()}"]
    out += ["", "steps"]
    out += [f"  {step_text(s, number)}" for s in program.steps]
    out.append(f"  return {', '.join(map(_arg, program.outputs))}")
    return "\n".join(out) + "\n"
