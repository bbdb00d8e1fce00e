"""Small integer inputs whose numbers are sizes, and lists of them whose length varies: one graph for all contents and
lengths; what looks at them in another way has variants."""

import pytest
import torch
import torch.nn.functional as F

import framesmith


@pytest.fixture(autouse=True)
def no_variants_of_other_tests():
    """Functions of one code object share variants."""
    framesmith.reset()


def positions(x, grid):
    found = []
    for (t, h, w), merged in zip(grid.tolist(), torch.tensor([2]).expand(len(grid)).tolist()):
        rows, columns = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
        blocks = h // merged, merged, w // merged, merged
        rows = rows.reshape(blocks).transpose(1, 2).flatten()
        columns = columns.reshape(blocks).transpose(1, 2).flatten()
        found.append(torch.stack([rows, columns], dim=-1).repeat(t, 1))
    return x + torch.cat(found, dim=0).sum(-1)[:, None]


def attended(x, grid):
    lengths = grid.prod(-1)
    ends = F.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0), value=0)
    heads = x.view(x.shape[0], 2, 2).transpose(0, 1).unsqueeze(0)
    parts = [torch.split(y, (ends[1:] - ends[:-1]).tolist(), dim=2) for y in (heads, heads + 1, heads * 2)]
    found = [F.scaled_dot_product_attention(q, k, v).transpose(1, 2) for q, k, v in zip(*parts)]
    return torch.cat(found, dim=1).reshape(x.shape[0], -1)


def joined_again(x, grid):
    parts = torch.split(x, grid.prod(-1).tolist())
    return torch.cat(parts, dim=0) * len(parts), isinstance(parts, tuple)


def first_sizes(x, grid):
    t, h, w = grid[0].tolist()
    return x[:t * h * w].view(t, h, w, -1).sum(1)


GRIDS = [[[1, 2, 4], [1, 4, 4]], [[2, 4, 2], [1, 2, 2], [1, 6, 4]], [[1, 8, 2]] * 5]


def given(grid):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(int(grid.prod(-1).sum()), 4, dtype=torch.double, generator=generator), grid


@pytest.mark.parametrize("fn", [positions, attended, joined_again, first_sizes])
def test_one_graph_serves_all_contents_and_lengths(fn):
    compiled = framesmith.compile(fn, dynamic=True, fullgraph=True)
    for grid in GRIDS:
        args = given(torch.tensor(grid))
        torch.testing.assert_close(compiled(*args), fn(*args), rtol=0, atol=1e-12)
    assert len(framesmith._C.entries(fn)) == 1


def test_sizes_that_do_not_fit_raise_as_in_eager():
    compiled = framesmith.compile(joined_again, dynamic=True)
    compiled(*given(torch.tensor(GRIDS[0])))
    x, grid = given(torch.tensor(GRIDS[1]))
    with pytest.raises(RuntimeError, match="split_with_sizes expects split_sizes to sum exactly"):
        compiled(x[1:], grid)


def returned(x, grid):
    return torch.split(x, grid.prod(-1).tolist())


def branching(x, grid):
    return x * 2 if grid[0].tolist()[1] > 3 else x + 1


def written_before_the_loop(x, grid):
    sizes, total = grid[:, 1], x.sum()
    numbers = sizes.tolist()
    sizes += 1
    for n in numbers:
        total = total + n
    return total, grid


@pytest.mark.parametrize("fn", [returned, branching, written_before_the_loop])
def test_other_uses_equal_eager(fn):
    compiled = framesmith.compile(fn, dynamic=True)
    for grid in GRIDS:
        x, grid = given(torch.tensor(grid))
        ours, theirs = grid.clone(), grid.clone()
        found, wanted = compiled(x, ours), fn(x, theirs)
        assert type(found) is type(wanted)
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
        assert torch.equal(ours, theirs)


def test_gradients_equal_eager():
    compiled = framesmith.compile(attended, dynamic=True)
    for grid in GRIDS:
        x, grid = given(torch.tensor(grid))
        found = [torch.autograd.grad(fn(y := x.clone().requires_grad_(), grid).square().sum(), y)[0]
                 for fn in (compiled, attended)]
        torch.testing.assert_close(*found, rtol=0, atol=1e-10)


def test_narrow_takes_numbers_of_data():
    def part(x, n):
        return x.narrow(0, n[0].item(), n[1].item()) * 2

    compiled = framesmith.compile(part, dynamic=True, fullgraph=True)
    x = torch.arange(12.)
    for start, length in ((1, 3), (0, 12), (5, 0), (12, 0)):
        n = torch.tensor([start, length])
        assert torch.equal(compiled(x, n), part(x, n))
    assert len(framesmith._C.entries(part)) == 1
    with pytest.raises(RuntimeError, match="exceeds dimension size"):
        compiled(x, torch.tensor([10, 3]))


def converted(x, grid):
    found = []
    for t, h, w in grid.tolist():
        t, h, w = int(t), int(h), int(w)
        found.append(torch.arange(t * h * w) + int(t > 1))
    return x + torch.cat(found)[:, None]


def test_int_of_a_number_of_data_is_that_number_and_of_a_comparison_zero_or_one():
    compiled = framesmith.compile(converted, dynamic=True, fullgraph=True)
    for rows in ([[1, 2, 3], [2, 2, 2]], [[3, 1, 2], [1, 4, 4], [1, 1, 5]], [[1, 3, 3]] * 4):
        grid = torch.tensor(rows)
        x = torch.randn(int(grid.prod(-1).sum()), 2)
        assert torch.equal(compiled(x, grid), converted(x, grid))
    assert len(framesmith._C.entries(converted)) == 1
