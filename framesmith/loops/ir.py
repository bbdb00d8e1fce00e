"""The loop IR, the scheduler's output and code generation's input.

A **Program** is a list of buffers and a list of steps: `Launch` (run a fused kernel), `Batch` (run it for each row of a
table of buffers), `Extern` (call an operator of eager PyTorch), `Allocate` and `Release`. A **Kernel** is one C
function over raw pointers: a perfect nest of independent outer loops, and inside it a tree of inner loops and scalar
operations in SSA form.

    kernel(p0: float32 r, p1: float32 w)
      local t0: float32[768]
      par i0 < 128:                                   # Kernel.outer
        red i1 < 768 vec:                             # Loop in Kernel.body
          v0 = load p0[768*i0 + i1]
          v1 = reduce max v0
        red i1 < 768 vec:
          v2 = load p0[768*i0 + i1]
          v3 = sub v2 v1                              # v1 is visible here: its loop has ended
          v4 = exp v3
          store t0[i1] = v4
          v5 = reduce sum v4
        for i1 < 768 vec:
          v6 = load t0[i1]
          v7 = div v6 v5
          store p1[768*i0 + i1] = v7

Scope: an operation may use any operation that stands before it in its own block or in an enclosing block, and a
`Reduce` of a loop that has ended (see `Reduce`). A value defined in an outer block is uniform in the inner loops
(broadcast it when vectorising). Bodies are in order: statements run one after another in each iteration. Identity is by
object: two `Op` objects are two operations.

Nodes are never mutated after construction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from framesmith.symbolic.expr import Expr, Symbol, as_expr
from framesmith.util.serialize import serializable

# ---------------------------------------------------------------------------------------------------- scalar operations


class Op:
    """A statement of a body; those that yield a value have its compute type in `dtype`. `args` are earlier
    operations."""

    __slots__ = ()
    args: tuple[Op, ...]
    dtype: torch.dtype

    @property
    def expressions(self) -> tuple[Expr, ...]:
        """The integer expressions of the operation."""
        return ()


@dataclass(slots=True, eq=False)
class Const(Op):
    """A literal of type `dtype`; `value` is a Python bool, int or float (inf and nan included)."""

    value: bool | int | float
    dtype: torch.dtype
    args = ()


@dataclass(slots=True, eq=False)
class Index(Op):
    """The value of an integer expression over loop axes, size symbols and `Indirect` symbols; `dtype` is int64 unless a
    pass proved narrower."""

    expr: Expr
    dtype: torch.dtype
    args = ()

    @property
    def expressions(self) -> tuple[Expr, ...]:
        return (self.expr,)


@dataclass(slots=True, eq=False)
class Pred(Op):
    """The bool `lhs < rhs` of two integer expressions over loop axes, size symbols and `Indirect` symbols."""

    lhs: Expr
    rhs: Expr
    dtype: torch.dtype = torch.bool
    args = ()

    @property
    def expressions(self) -> tuple[Expr, ...]:
        return (self.lhs, self.rhs)


@dataclass(slots=True, eq=False)
class Indirect(Op):
    """Gives the integer value `args[0]` the name `symbol`, which later index expressions of this block and of inner
    blocks may contain.

    `size` is the extent of the dimension it indexes. With `wrap`, a negative value means `value + size`. With `check`,
    the operator that it came from raises on an index outside [0, size) (after wrapping): the kernel sets its error flag
    and uses 0 instead. Without `check`, the value is known to be in range. `symbol` is an int64 in [0, size). The
    operation itself yields the same number as an int64 value.
    """

    args: tuple[Op]
    symbol: Symbol
    size: Expr
    wrap: bool
    check: bool
    dtype: torch.dtype = torch.int64

    @property
    def expressions(self) -> tuple[Expr, ...]:
        return (self.size,)


@dataclass(slots=True, eq=False)
class Load(Op):
    """The element of parameter or local `buffer` at element offset `index` from its pointer (offsets are in elements,
    strides already applied).

    `dtype` is the compute type: float32 for bfloat16 and float16 buffers, the buffer's own type otherwise. `args` is
    empty, or one bool operation: where it is false memory must not be touched, and the value is 0.
    """

    buffer: str
    index: Expr
    dtype: torch.dtype
    args: tuple[Op, ...] = ()

    @property
    def expressions(self) -> tuple[Expr, ...]:
        return (self.index,)


@dataclass(slots=True, eq=False)
class Store(Op):
    """Writes `args[0]` to `buffer` at element offset `index`, rounded to nearest even when the buffer is bfloat16 or
    float16.

    `args[1]`, when there, is a bool operation: nothing is written where it is false. `mode` is None, "add": add
    atomically to what is there (several iterations may hit one element), or "sum": see `Kernel.parts`. Yields no value;
    `dtype` is that of `args[0]`.
    """

    buffer: str
    index: Expr
    args: tuple[Op, ...]
    dtype: torch.dtype
    mode: str | None = None

    @property
    def expressions(self) -> tuple[Expr, ...]:
        return (self.index,)


@dataclass(slots=True, eq=False)
class Scalar(Op):
    """The scalar operation `name` of `prims.scalars.SCALAR_OPS` on `args`; `dtype` is the result's type by the row's
    rule."""

    name: str
    args: tuple[Op, ...]
    dtype: torch.dtype


@dataclass(slots=True, eq=False)
class Cast(Op):
    """`args[0]` converted to compute type `dtype` as C does (float to int truncates; to bool: != 0).

    `rounding` is None, or torch.bfloat16 / torch.float16: then `dtype` is float32 and the value is rounded to the
    nearest number of that type.
    """

    args: tuple[Op]
    dtype: torch.dtype
    rounding: torch.dtype | None = None


@dataclass(slots=True, eq=False)
class Bitcast(Op):
    """The bits of `args[0]` read as `dtype` (same width)."""

    args: tuple[Op]
    dtype: torch.dtype


@dataclass(slots=True, eq=False)
class Reduce(Op):
    """Accumulates over the reduction loops around it; stands directly in the body of a `Loop` with `reduce=True`.

    It accumulates over the longest chain of loops with `reduce=True` that directly enclose it, starting from the
    neutral element, and its result is visible only *after* the outermost loop of that chain, in the block which holds
    that loop (and in later inner blocks). Order of accumulation is free (several accumulators, vectors, pairwise).

    - sum, prod: neutral 0, 1; dtype is that of the operand (bool does not occur);
    - max, min: neutral -inf/+inf or the type's limit; a NaN operand makes the result NaN;
    - any, all: bool; neutral False, True;
    - argmax, argmin: args = (value, position: int64); the position of the extreme value, the smallest position on ties,
      a NaN beats any number. `dtype` is int64 (the result); the extreme value itself is `Part(self, 1)`;
    - welford: args = (value,), floating; the result itself is the mean; `Part(self, 1)` is the sum of squared
      deviations from the mean and `Part(self, 2)` the count as a float.
    """

    kind: str
    args: tuple[Op, ...]
    dtype: torch.dtype


@dataclass(slots=True, eq=False)
class Scan(Op):
    """The inclusive prefix sum or product (`kind`) of `args[0]` over the iterations of the enclosing reduction loop.

    Only tile kernels have it. That loop is one axis, in order, and not part of the outer nest.
    """

    kind: str
    args: tuple[Op]
    dtype: torch.dtype


@dataclass(slots=True, eq=False)
class Part(Op):
    """A further result of the reduction `args[0]`: see `Reduce`. Stands where the reduction's result is visible."""

    args: tuple[Reduce]
    part: int
    dtype: torch.dtype


