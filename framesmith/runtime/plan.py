"""The plan: the data about a compiled graph that the call path in C++ needs in addition to its machine code.

A plan is plain data (ints, strings, tuples, dtypes), so that the disk cache keeps it beside the library. It speaks of

- **values**: tensors, by number. The number is also the index of the value's pointer in the table that generated code
  reads.
- **integers**: an `int`, or `Dyn(k)`: entry k of the call's integer table. The first entries are the `symbols`, read
  from the inputs; generated code (`<entry>_sizes`) computes the rest from them. A static graph has no table.
- **externs**: operators called through PyTorch's dispatcher, by number, with an argument template.

`Plan.encode` gives the nested tuples that `_C.CompiledGraph` takes; csrc/graph_plan.cpp reads them in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import torch

from framesmith.util.serialize import serializable


@serializable
class Kind(IntEnum):
    """The kind of a value's memory. `Value.ref` means what the comment on each kind says."""

    INPUT = 0  # the caller's tensor; ref: index into the call's tuple
    CONSTANT = 1  # a tensor held by the graph; ref: index of the constant
    OUTPUT = 2  # memory of its own, allocated in each call; ref unused
    RESULT = 3  # made by an extern; ref unused
    ARENA = 4  # planned scratch memory; ref: byte offset in the arena
    VIEW = 5  # a strided window; ref: the base's number (never a view), offset: in elements of the view's dtype


@serializable
@dataclass(frozen=True, slots=True)
class Dyn:
    """Entry `index` of the call's integer table."""

    index: int


Integer = int | Dyn


@serializable
@dataclass(frozen=True, slots=True)
class PlanValue:
    """A tensor: where it lives and its geometry (elements). `written`: an input or constant whose memory the graph
    writes. `late`: an OUTPUT that generated code asks for; the others are allocated at the start."""

    kind: Kind
    ref: Integer
    size: tuple[Integer, ...]
    stride: tuple[Integer, ...]
    dtype: torch.dtype
    offset: Integer = 0
    written: bool = False
    late: bool = False

    def encode(self) -> tuple[Any, ...]:
        size, stride = _integers(self.size), _integers(self.stride)
        return (int(self.kind), _integer(self.ref), size, stride, self.dtype, _integer(self.offset), self.written,
                self.late)


@serializable
@dataclass(frozen=True, slots=True)
class TensorArg:
    """An extern's argument: value number `value`."""

    value: int


@serializable
@dataclass(frozen=True, slots=True)
class Image:
    """A kernel for a CUDA device: a cubin and the name of its entry. `threads` of a block, `shared` bytes of its
    dynamic memory."""

    name: str
    image: bytes
    threads: int
    shared: int


DROPPED = -1


def copied_to(value: int) -> int:
    """Return the entry of `results` for a tensor whose elements are copied to value number `value`."""
    return -2 - value


@serializable
@dataclass(frozen=True, slots=True)
class Call:
    """A call of operator `name` (`aten::addmm`), overload `overload` (may be empty). Without an overload, `name` is a
    plain Python callable, which is called under the interpreter's lock.

    `args`, `kwargs` hold `TensorArg`, `Dyn`, sequences of these, None, and plain constants; missing arguments take the
    schema's default. `results`: for each tensor that it returns, in order, the RESULT value that it becomes, `DROPPED`,
    or `copied_to(value)`: its elements are copied to another value (the operator cannot write into planned memory
    itself).
    """

    name: Any
    overload: str | None
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[int, ...] = ()

    def encode(self) -> tuple[Any, ...]:
        kwargs = {name: _argument(value) for name, value in self.kwargs.items()}
        return (self.name, self.overload, tuple(map(_argument, self.args)), kwargs, self.results)


@serializable
@dataclass(frozen=True, slots=True)
class Symbol:
    """A size symbol's source: `size(dim)` of input `input`, or with dim == -1 the input itself, a Python int."""

    input: int
    dim: int


@serializable
@dataclass(frozen=True, slots=True)
class Output:
    """One element of the returned tuple: value `value`, or else the int or plain constant `constant`."""

    value: int = -1
    constant: Any = None

    def encode(self) -> tuple[Any, ...]:
        dynamic = isinstance(self.constant, Dyn)
        return (self.value, _integer(self.constant) if dynamic else self.constant, dynamic)


