"""Tables that are both looked up and multiplied by, as a language model's embedding is: rows come from the packed
weight, so that a package does not hold the table twice.

    embedding(w, ids); contract(x, pack(w.T, 16, 16))  ->  packed_rows(pack(w.T, 16, 16), ids, n); contract(x, ...)

A row is a column of the packed weight; in panels of `LINE` columns, a row's elements are all in one panel.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from framesmith.graph.traversal import placeholders_of
from framesmith.loops.contract import LINE
from framesmith.lower.context import Context
from framesmith.lower.contractions.geometry import pack
from framesmith.lower.contractions.nodes import Nodes
from framesmith.lower.indexing import gathered, looked_up
from framesmith.lower.table import lowers_extern
from framesmith.lower.values import Computed

aten = torch.ops.aten


def look_up_packed_rows(graph: fx.Graph) -> None:
    """Rewrite look-ups in tables that nothing else but a packing reads, in place."""
    for packed in list(graph.find_nodes(op="call_function", target=pack)):
        columns, *panels = packed.args
        assert isinstance(columns, fx.Node)
        if columns.target is not aten.t.default or panels != [LINE, LINE]:
            continue
        table = columns.all_input_nodes[0]
        lookups = [user for user in table.users if user is not columns]
        if table.op != "placeholder" or not lookups or {u.target for u in lookups} != {aten.embedding.default}:
            continue
        placeholders_of(graph)[-1].append(columns)
        columns.append(packed)
        for lookup in lookups:
            args = (packed, lookup.args[1], table.meta["val"].shape[0])
            with graph.inserting_before(lookup):
                new = Nodes(graph, lookup).of(packed_rows, args, lookup.meta["val"])
            lookup.replace_all_uses_with(new)
            graph.erase_node(lookup)


def packed_rows(packed: torch.Tensor, indices: torch.Tensor, count: int) -> torch.Tensor:
    """Return rows of the table of `count` rows whose transpose is packed in panels of `LINE` columns."""
    table = packed.unflatten(0, (-(-count // LINE), -1, LINE)).transpose(1, 2).flatten(0, 1)
    return torch.nn.functional.embedding(indices, table[:count])


packed_rows.is_pure = True  # type: ignore[attr-defined]


@lowers_extern(packed_rows)
def lower_packed_rows(ctx: Context, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Computed:
    """Read one element of the packed weight for each of the result."""
    packed, indices, count = args
    packed, spec = ctx.realise(packed), node.meta["val"]
    row, panel = looked_up(ctx, indices, count, False), LINE * spec.shape[-1]

    def element(b: Any, i: Any) -> Any:
        at = row(b, i[:-1])
        return packed.element(b, [at // LINE * panel + i[-1] * LINE + at % LINE])

    return gathered(ctx, spec, packed, [indices], element)
