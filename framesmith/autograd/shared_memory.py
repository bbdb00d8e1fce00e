"""What a backward reads of memory that the program can write unseen: `x.data`, an array of NumPy over it, a device.

Autograd saves some of the program's tensors by reference, and its formulas read these when the backward runs. It also
saves values that the forward computes of them, which no later write reaches. So that a backward gives the same after
such a write, only formulas read the program's memory in it: what the forward computes of that memory is not recomputed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from torch import fx

from framesmith.fake.outputs import memory_of


def shared_memory(inputs: Iterable[fx.Node], results: Iterable[fx.Node], barred: Collection[fx.Node]) -> set[fx.Node]:
    """Return the nodes whose memory both the program and a backward may have: inputs that have a name in the program,
    and results, without those that are `barred` from a backward. A graph without names is a part of another."""
    named = {n for n in inputs if "source" in n.meta}
    given = {memory_of(n)[0] for n in results} if named else set()
    return named.union(n for n in given if n.op != "placeholder").difference(barred)


def read_late(nodes: Iterable[fx.Node], shared: Collection[fx.Node]) -> set[fx.Node]:
    """Return the nodes of formulas that autograd computes of shared memory as it is when the backward runs."""
    found: set[fx.Node] = set()
    for node in nodes:
        if node.meta.get("formula") and any(a in found or memory_of(a)[0] in shared for a in node.all_input_nodes):
            found.add(node)
    return found


def read_early(nodes: Iterable[fx.Node], shared: Collection[fx.Node]) -> set[fx.Node]:
    """Return the nodes that autograd computes of shared memory in the forward alone. Regions of activation
    checkpointing run again in the backward, in eager too."""
    return {n for n in nodes if n.op == "call_function" and not n.meta.get("formula") and "checkpoint" not in n.meta
            and memory_of(n)[0] is n and any(memory_of(a)[0] in shared for a in n.all_input_nodes)}


__all__ = ["read_early", "read_late", "shared_memory"]