# ---------------------------------------------------------------------------------------------------------------- loops


@dataclass(frozen=True, slots=True)
class Axis:
    """An iteration symbol running over 0 <= symbol < extent. `extent` may be symbolic (size symbols only)."""

    symbol: Symbol
    extent: Expr

    @staticmethod
    def of(name: str, extent: Expr | int) -> Axis:
        """Return an axis whose symbol has this name."""
        e = as_expr(extent)
        return Axis(Symbol(name, 0, max(e.const - 1, 0) if e.is_const else e - 1), e)


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """An inner loop over `axis` with `body` run in each iteration.

    `reduce`: iterations feed the `Reduce` operations in it (and may also store: each iteration to its own element).
    Otherwise iterations are independent of each other and of their order. `vector`: the axis along which memory is
    contiguous for most accesses: vectorise this one. At most one loop on a path from the root has it. A vector loop may
    contain other loops: a non-vector reduction inside a vector loop keeps one accumulator a lane (block the vector loop
    by a few vectors so that each row that is read gives a contiguous run, with the reduction loop inside the block).
    """

    axis: Axis
    body: tuple[Node, ...]
    reduce: bool = False
    vector: bool = False

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes over which `body` runs."""
        return (self.axis,)

    @property
    def blocks(self) -> tuple[tuple[Node, ...], ...]:
        """All blocks, in order."""
        return (self.body,)

    @property
    def expressions(self) -> tuple[Expr, ...]:
        return (self.axis.extent,)


Node = Op | Loop  # or a `loops.contract.Contract`, or a `loops.product.MatrixProduct`


@dataclass(frozen=True, slots=True)
class Param:
    """A pointer parameter of a kernel. `mode`: "r", "w" or "rw". `dtype` is the storage type (bool is one byte).

    `restrict` is False when the memory may overlap another parameter's (a buffer reused in place: then an element is
    read, by the same iteration and before the store, at the offset where it is overwritten, so any order of iterations
    is right). Tile kernels may receive the same memory twice in that way for any value of `restrict`
    (`schedule.inplace`). `host`: a CPU scalar; the kernel, which is for another device, receives its value at launch.
    """

    name: str
    dtype: torch.dtype
    mode: str
    restrict: bool = True
    host: bool = False


@dataclass(frozen=True, slots=True)
class Local:
    """A small array private to one iteration of the outer nest (uninitialised; on the stack, 64-byte aligned). `size`
    in elements, an int."""

    name: str
    dtype: torch.dtype
    size: int


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """One fused kernel.

    `outer` is a perfect nest of independent iterations, outermost first: candidates for threads, in any combination
    (collapse freely). It may be empty. `body` runs once an outer iteration. When the nest of a kernel is one flat loop,
    `outer` is empty and `body` holds one vector `Loop`: a non-reduce top-level loop that is the only statement of
    `body` may be split over threads in chunks as well. `symbols`: size symbols used anywhere in it, passed as int64
    after the pointers, in this order. `tile`: None, or two axes (a, b) of a transposing kernel: some accesses are
    contiguous along a, others along b (b is the vector loop, the innermost; a is the axis just outside, in `outer` or a
    loop). Blocking both, with transposition in registers or in cache, is optional. `work`: scalar operations in all,
    weighted by cost: compare with the threshold for running in parallel. `bytes`: bytes of memory that it reads and
    writes, each element once. `parts`: 0, or the number of parts that the iterations of the outer nest are distributed
    to, in any way; `part_symbol(parts)` is the number of an iteration's part. Stores with mode "sum", whose index is
    over it and inner loops alone, then write the sums over the iterations of each part, 0 for a part without any. Only
    tile kernels have it: a program iterates over its part and accumulates. Names (p0.., t0.., axes i0..) are canonical:
    equal kernels print equally (`loops.text.kernel_text`), whatever buffers they are launched on.
    """

    params: tuple[Param, ...]
    symbols: tuple[Symbol, ...]
    locals: tuple[Local, ...]
    outer: tuple[Axis, ...]
    body: tuple[Node, ...]
    work: Expr
    bytes: Expr
    tile: tuple[Symbol, Symbol] | None = None
    parts: int = 0


def part_symbol(parts: int) -> Symbol:
    """Return the symbol for the number of a part in indices, where there are `parts`."""
    return Symbol("ipart", 0, parts - 1)


def walk(body: tuple[Node, ...]) -> Iterator[Node]:
    """Yield every node of a block, in order, a loop before its body."""
    for node in body:
        yield node
        if not isinstance(node, Op):
            for block in node.blocks:
                yield from walk(block)


def needed(ops: Iterable[Op], roots: Iterable[Op]) -> set[Op]:
    """Return `roots` and those of `ops` that they depend on: arguments, and operations that define the symbols of their
    indices."""
    loaded = {op.symbol: op for op in ops if type(op) is Indirect}
    found = set(roots)
    todo = list(found)
    while todo:
        op = todo.pop()
        for arg in (*op.args, *[loaded[s] for e in op.expressions for s in e.free if s in loaded]):
            if arg not in found:
                found.add(arg)
                todo.append(arg)
    return found


# -------------------------------------------------------------------------------------------------------------- program


@dataclass(frozen=True, slots=True)
class Buffer:
    """A tensor in memory. Its data pointer addresses element (0, ..., 0); `size` and `stride` in elements.

    `kind`, and what `base`, `index` and `offset` mean for it:

    - ``input``    tensor argument number `index` of the call; the pointer is its data_ptr(). A kernel may write to it
      (in-place epilogue).
    - ``constant`` the tensor `Program.constants[name]`, held by the compiled graph.
    - ``output``   allocated for each call with `empty_strided(size, stride, dtype)`, by its `Allocate` step or else at
      the start; it backs
                   one or several of `Program.outputs`.
    - ``scratch``  as an output, but it backs none: it lives from its `Allocate` to its `Release` step.
    - ``arena``    at byte `offset` of the arena (64-byte aligned). `nbytes` of it. Lifetimes are already planned:
      buffers may overlap.
    - ``result``   a tensor that an `Extern` step returns (no buffer is passed in); it lives until its `Release` step,
      or until the call
                   ends when it backs an output. `size` and `stride` are what the metadata predicts.
    - ``view``     a strided window on buffer `base`: element (0, ..., 0) is at element `offset` from the base's data
      pointer. `base` is
                   never a view itself. Views appear only in the arguments of externs and in `Program.outputs`, never in
                   kernels. `dtype` may differ from the base's for a view of the same width.
    """

    name: str
    dtype: torch.dtype
    size: tuple[Expr, ...]
    stride: tuple[Expr, ...]
    kind: str
    index: int = -1
    offset: Expr | int = 0
    base: str | None = None
    nbytes: Expr | int = 0


@dataclass(frozen=True, slots=True)
class Ref:
    """A tensor argument or result, by the name of its buffer."""

    name: str


@serializable
@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of work: the operator and the user's line, for comments, and for reports the number of the operator's
    node in the compiled graph."""

    op: str
    file: str = ""
    line: int = 0
    function: str = ""
    node: int = -1

    @property
    def place(self) -> str:
        """The user's line as text, or ""."""
        return f"{self.file}:{self.line} in {self.function}" if self.file else ""


