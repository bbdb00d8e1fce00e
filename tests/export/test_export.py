"""Small programs exported, saved, loaded and run at several sizes; eager is the oracle."""

import pytest
import torch
from torch import nn

import framesmith
from framesmith.export import Dim
from framesmith.export.trees import flatten


def same(program, model, *cases):
    for args in cases:
        with torch.no_grad():
            want, _ = flatten(model(*args))
        got, _ = flatten(program(*args))
        torch.testing.assert_close(got, want)


def rows(width, *counts):
    return [(torch.randn(n, width),) for n in counts]


def test_a_dynamic_batch_saved_and_loaded(tmp_path):
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    program = framesmith.export(model, (torch.randn(3, 4),), dynamic_shapes=({0: Dim("batch")},))
    same(program, model, *rows(4, 1, 3, 7))
    program.save(tmp_path / "model")
    again = framesmith.load(tmp_path / "model")
    same(again, model, *rows(4, 1, 3, 7))
    assert again.dimensions == {"batch": (1, None)}
    assert list(again.parameters) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    with pytest.raises(ValueError, match="dimension 1 of input_1 is 5"):
        again(torch.randn(3, 5))


def test_a_specialised_dimension_names_line_and_fix():
    class Model(nn.Module):
        def forward(self, x):
            return x.view(3, 4) + 1

    with pytest.raises(framesmith.exc.ExportError, match=r"batch is always 3 here, at .*test_export.py:\d+ in forward"):
        framesmith.export(Model(), (torch.randn(3, 4),), dynamic_shapes=({0: Dim("batch")},))


@pytest.mark.parametrize("width", [8, 5])
def test_operators_of_libraries_that_a_process_may_lack_are_taken_apart(width):
    pytest.importorskip("transformers.integrations.moe")

    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = nn.Parameter(torch.randn(3, width, 4 + width))

        def forward(self, x, ends):
            return torch.ops.transformers.grouped_mm_fallback(x, self.weights, ends)

    model = Experts()
    program = framesmith.export(model, (torch.randn(7, width), torch.tensor([2, 2, 6])),
                                dynamic_shapes=({0: Dim("n")}, None))
    assert not program.beyond and all("transformers" not in str(node.target) for node in program.graph.nodes)
    same(program, model, *[(torch.randn(9, width), torch.tensor(ends)) for ends in ([0, 3, 9], [4, 4, 4])])
