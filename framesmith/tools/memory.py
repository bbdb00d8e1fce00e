"""`memory`: the memory that compiled graphs hold between calls, by graph and name, and the owners of a snapshot's
blocks."""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from framesmith import _C
from framesmith.runtime.alive_graphs import alive
from framesmith.tools.plots import size


@dataclass(frozen=True, slots=True)
class Constant:
    """A value that is computed once and kept: a packed, cast or folded weight. `name`: its expression over
    parameters."""

    name: str
    address: int
    bytes: int


@dataclass(frozen=True, slots=True)
class GraphMemory:
    """The memory that one compiled graph holds. `recordings`: the number of calls recorded as CUDA graphs, whose memory
    `framesmith.cuda_graph_memory` counts."""

    number: int
    name: str
    place: tuple[str, int]
    device: str
    constants: tuple[Constant, ...]
    recordings: int

    @property
    def bytes(self) -> int:
        """The bytes of its constants; shared memory counts once."""
        return sum({c.address: c.bytes for c in self.constants}.values())


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory that compiled code holds between calls. `idle`: bytes on the CPU that calls share, for scratch and
    results, and that none uses now; `_C.trim_memory()` frees them."""

    graphs: tuple[GraphMemory, ...]
    idle: int

    @property
    def bytes(self) -> int:
        """All bytes that are held."""
        return self.idle + sum([g.bytes for g in self.graphs])

    def __str__(self) -> str:
        lines = [f"{size(self.bytes)} held: {size(self.idle)} of them idle, for scratch and results of calls"]
        for g in self.graphs:
            recorded = f", {g.recordings} recordings" if g.recordings else ""
            lines.append(f"{g.name} on {g.device}: {size(g.bytes)} of constants{recorded}")
            lines += [f"    {size(c.bytes)}  {c.name}" for c in sorted(g.constants, key=lambda c: -c.bytes)]
        return "\n".join(lines)

    def named(self, snapshot: dict[str, Any]) -> dict[str, Any]:
        """Return a copy of `torch.cuda.memory._snapshot()` in which each block with a constant begins its stack with a
        frame that names the constant and its graph: `torch.cuda._memory_viz` shows it."""
        owned = sorted([(c.address, c, g) for g in self.graphs if g.device.startswith("cuda") for c in g.constants],
                       key=lambda row: row[0])
        addresses = [address for address, _, _ in owned]
        out = copy.deepcopy(snapshot)
        for start, block in _blocks(out):
            first, last = bisect_right(addresses, start - 1), bisect_right(addresses, start + block["size"] - 1)
            block["frames"] = [_frame(c, g) for _, c, g in owned[first:last]] + list(block.get("frames", ()))
        return out


def _blocks(snapshot: dict[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the blocks of a snapshot with their addresses, which those of older PyTorch do not have."""
    for segment in snapshot["segments"]:
        address = segment["address"]
        for block in segment["blocks"]:
            yield block.get("address", address), block
            address += block["size"]


def _frame(constant: Constant, graph: GraphMemory) -> dict[str, Any]:
    file, line = graph.place
    return {"name": f"{constant.name}, constant of {graph.name}", "filename": file, "line": line}


def memory_now() -> Memory:
    """Return the memory that is held now."""
    graphs = []
    for call, what in alive():
        # before its first call, a graph has none
        held = zip(what.constants, call.constants)
        graphs.append(GraphMemory(what.number, what.name, what.place, what.device,
                                  tuple([Constant(name, *where) for name, where in held]), call.recordings[0]))
    return Memory(tuple(graphs), _C.idle_memory())
