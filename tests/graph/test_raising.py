"""What may raise at run time, and what asking keeps."""

import gc
import weakref

import torch
from torch.fx import Graph

from framesmith.graph.launch import OfOneGraph
from framesmith.graph.patterns import arguments
from framesmith.graph.raising import may_raise

aten = torch.ops.aten


def test_operators_that_read_places_may_raise():
    assert may_raise(aten.index_select.default) and may_raise(aten.embedding.default)
    assert not may_raise(aten.mm.default) and not may_raise(aten.sum.default)


def test_nothing_keeps_what_belongs_to_one_graph():
    class Made(OfOneGraph):
        __name__ = "made"

        def __call__(self, x):
            return x

    target = Made()
    node = Graph().call_function(target, (1, 2))
    assert not may_raise(target) and arguments(node) == [1, 2]
    held = weakref.ref(target)
    del target, node
    gc.collect()
    assert held() is None
