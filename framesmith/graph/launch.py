"""Launches of the program's own kernels: a Triton function over a grid, as a function of memories.

    launch(memory, ...)  ->  the new memories

A *memory* is the target of a kernel's pointer arguments: a whole storage if the kernel writes it, else the tensor that
it reads. The node is functional: it returns the new values of the written memories; `InPlace` is the call that writes
them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from framesmith import _C
from framesmith.util.errors import NotSerializable
from framesmith.util.serialize import serializable

Sizes = tuple[int, ...]


@serializable
@dataclass(frozen=True, slots=True)
class Memory:
    """The layout of a memory; `blank`: its old value does not matter, and is not passed."""

    size: Sizes
    stride: Sizes
    dtype: torch.dtype
    device: torch.device
    blank: bool = False


@serializable
@dataclass(frozen=True, slots=True)
class MemoryWindow:
    """A tensor as an argument: elements of memory number `memory`, from `offset` on."""

    memory: int
    size: Sizes
    stride: Sizes
    offset: int = 0


@serializable
@dataclass(frozen=True, slots=True)
class Grids:
    """A grid that depends on parameters `names` of the kernel: by their values."""

    names: tuple[str, ...]
    table: Mapping[tuple[Any, ...], tuple[int, ...]]

    def __call__(self, meta: Mapping[str, Any]) -> tuple[int, ...]:
        return self.table[tuple([meta[name] for name in self.names])]


class OfOneGraph:
    """A callable that is the target of one node: a function of tensors with the strides at recording."""

    __slots__ = ()
    is_pure: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, eq=False)
class Launch(OfOneGraph):
    """`kernel[grid](*positional, **keywords)`, with `Window`s among the arguments. `written`: numbers of the memories
    that it writes.

    `identity` identifies the kernel's computation across processes, for cache keys. `path`: the module and name by
    which it can be found again.
    """

    kernel: Any
    name: str
    identity: str
    path: tuple[str, str] | None
    grid: tuple[int, ...] | Grids
    positional: tuple[Any, ...]
    keywords: tuple[tuple[str, Any], ...]
    memories: tuple[Memory, ...]
    written: tuple[int, ...]

    @property
    def __name__(self) -> str:
        return self.name

    def __str__(self) -> str:
        told = self.identity, self.grid, self.positional, self.keywords, self.memories, self.written
        return f"launch of {self.name} {told}"

    def __call__(self, *memories: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
        """Run functionally: written memories are copied, blank ones allocated."""
        with torch.no_grad():
            own = [self._own(k, memory) if k in self.written else memory for k, memory in enumerate(memories)]
            self.run(own)
        return tuple([own[k] for k in self.written])  # type: ignore[misc]

    def _own(self, k: int, memory: torch.Tensor | None) -> torch.Tensor:
        how = self.memories[k]
        made = torch.empty_strided(how.size, how.stride, dtype=how.dtype, device=how.device)
        return made if memory is None else made.copy_(memory)

    def run(self, memories: Sequence[torch.Tensor | None]) -> None:
        """Launch over these memories, in place."""

        def given(x: Any) -> Any:
            if type(x) is not MemoryWindow:
                return x
            memory = memories[x.memory]
            assert memory is not None
            if x.offset == 0 and (memory.shape, memory.stride()) == (x.size, x.stride):
                return memory
            return memory.detach().as_strided(x.size, x.stride, memory.storage_offset() + x.offset)

        keywords = {name: given(value) for name, value in self.keywords}
        run = _C.CompiledFunction(self.kernel.run, None)  # Triton's own frames are not captured
        run(*map(given, self.positional), grid=self.grid, warmup=False, **keywords)

    def __reduce__(self) -> tuple[Any, ...]:
        if self.path is None or found_at(*self.path) is not self.kernel:
            raise NotSerializable(f"kernel {self.name} is not found by its name")
        rest = self.grid, self.positional, self.keywords, self.memories, self.written
        return _again, (self.path, self.name, self.identity, *rest)


def found_at(module: str, name: str) -> Any:
    """Return the object under a dotted name in a loaded module, or None."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


@serializable
def _again(path: tuple[str, str], name: str, identity: str, *rest: Any) -> Launch:
    kernel = found_at(*path)
    if kernel is None:
        raise ImportError(f"no kernel {'.'.join(path)}")
    return Launch(kernel, name, identity, path, *rest)


@serializable
@dataclass(frozen=True, slots=True, eq=False)
class InPlace:
    """The in-place launch: takes all memories, and returns nothing."""

    launch: Launch

    @property
    def __name__(self) -> str:
        return self.launch.name

    def __str__(self) -> str:
        return f"kernel {self.launch.name}"

    def __call__(self, *memories: torch.Tensor) -> None:
        self.launch.run(memories)
