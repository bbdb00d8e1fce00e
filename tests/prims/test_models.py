"""Whole models: recorded, decomposed, and run against eager; what stays extern is what the table leaves to
libraries."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from framesmith.graph.interpreter import run
from framesmith.prims.decompose import decompose
from tests.fake.test_models import BUILDERS, record_module, tensors
from tests.prims.harness import check_meta, targets

LIBRARY = """linear mm bmm addmm baddbmm mv dot conv1d conv2d conv3d convolution scaled_dot_product_attention lstm
embedding_bag
_embedding_bag _embedding_bag_forward_only max_pool2d max_pool2d_with_indices avg_pool2d adaptive_avg_pool2d
_adaptive_avg_pool2d
copy_ native_dropout upsample_bilinear2d upsample_bicubic2d"""


def extern_names(graph: torch.fx.Graph) -> set[str]:
    return {one._schema.name.removeprefix("aten::") for one in targets(graph) if isinstance(one, torch._ops.OpOverload)}


def inputs_of(graph: torch.fx.Graph, real: list[Any]) -> list[Any]:
    """The placeholders' values: constants carry their own."""
    feed = iter(real)
    return [node.meta["constant"] if "constant" in node.meta else next(feed)
            for node in graph.nodes if node.op == "placeholder"]


@pytest.mark.parametrize("name", BUILDERS)
def test_same_as_eager(name: str) -> None:
    torch.manual_seed(0)
    model, inputs = BUILDERS[name]()
    recorder, fakes, real = record_module(model.eval(), inputs)
    graph = decompose(recorder.finish(fakes), strict=True)
    assert extern_names(graph) <= set(LIBRARY.split())
    with torch.no_grad():
        want = tensors(model(*inputs))
        got = run(graph, inputs_of(graph, real), trace=check_meta)
    for expected, actual in zip(want, got, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


def test_training_mode_writes_statistics() -> None:
    torch.manual_seed(0)
    model, inputs = BUILDERS["resnet18"]()
    recorder, fakes, real = record_module(model.train(), inputs)
    graph = decompose(recorder.finish(fakes), strict=True)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        want = tensors(model(*inputs))
        after = {name: value.clone() for name, value in model.state_dict().items()}
        model.load_state_dict(state)
        got = run(graph, inputs_of(graph, real))
    torch.testing.assert_close(got[0], want[0], rtol=1e-4, atol=1e-5)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, after[name], rtol=1e-5, atol=1e-5, msg=name)
