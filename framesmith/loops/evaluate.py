"""The reference evaluator: runs programs, with one torch operation for each scalar operation, over all iterations of
the enclosing loops at once.

It defines the semantics of kernels; code generation is tested against it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from framesmith.loops.contract import Accumulator, Contract, ConvolutionWindow
from framesmith.loops.ir import (
    EXTENT,
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
    Part,
    Pred,
    Program,
    Reduce,
    Ref,
    Release,
    Scalar,
    Scan,
    SizeOf,
    Store,
    part_symbol,
)
from framesmith.loops.product import MatrixProduct
from framesmith.prims.scalars import SCALAR_OPS
from framesmith.symbolic.expr import Expr, FloorDiv, Int, Max, Min, Mod, Product, Sum, Symbol

Env = dict[Symbol, torch.Tensor]


def evaluate_index(e: Expr, env: Env) -> torch.Tensor:
    """Evaluate an integer expression over tensors of int64."""
    if isinstance(e, Int):
        return torch.tensor(e.value)
    if isinstance(e, Symbol):
        return env[e]
    if isinstance(e, Sum):
        total = torch.tensor(e.offset)
        for atom, k in e.terms:
            total = total + evaluate_index(atom, env) * k
        return total
    return _COMPOUND[type(e)](*[evaluate_index(a, env) for a in e.args])


def _fold(f: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def run(first: Any, *rest: Any) -> Any:
        for r in rest:
            first = f(first, r)
        return first

    return run


_COMPOUND: dict[type, Callable[..., torch.Tensor]] = {
    Product: _fold(torch.mul),
    FloorDiv: lambda x, y: torch.div(x, y, rounding_mode="floor"),
    Mod: torch.remainder,
    Min: _fold(torch.minimum),
    Max: _fold(torch.maximum),
}


class _Run:
    """One kernel on flat memories. Every value has one dim for each loop around it (size 1 where it does not vary),
    outermost first; a local array has the dims of the outer nest and then its own."""

    def __init__(self, kernel: Kernel, memory: dict[str, torch.Tensor], sizes: dict[Symbol, int]) -> None:
        self.kernel = kernel
        self.memory = memory
        self.env: Env = {s: torch.tensor(v) for s, v in sizes.items()}
        self.sizes = sizes
        self.values: dict[Op, torch.Tensor] = {}
        self.loops: list[tuple[int, bool]] = []
        self.rank = len(kernel.outer) + _depth(kernel.body)
        self.parts: dict[Op, tuple[torch.Tensor, ...]] = {}
        self.private = 0
        self.accumulator = torch.empty(0)

    def run(self) -> None:
        for axis in self.kernel.outer:
            self._enter(axis, False)
        self.private = len(self.loops)
        count = 1
        for n, _ in self.loops:
            count *= n
        for t in self.kernel.locals:
            self.memory[t.name] = torch.zeros(count * t.size, dtype=t.dtype)
        self.local_size = {t.name: t.size for t in self.kernel.locals}
        self._block(self.kernel.body)

    def _enter(self, axis: Any, reduce: bool) -> None:
        n = axis.extent.evaluate(self.sizes)
        shape = [1] * self.rank
        shape[len(self.loops)] = n
        self.env[axis.symbol] = torch.arange(n).reshape(shape)
        self.loops.append((n, reduce))

    def _block(self, body: Sequence[Node]) -> None:
        for node in body:
            if type(node) is Loop:
                self._enter(node.axis, node.reduce)
                self._block(node.body)
                self.loops.pop()
            elif type(node) is Contract:
                self._contract(node)
            elif type(node) is MatrixProduct:
                self._product(node)
            else:
                self.values[node] = _STEPS[type(node)](self, node, [self.values[a]  # type: ignore[index]
                                                                    for a in node.args])  # type: ignore[union-attr]

    def _contract(self, c: Contract) -> None:
        """Compute the accumulator over the open loops, m and n, and run the body on it."""
        depth = c.depth * c.runs[0] * c.runs[1]
        n = c.n.extent.evaluate(self.sizes)
        memory, start = self.memory[c.b], evaluate_index(c.b_index, self.env)
        b = memory[start[..., None, None] + unpacked(torch.arange(memory.numel()), depth, n, c.columns, c.lane)]
        self._enter(c.m, False)
        if c.window is not None:
            self._depthwise(c, c.window, b)
            return
        at = evaluate_index(c.a_index, self.env).expand(self.full()).unsqueeze(-1)
        steps = torch.arange(c.depth)
        for r, stride in ((c.runs[1], c.strides[1]), (c.runs[0], c.strides[0])):
            steps = (torch.arange(r).unsqueeze(-1) * evaluate_index(stride, self.env) + steps).reshape(-1)
        product = self.memory[c.a][at + steps].unsqueeze(-2) @ b
        self._enter(c.n, False)
        self.accumulator = product.reshape(self.full())
        self._block(c.body)
        self.loops.pop()
        self.loops.pop()

    def _product(self, p: MatrixProduct) -> None:
        """Compute the accumulator over the open loops, m and n, and run the body on it."""
        for axis in (p.m, p.n, p.k):
            self._enter(axis, False)
        for block in (p.left, p.right):
            self._block(block)
        left, right = (self.values[block[-1]].to(p.dtype).double() for block in (p.left, p.right))
        self.accumulator = (left * right).expand(self.full()).sum(len(self.loops) - 1, keepdim=True).float()
        self.loops.pop()
        self._block(p.body)
        self.loops.pop()
        self.loops.pop()

    def _depthwise(self, c: Contract, w: ConvolutionWindow, b: torch.Tensor) -> None:
        self._enter(c.n, False)
        memory = self.memory[c.a]
        total = torch.zeros(self.full())
        for p in range(c.runs[0]):
            for q in range(c.runs[1]):
                y = evaluate_index(w.y, self.env).expand(self.full()) + p * w.dilation[0]
                x = evaluate_index(w.x, self.env).expand(self.full()) + q * w.dilation[1]
                height, width = (evaluate_index(size, self.env) for size in (w.height, w.width))
                inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
                step = evaluate_index(c.strides[0], self.env) * p + evaluate_index(c.strides[1], self.env) * q
                at = (evaluate_index(c.a_index, self.env)
                      + step).expand(self.full()) + evaluate_index(c.n.symbol, self.env)
                weight = b[p * c.runs[1] + q][evaluate_index(c.n.symbol, self.env)]
                total = total + torch.where(inside, memory[torch.where(inside, at, 0)] * weight, 0)
        self.accumulator = total
        self._block(c.body)
        self.loops.pop()
        self.loops.pop()

    def _position(self, buffer: str, index: Expr) -> torch.Tensor:
        at = evaluate_index(index, self.env)
        size = self.local_size.get(buffer)
        return at if size is None else at + self._iteration() * size

    def _iteration(self) -> torch.Tensor:
        """Return the number of each iteration of the outer nest."""
        lane = torch.tensor(0)
        for k in range(self.private):
            shape = [1] * self.rank
            shape[k] = self.loops[k][0]
            lane = lane * self.loops[k][0] + torch.arange(self.loops[k][0]).reshape(shape)
        return lane

    def full(self) -> list[int]:
        """Return the shape of a value that varies over all open loops."""
        return [n for n, _ in self.loops] + [1] * (self.rank - len(self.loops))

    def load(self, op: Load, args: list[torch.Tensor]) -> torch.Tensor:
        memory, at = self.memory[op.buffer], self._position(op.buffer, op.index)
        if not args:
            if at.numel() and (int(at.min()) < 0 or int(at.max()) >= memory.numel()):
                raise IndexError(f"{op.buffer}[{op.index}] runs over {int(at.min())}..{int(at.max())} of "
                                 f"{memory.numel()}")
            return memory[at].to(op.dtype)
        mask, at = torch.broadcast_tensors(args[0], at)
        value = memory[torch.where(mask, at, 0)] if memory.numel() else torch.zeros(at.shape, dtype=memory.dtype)
        return torch.where(mask, value, torch.zeros((), dtype=value.dtype)).to(op.dtype)

    def store(self, op: Store, args: list[torch.Tensor]) -> torch.Tensor:
        memory = self.memory[op.buffer]
        if op.mode == "sum":
            self._assign_parts(memory)
        shape = self.full()
        at = self._position(op.buffer, op.index).expand(shape).reshape(-1)
        value = args[0].expand(shape).reshape(-1).to(memory.dtype)
        if len(args) > 1:
            mask = args[1].expand(shape).reshape(-1)
            at, value = at[mask], value[mask]
        if at.numel() and (int(at.min()) < 0 or int(at.max()) >= memory.numel()):
            raise IndexError(f"store {op.buffer}[{op.index}] runs over {int(at.min())}..{int(at.max())} of "
                             f"{memory.numel()}")
        memory.index_put_((at,), value, accumulate=op.mode is not None)
        return args[0]

    def _assign_parts(self, sums: torch.Tensor) -> None:
        """Assign each iteration of the outer nest to a part; initialise `sums` with 0."""
        sums.zero_()
        self.env[part_symbol(self.kernel.parts)] = self._iteration() % self.kernel.parts

    def indirect(self, op: Indirect, args: list[torch.Tensor]) -> torch.Tensor:
        value, size = args[0].to(torch.int64), evaluate_index(op.size, self.env)
        if op.wrap:
            value = torch.where(value < 0, value + size, value)
        bad = (value < 0) | (value >= size)
        if op.check and bool(bad.any()):
            raise IndexError("index out of range in self")
        self.env[op.symbol] = value
        return value

    def reduce(self, op: Reduce, args: list[torch.Tensor]) -> torch.Tensor:
        dims: list[int] = []
        for k in range(len(self.loops) - 1, -1, -1):
            if not self.loops[k][1]:
                break
            dims.append(k)
        shape = self.full()
        return _REDUCTIONS[op.kind](self, op, [a.expand(shape) for a in args], sorted(dims))


_SCANS: dict[str, Callable[..., torch.Tensor]] = {"sum": torch.cumsum, "prod": torch.cumprod}


def _scan(r: _Run, op: Scan, args: list[torch.Tensor]) -> torch.Tensor:
    """Evaluate a scan along the innermost loop."""
    return _SCANS[op.kind](args[0].expand(r.full()), len(r.loops) - 1, dtype=op.dtype)


_AXES: dict[type, int] = {Contract: 2, MatrixProduct: 3}


def _depth(body: Sequence[Node]) -> int:
    return max((_AXES.get(type(n), 1) + _depth(n.body) for n in body if not isinstance(n, Op)), default=0)


def unpacked(packed: torch.Tensor, depth: int, n: int, columns: int, lane: int) -> torch.Tensor:
    """Return the (depth, n) matrix that `loops.contract.pack_columns` packed."""
    panels: list[torch.Tensor] = []
    start = 0
    while len(panels) * columns < n:
        wide = min(columns, -(-(n - len(panels) * columns) // lane) * lane)
        panels.append(packed[start : start + depth * wide].reshape(depth, wide))
        start += depth * wide
    return torch.cat(panels, 1)[:, :n]


def _flat(x: torch.Tensor, dims: list[int]) -> tuple[torch.Tensor, list[int]]:
    """Return a value with `dims` moved to the end as one dim, and the shape with ones there."""
    kept = [k for k in range(x.dim()) if k not in dims]
    shape = [1 if k in dims else x.shape[k] for k in range(x.dim())]
    return x.permute(*kept, *dims).reshape(*[x.shape[k] for k in kept], -1), shape


def _simple(f: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def run(r: _Run, op: Reduce, args: list[torch.Tensor], dims: list[int]) -> torch.Tensor:
        x, shape = _flat(args[0], dims)
        return f(x).reshape(shape).to(op.dtype)

    return run


def _extreme(sign: str) -> Callable[..., torch.Tensor]:
    neutral = {"max": float("-inf"), "min": float("inf")}[sign]

    def f(x: torch.Tensor) -> torch.Tensor:
        if x.shape[-1]:
            return getattr(torch, f"a{sign}")(x, -1)
        return torch.full(x.shape[:-1], neutral).to(x.dtype)

    return _simple(f)


def _arg(name: str) -> Callable[..., torch.Tensor]:
    def run(r: _Run, op: Reduce, args: list[torch.Tensor], dims: list[int]) -> torch.Tensor:
        x, shape = _flat(args[0], dims)
        position, _ = _flat(args[1], dims)
        at = getattr(torch, name)(x, -1, keepdim=True)
        r.parts[op] = (at, x.gather(-1, at).reshape(shape))
        return position.gather(-1, at).reshape(shape)

    return run


def _welford(r: _Run, op: Reduce, args: list[torch.Tensor], dims: list[int]) -> torch.Tensor:
    x, shape = _flat(args[0], dims)
    mean = x.mean(-1, keepdim=True)
    squares = ((x - mean) ** 2).sum(-1)
    count = torch.full(shape, float(x.shape[-1]), dtype=x.dtype)
    r.parts[op] = (mean, squares.reshape(shape), count)
    return mean.reshape(shape)


_REDUCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "sum": _simple(lambda x: x.sum(-1)),
    "prod": _simple(lambda x: x.prod(-1)),
    "any": _simple(lambda x: x.any(-1)),
    "all": _simple(lambda x: x.all(-1)),
    "max": _extreme("max"),
    "min": _extreme("min"),
    "argmax": _arg("argmax"),
    "argmin": _arg("argmin"),
    "welford": _welford,
}


def _cast(r: _Run, op: Cast, args: list[torch.Tensor]) -> torch.Tensor:
    value = args[0].to(op.dtype)
    return value.to(op.rounding).to(op.dtype) if op.rounding is not None else value


_STEPS: dict[type, Callable[..., torch.Tensor]] = {
    Const: lambda r, op, a: torch.tensor(op.value, dtype=op.dtype),
    Index: lambda r, op, a: evaluate_index(op.expr, r.env).to(op.dtype),
    Pred: lambda r, op, a: evaluate_index(op.lhs, r.env) < evaluate_index(op.rhs, r.env),
    Indirect: _Run.indirect,
    Load: _Run.load,
    Store: _Run.store,
    Scalar: lambda r, op, a: SCALAR_OPS[op.name].eager(*a),
    Cast: _cast,
    Bitcast: lambda r, op, a: a[0].contiguous().view(op.dtype),
    Reduce: _Run.reduce,
    Scan: _scan,
    Accumulator: lambda r, op, a: r.accumulator,
    Part: lambda r, op, a: r.parts[op.args[0]][op.part],
}


def run_kernel(kernel: Kernel, memory: Sequence[torch.Tensor], sizes: dict[Symbol, int] | None = None) -> None:
    """Run `kernel` on flat (1-d) memories, one a parameter, in place. Raises IndexError if an access is out of
    bounds."""
    _Run(kernel, {p.name: m for p, m in zip(kernel.params, memory, strict=True)}, sizes or {}).run()


class _Machine:
    """A program's buffers during one call: tensors, and the flat memory behind each."""

    def __init__(self, program: Program, inputs: Sequence[Any]) -> None:
        self.program = program
        self.sizes: dict[Symbol, int] = {}
        for s, source in program.symbols.items():
            self.sizes[s] = (inputs[source.input].shape[source.dim] if isinstance(source, SizeOf)
                             else int(inputs[source.input]))
        self.tensors: dict[str, torch.Tensor] = dict(program.constants)
        for value, name in zip(inputs, program.inputs, strict=True):
            if name is not None:
                self.tensors[name] = value
        arena = program.arena_bytes
        self.arena = torch.zeros(self.int(arena) + 64, dtype=torch.uint8)

    def int(self, e: Expr | int) -> int:
        return e.evaluate(self.sizes) if isinstance(e, Expr) else e

    def tensor(self, name: str) -> torch.Tensor:
        """Return the tensor of a buffer, created at its first use."""
        found = self.tensors.get(name)
        if found is None:
            found = self.tensors[name] = self._make(self.program.buffers[name])
        return found

    def _make(self, b: Buffer) -> torch.Tensor:
        size, stride = [self.int(s) for s in b.size], [self.int(s) for s in b.stride]
        if b.kind == "arena":
            start = self.int(b.offset)
            memory = self.arena[start : start + self.int(b.nbytes)].view(b.dtype)
            return memory.as_strided(size, stride, memory.storage_offset())
        if b.kind == "view":
            base = self.tensor(b.base or "")
            if base.dtype is not b.dtype:
                base = base.view(b.dtype)
            return base.as_strided(size, stride, base.storage_offset() + self.int(b.offset))
        return torch.empty_strided(size, stride, dtype=b.dtype)

    def flat(self, name: str) -> torch.Tensor:
        """Return the memory from a buffer's data pointer on, as one dim."""
        t = self.tensor(name)
        span = 1 + sum((s - 1) * st for s, st in zip(t.shape, t.stride())) if t.numel() else 0
        return t.as_strided((span,), (1,), t.storage_offset())

    def argument(self, value: Any) -> Any:
        if type(value) is Ref:
            return self.tensor(value.name)
        if isinstance(value, Expr):
            return self.int(value)
        if isinstance(value, (tuple, list)):
            return [self.argument(v) for v in value]
        return value

    def extern(self, step: Extern) -> None:
        args = [self.argument(a) for a in step.args]
        results = step.target(*args, **{k: self.argument(v) for k, v in step.kwargs.items()})
        results = results if isinstance(results, (tuple, list)) else (results,)
        for name, result in zip(step.outputs, results):
            if name is None:
                continue
            b = self.program.buffers[name]
            stride = tuple(self.int(s) for s in b.stride)
            if b.kind == "result" and tuple(result.stride()) == stride:
                self.tensors[name] = result
            else:
                self.tensor(name).copy_(result)


def run_program(program: Program, inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Run `program` on real inputs and return its results."""
    machine = _Machine(program, inputs)
    for step in program.steps:
        if type(step) is Launch:
            run_kernel(step.kernel, [machine.flat(n) for n in step.args], machine.sizes)
        elif type(step) is Batch:
            for row, size in zip(step.rows, step.sizes, strict=True):
                run_kernel(step.kernel, [machine.flat(n) for n in row], {EXTENT: size})
        elif type(step) is Extern:
            machine.extern(step)
        else:
            assert type(step) is Allocate or type(step) is Release
            for name in step.names:
                machine.tensors.pop(name, None)
    return tuple(machine.argument(o) for o in program.outputs)