@dataclass(frozen=True, slots=True, eq=False)
class Launch:
    """Run `kernel` on buffers `args`, one a parameter, in the order of `kernel.params`."""

    kernel: Kernel
    args: tuple[str, ...]
    origins: tuple[Origin, ...] = ()


EXTENT = Symbol("extent", 1)


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Run `kernel` on the buffers of each of `rows`, one a parameter, in any order: no row accesses memory that another
    writes. Threads share the concatenated elements of all rows.

    `kernel.symbols` is empty, or `EXTENT`: the extent of its one flat loop, which is `sizes[i]` for row i. `work`: of
    all, see `Kernel`.
    """

    kernel: Kernel
    rows: tuple[tuple[str, ...], ...]
    sizes: tuple[int, ...]
    work: int
    origins: tuple[Origin, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Extern:
    """Call `target` (an OpOverload, or any Python callable as a last resort) as eager does.

    `args`, `kwargs`: nested tuples/lists of `Ref`, `Expr` (an int at run time) and plain Python constants (dtype,
    device, memory format, None...). `outputs`: one entry for each tensor that it returns, in schema order: the name of
    a buffer, or None when nothing uses it.
    - an output of kind ``result`` takes over the tensor that the operator returns;
    - an output of kind ``arena``, ``output``, ``scratch``, ``input`` or ``view`` (of one of these) is memory to be
      filled: by the out-variant when there is one (its size is right already, so it does not resize), else by a copy of
      the returned tensor.
    `mutates`: names of buffers among the arguments that the operator writes in place (a schema with alias annotations).
    """

    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[str | None, ...]
    mutates: tuple[str, ...] = ()
    origins: tuple[Origin, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Allocate:
    """Allocate the ``output`` and ``scratch`` buffers `names`; (`ARENA`,): the arena, which exists from the start if no
    step allocates it."""

    names: tuple[str, ...]


ARENA = "arena"


@dataclass(frozen=True, slots=True, eq=False)
class Release:
    """The ``result``, ``scratch`` and ``input`` buffers `names` are not used after this point; `ARENA` stands for all
    of the arena."""

    names: tuple[str, ...]


Step = Launch | Batch | Extern | Allocate | Release


@dataclass(frozen=True, slots=True)
class SizeOf:
    """A size symbol's value: `size(dim)` of tensor input `input`."""

    input: int
    dim: int


@dataclass(frozen=True, slots=True)
class ValueOf:
    """A size symbol's value: input number `input` itself, a Python int."""

    input: int


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A whole compiled graph.

    `inputs`: one entry for each graph input, in order: the name of its buffer, or None for an input that is no tensor
    or is unused. `symbols`: where each size symbol's value is found at the start of a call. `outputs`: one entry for
    each result: `Ref(name)` of a buffer of any kind (an input returns the caller's own tensor object; a view makes a
    tensor over its base), an `Expr` (returned as int), or a plain Python constant (None...). `kernels`: the distinct
    kernels of the `Launch` steps; launches of equal kernels share one object. `arena_bytes`: size of the arena that a
    call needs.
    """

    inputs: tuple[str | None, ...]
    symbols: dict[Symbol, SizeOf | ValueOf]
    buffers: dict[str, Buffer]
    constants: dict[str, torch.Tensor]
    steps: tuple[Step, ...]
    outputs: tuple[Any, ...]
    arena_bytes: Expr | int
    kernels: tuple[Kernel, ...] = field(default=())