@serializable
@dataclass(frozen=True, slots=True)
class Plan:
    """See the module's text.

    `inputs`: length of the tuple that a call passes. `watched`: indices of inputs that the constants are computed from.
    `table`: length of the integer table (0: static). `arena`: bytes. `release`: let other threads run Python during the
    call. `device`: index of the CUDA device on which the kernels `images` run, and on which scratch memory and outputs
    are; -1: the CPU. `entry`: name of the generated function. `bumped`: indices of inputs that the graph writes, whose
    version counters must rise. `constants`: how many there are. `aligned`: input values whose memory kernels want to
    begin at a multiple of 16 bytes: in a call in which one does not, a copy is used. `numbers`: input values that
    kernels are given by value: one number each, in the CPU's memory. `late`: generated code asks for the arena (on a
    CUDA device); otherwise it is there from the start. `clean`: so many externs run before anything is written to
    an input or sent to another process; a kernel that finds an index out of range does, too, unless `spoilt`.
    `rewinds`: a call may fail after it has drawn random numbers; the generators are then set back. `places`: by extern,
    the operator and the number of its node in the graph that was compiled (or -1), for messages; the call path does not
    have them. `steps`: "kernel" or "call", and its number, of each mark of the code, for profilers.
    """

    inputs: int
    values: tuple[PlanValue, ...]
    outputs: tuple[Output, ...]
    externs: tuple[Call, ...] = ()
    symbols: tuple[Symbol, ...] = ()
    table: int = 0
    arena: Integer = 0
    bumped: tuple[int, ...] = ()
    watched: tuple[int, ...] = ()
    release: bool = False
    entry: str = "fs_run"
    constants: int = 0
    device: int = -1
    images: tuple[Image, ...] = ()
    aligned: tuple[int, ...] = ()
    numbers: tuple[int, ...] = ()
    late: bool = False
    clean: int = 0
    spoilt: bool = False
    rewinds: bool = False
    places: tuple[tuple[str, int], ...] = ()
    steps: tuple[tuple[str, int], ...] = ()

    def located(self, places: Sequence[tuple[str, str]]) -> Plan:
        """The plan whose Python callables know the user's line, if they tell of it (`at`); by extern, the operator and
        that line."""
        externs = tuple([replace(call, name=call.name.at(line)) if hasattr(call.name, "at") else call
                         for call, (_, line) in zip(self.externs, places, strict=True)])
        return replace(self, externs=externs) if externs != self.externs else self

    def encode(self) -> tuple[Any, ...]:
        """Return the nested tuples for `_C.CompiledGraph`."""
        return (
            self.inputs,
            tuple(v.encode() for v in self.values),
            tuple(o.encode() for o in self.outputs),
            tuple(e.encode() for e in self.externs),
            tuple((s.input, s.dim) for s in self.symbols),
            self.table,
            _integer(self.arena),
            self.bumped,
            self.watched,
            self.release,
            self.entry,
            self.constants,
            self.device,
            tuple([(i.name, i.image, i.threads, i.shared) for i in self.images]),
            self.aligned,
            self.numbers,
            self.late,
            (self.clean, self.spoilt, self.rewinds),
        )


def _integer(value: Integer) -> int | tuple[int]:
    return (value.index,) if isinstance(value, Dyn) else value


def _integers(values: tuple[Integer, ...]) -> tuple[int | tuple[int], ...]:
    return tuple(map(_integer, values))


def _argument(value: Any) -> tuple[str, Any]:
    """One extern argument, tagged for C++: t tensor, l tensor list, d integer of the table, e list with such integers,
    c constant."""
    if isinstance(value, TensorArg):
        return ("t", value.value)
    if isinstance(value, Dyn):
        return ("d", value.index)
    if isinstance(value, (tuple, list)):
        if any(isinstance(item, TensorArg) for item in value):
            return ("l", tuple(-1 if item is None else item.value for item in value))
        if any(isinstance(item, Dyn) for item in value):
            return ("e", _integers(tuple(value)))
        return ("c", tuple(value))
    return ("c", value)
