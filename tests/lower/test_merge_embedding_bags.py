"""Embedding bags looked up together: one operator, eager's values and errors."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import framesmith
from framesmith.config import Config
from framesmith.fake import Recorder
from framesmith.pipeline import compile_graph

aten = torch.ops.aten


class Bags(nn.Module):
    def __init__(self, width: int, **options) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(rows, width, **options) for rows in (11, 7, 23))

    def forward(self, indices, offsets):
        found = [bag(indices[i], offsets[i]) for i, bag in enumerate(self.bags)]
        return torch.stack([rows * (i + 1) for i, rows in enumerate(found)], dim=1)


def compiled(module: nn.Module, arguments, config: Config):
    recorder = Recorder()
    parameters = dict(module.named_parameters())
    fakes = {name: recorder.input(p, name) for name, p in parameters.items()}
    given = [recorder.input(a, f"a{i}") for i, a in enumerate(arguments)]
    with torch.no_grad(), recorder:
        out = torch.func.functional_call(module, fakes, tuple(given))
    return compile_graph(recorder.finish([out]), config, (*parameters.values(), *arguments)), tuple(parameters.values())


@pytest.mark.parametrize("options", [
    {"mode": "sum"}, {"mode": "mean"}, {"mode": "sum", "padding_idx": 3}, {"mode": "mean", "padding_idx": 0},
    {"mode": "sum", "include_last_offset": True},
])
@pytest.mark.parametrize("width", [64, 19, 100])
@pytest.mark.parametrize("index", [torch.int64, torch.int32])
def test_as_eager(options, width, index, tmp_path):
    torch.manual_seed(0)
    module = Bags(width, **options).eval()
    indices = torch.randint(0, 7, (3, 20), dtype=index)
    offsets = torch.tensor([[0, 3, 3, 12, 20], [0, 0, 5, 6, 20], [0, 1, 2, 3, 20]], dtype=index)
    with torch.no_grad():
        result, parameters = compiled(module, (indices, offsets), Config(cache_dir=str(tmp_path)))
        assert result.report.externs == ("framesmith::embedding_bags",)
        (actual,) = result.call((*parameters, indices, offsets))
        torch.testing.assert_close(actual, module(indices, offsets))


def test_an_index_beyond_its_table_is_refused(tmp_path):
    module = Bags(16, mode="sum").eval()
    indices, offsets = torch.zeros(3, 4, dtype=torch.int64), torch.tensor([[0, 2]] * 3)
    with torch.no_grad():
        result, parameters = compiled(module, (indices, offsets), Config(cache_dir=str(tmp_path)))
        with pytest.raises(IndexError, match="but found idx to be 9"):
            result.call((*parameters, torch.full((3, 4), 9), offsets))


@pytest.mark.parametrize("options", [
    {"mode": "sum"}, {"mode": "mean"}, {"mode": "sum", "padding_idx": 3}, {"mode": "mean", "padding_idx": 0},
    {"mode": "sum", "include_last_offset": True}, {"mode": "max"}, {"mode": "mean", "scale_grad_by_freq": True},
    {"mode": "sum", "sparse": True},
])
@pytest.mark.parametrize("threads", [1, 3])
def test_gradients_as_eager(options, threads, tmp_path):
    torch.manual_seed(0)
    module = Bags(19, **options)
    indices = torch.randint(0, 7, (3, 20))
    offsets = torch.tensor([[0, 3, 3, 12, 20], [0, 0, 5, 6, 20], [0, 1, 2, 3, 20]])
    parameters = tuple(module.parameters())
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        expected = torch.autograd.grad(module(indices, offsets).square().sum(), parameters)
        ours = framesmith.compile(lambda: module(indices, offsets).square().sum(),
                                  options={"cache_dir": str(tmp_path)})()
        torch.testing.assert_close(torch.autograd.grad(ours, parameters), expected, rtol=1e-5, atol=1e-5)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("offsets", [[0, 1, 1], [0, 0], [0, 2, 2, 2], [0, 3]], ids=str)
def test_the_gradient_of_indices_behind_the_last_offset(offsets):
    """Eager's means leave them out, and give them the last bag's gradient (with sums it is memory as it was)."""
    indices, offsets = torch.tensor([0, 2, 1]), torch.tensor(offsets)

    def fn(table):
        return F.embedding_bag(indices, table, offsets, mode="mean", include_last_offset=True)

    found = []
    for f in (fn, framesmith.compile(fn)):
        table = torch.ones(4, 3, requires_grad=True)
        y = f(table)
        y.backward(torch.linspace(0.5, 1.5, y.numel()).view(y.shape))
        found.append((y.detach(), table.grad))
    torch.testing.assert_close(found[0], found[1])


def test_the_gradient_of_a_large_table_by_several_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        tangent, indices, offsets = torch.randn(50, 128)[:, ::2], torch.randint(0, 5000, (300,)), torch.arange(
            0, 300, 6)
        exact = torch.zeros(5000, 64).index_add(0, indices, tangent.repeat_interleave(6, 0))
        torch.testing.assert_close(torch.ops.framesmith.embedding_bag_gradient(tangent, indices, offsets, 5000, False,
                                                                               -1), exact)
    finally:
        torch.set_num_threads(before)
