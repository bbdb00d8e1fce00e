"""Sizes and integers that the graph itself computes of data: one graph, with eager's results for 0, 1 and many
elements, and a break where a question about them cannot be decided."""

import pytest
import torch

import framesmith


@pytest.fixture(autouse=True)
def no_variants_of_other_tests():
    """Functions of one code object share variants."""
    framesmith.reset()


def alike(got, want):
    if isinstance(want, torch.Tensor):
        torch.testing.assert_close(got, want, equal_nan=True)
        assert not want.numel() or got.stride() == want.stride()
    elif isinstance(want, tuple | list):
        assert type(got) is type(want) and len(got) == len(want)
        for g, w in zip(got, want, strict=True):
            alike(g, w)
    else:
        assert type(got) is type(want) and got == want


ROW = torch.randn(4)
ONE_GRAPH = {
    "masked": lambda x, p: (x[x > p] * 2 + 1).relu(),
    "summed": lambda x, p: ((x[x > p] * 2 + 1).sum(), x[x[:, 0] > p].sum(0)),
    "places": lambda x, p: ((x > p).nonzero() + 1, torch.argwhere(x > p)[:, 0] * 2, *torch.where(x > p)),
    "rows": lambda x, p: (x[x[:, 0] > p] * 2 + ROW, x[:, x[0] > p] + 1, x.t()[x[0] > p] - 1),
    "selected": lambda x, p: (x.masked_select(x > p).exp(), torch.masked_select(x, x[0] > p)),
    "sizes that leave": lambda x, p: ((y := x[x > p]).shape[0], y.numel() * 2, y.shape, len(y), y + 1),
    "sizes in arithmetic": lambda x, p: ((y := x[x > p]).sum() / y.shape[0], y * y.numel()),
    "made of the size": lambda x, p: ((n := x[x > p].shape[0]), torch.arange(n), torch.zeros(n, 2) + x[0, 0]),
    "two masks": lambda x, p: x[x > p].sum() + x[x < p / 2].sum(),
    "masks of masks": lambda x, p: ((y := x[x[:, 0] > p])[y[:, 1] > p] * 3, y),
    "views": lambda x, p: (x[x > p].view(-1, 1) + ROW, x[x[:, 0] > p].reshape(-1, 2, 2).transpose(0, 1) * 2),
    "views that leave": lambda x, p: ((y := x[x[:, 0] > p] * 2), y.t(), y[:, 1:], y.view(-1, 2)),
    "products": lambda x, p: (x[x[:, 0] > p] @ torch.ones(4, 3), torch.nn.functional.linear(x[x[:, 0] > p], x)),
    "joined": lambda x, p: torch.cat([x[x[:, 0] > p], x[x[:, 1] > p] * 2, x]),
    "pairs": lambda x, p: ((y := x[x[:, 0] > p])[:, None] - y[None]).abs().sum(-1),
    "put back": lambda x, p: torch.zeros(x.shape[0]).index_add(0, (i := (x[:, 0] > p).nonzero()[:, 0]), x[i, 1]),
    "scans": lambda x, p: (x[x > p].cumsum(0), x[x[:, 0] > p].softmax(-1), x[x > p].sort().values),
    "branches by range": lambda x, p: x[x > p] + 1 if x[x > p].shape[0] >= 0 else x,
}


@pytest.mark.parametrize("name", ONE_GRAPH)
def test_sizes_of_data_are_symbols_of_one_graph(name, captures):
    program = ONE_GRAPH[name]
    compiled = framesmith.compile(program, fullgraph=True)
    x = torch.rand(6, 4)
    for p in (0.5, 2.0, -1.0, x[:, 0].max().item() - 1e-6, 0.5):
        alike(compiled(x, torch.tensor(p)), program(x, torch.tensor(p)))
    assert len(captures) == 1


BREAKS = {
    "branches": lambda x, p: x[x > p] + 1 if x[x > p].shape[0] > 3 else x * 2,
    "squeezed": lambda x, p: (x[x > p] + 1).squeeze(),
    "broadcast": lambda x, p: x[x > p][:, None] + x[0] if x[x > p].numel() != 4 else x[x > p] + x[0],
    "largest": lambda x, p: x[x > p].amax() if x[x > p].numel() else x,
    "loops": lambda x, p: [v * 2 for v in x[x > p]],
    "text": lambda x, p: (x[x > p] * 2, f"{x[x > p].shape[0]} found"),
}


@pytest.mark.filterwarnings("ignore:framesmith")
@pytest.mark.parametrize("name", BREAKS)
def test_what_no_range_decides_is_a_break(name):
    program = BREAKS[name]
    compiled = framesmith.compile(program)
    x = torch.rand(6, 4)
    for p in (0.5, 2.0, -1.0, x.max().item() - 1e-6, 0.9, 0.5):
        alike(compiled(x, torch.tensor(p)), program(x, torch.tensor(p)))
