"""Equal expressions have one number in all graphs of a table."""

import pytest
import torch
from torch import fx

from framesmith.autograd.value_numbering import numbered


@pytest.mark.parametrize(("left", "right", "equal"), [(float("nan"), float("nan"), True), (0.0, -0.0, False),
                                                      (1.5, 1.5, True), (0j, complex(0.0, -0.0), False)])
def test_floats_are_numbered_by_what_they_are_not_by_comparison(left, right, equal):
    table, found = {}, []
    for value in (left, right):
        graph = fx.Graph()
        node = graph.call_function(torch.ops.aten.scalar_tensor.default, (value,))
        graph.output(node)
        found.append(numbered(graph.nodes, table)[node])
    assert (found[0] == found[1]) is equal
