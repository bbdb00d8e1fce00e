"""Python values of tensors' data that decide nothing, or only what is asserted: captured, and computed by residual
code."""

import pytest
import torch

import framesmith


def whole(fn, *args):
    """What a capture in one graph gives, which must be what plain Python gives."""
    plain, ours = fn(*args), framesmith.compile(fn, fullgraph=True, backend="eager")(*args)
    assert ours == plain and type(ours) is type(plain)
    return ours


@pytest.mark.parametrize("fn", [
    lambda x: f"{x.sum()} of {x} and {x.sum():.2f}!",
    lambda x: f"{x!r:s}" if x is None else f"{x.sum().item():>8.3f}|{str(x)}|{repr(x[0])}",
    lambda x: (x.sum().item(), int(x.long().sum()), float(x.long().max()), bool(x.sum()), not x.sum(),
               (x > 0).all().item()),
    lambda x: (x.max().item() <= 7, x.max().item() == 3.0, x.long().sum().item() != 6.0),
    lambda x: x.item() if x.numel() == 1 else x[0].item(),
    lambda x: {"n": x.sum().item(), "l": [x.min().item()]},
])
def test_values(fn):
    whole(fn, torch.tensor([1.0, 2.0, 3.0]))


def test_a_value_is_that_of_its_moment():
    def program(x):
        y = x.clone()
        seen = (y[0].item(), f"{y}")
        y.zero_()
        return *seen, y[0].item()

    whole(program, torch.tensor([1.0, 2.0]))


def test_text_for_a_check_that_holds():
    class Box:
        pass

    def program(x, box):
        count = (x > 0).sum()
        torch._check_with(ValueError, x.dim() == 1, lambda: f"no: {count}")
        box.text = f"{count} above"
        return x + 1

    box = Box()
    framesmith.compile(program, fullgraph=True, backend="eager")(torch.ones(3), box)
    assert box.text == "3 above"


def checked(x, high):
    if x.max().item() > high:
        raise AssertionError(f"too high: {x.max()}")
    if not (x > 0).all():
        raise ValueError(f"negative: {x.min().item()}")
    return x * 2


@pytest.mark.parametrize("values", [(1.0, 2.0), (1.0, 9.0), (-1.0, 2.0)])
def test_what_is_asserted(values):
    fast = framesmith.compile(checked, fullgraph=True, backend="eager")
    fast(torch.ones(2), 5)
    results = []
    for fn in (checked, fast):
        try:
            results.append(fn(torch.tensor(values), 5).tolist())
        except (AssertionError, ValueError) as error:
            results.append((type(error), str(error)))
    assert results[0] == results[1]


def test_a_branch_breaks_where_it_decides():
    def program(x):
        n = x.sum().item()
        y = x + 1
        if n > 2:
            return y * 2
        return y

    fast = framesmith.compile(program, backend="eager")
    for value in (0.0, 1.0, 5.0):
        assert torch.equal(fast(torch.full((2,), value)), program(torch.full((2,), value)))


def test_identity_is_not_guessed():
    def program(x):
        flag = (x > 0).all().item()
        return flag is True, x + 1

    fast = framesmith.compile(program, backend="eager")
    assert fast(torch.ones(2))[0] is True and fast(-torch.ones(2))[0] is False


def test_chance_is_not_drawn_twice():
    def program(x):
        y = torch.rand(3)
        if not (x > 0).all():
            raise AssertionError("low")
        return x + y

    fast = framesmith.compile(program, backend="eager")
    for value in (1.0, -1.0):
        results = []
        for fn in (program, fast):
            torch.manual_seed(0)
            try:
                results.append(fn(torch.full((3,), value)).tolist())
            except AssertionError as error:
                results.append(str(error))
            results.append(torch.rand(2).tolist())
        assert results[:2] == results[2:]


def patches(x, grid):
    """Sizes that come as a tensor."""
    parts = []
    for t, h, w in grid.tolist():
        parts.append(torch.arange(t * h * w).reshape(t, h, w).flip(1).flatten())
    counts = torch.repeat_interleave(grid[:, 1] * grid[:, 2], grid[:, 0])
    return x[: grid.prod(-1).sum().item()] + torch.cat(parts), counts.cumsum(0), torch.zeros(int(grid[0, 1]),
                                                                                             grid[:, 2].max())


def test_sizes_in_a_small_tensor_are_assumed():
    fast = framesmith.compile(patches, fullgraph=True, backend="eager")
    for grid in ([[1, 2, 2]], [[1, 2, 4], [2, 2, 2]], [[1, 2, 2]], [[1, 4, 2]]):
        x, grid = torch.randn(40), torch.tensor(grid)
        for ours, plain in zip(fast(x, grid), patches(x, grid), strict=True):
            assert torch.equal(ours, plain)


def test_a_buffer_that_is_written_to():
    class Strided(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("stride", torch.tensor(2))

        def forward(self, x):
            return x[:: self.stride] if self.stride > 1 else x + 1

    module = Strided()
    fast = framesmith.compile(module, fullgraph=True, backend="eager")
    for stride in (2, 3, 1, 2):
        module.stride.fill_(stride)
        assert torch.equal(fast(torch.arange(6)), module(torch.arange(6)))


def test_what_keeps_changing_is_not_assumed():
    def program(x, n):
        y = x + 1
        return y[:n] * 2 if n > 2 else y

    fast = framesmith.compile(program, backend="eager")
    for n in range(14):
        assert torch.equal(fast(torch.arange(20.0), torch.tensor(n)), program(torch.arange(20.0), torch.tensor(n)))


def test_attention_without_dropout_draws_nothing():
    def program(x):
        y = torch.nn.functional.scaled_dot_product_attention(x, x, x)
        if not (y < 100).all():
            raise ValueError("large")
        return y

    framesmith.compile(program, fullgraph=True, backend="eager")(torch.ones(1, 2, 4, 8))


def test_repeats_by_a_small_tensor_and_operators_of_numbers_alone():
    def program(x, r):
        half = torch.div(x.size(1), 2, rounding_mode="trunc")
        return torch.repeat_interleave(x, r, 0), torch.repeat_interleave(r), x.repeat_interleave(r, dim=-2).view(
            -1, half), half

    x, r = torch.randn(2, 4), torch.tensor([1, 2])
    for ours, plain in zip(framesmith.compile(program, fullgraph=True, backend="eager")(x, r), program(x, r),
                           strict=True):
        assert torch.equal(ours, plain)


def test_small_buffers_decide_where_paths_differ_too_much_for_one_graph():
    class Annealed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.chances = torch.nn.Buffer(torch.tensor([1., float("nan")]))

        def forward(self, x):
            found = ()
            for chance in self.chances:
                if chance > 0:
                    found += (x * chance,)
            return found

    model = Annealed()
    compiled = framesmith.compile(model, fullgraph=True)
    for values in ([1., float("nan")], [1., float("nan")], [0.5, 0.25], [-0.5, 0.25]):
        model.chances.copy_(torch.tensor(values))
        x = torch.randn(3)
        found, wanted = compiled(x), model(x)
        assert len(found) == len(wanted) and all(map(torch.equal, found, wanted))


@pytest.mark.parametrize("seen", [lambda y: y * 2, lambda y: (y, y.requires_grad, y.is_leaf), lambda y: y[1:],
                                  lambda y: y[1:].requires_grad])
def test_a_tensor_of_the_frame_that_is_made_to_require_grad(seen):
    def f(x):
        y = torch.zeros_like(x).requires_grad_()
        return x + y, seen(y)

    with torch.no_grad():
        found, wanted = framesmith.compile(f)(torch.ones(3)), f(torch.ones(3))
    assert repr(found) == repr(wanted)


def test_a_tensor_made_to_require_grad_costs_no_break():
    def f(x):
        return x + torch.zeros_like(x).requires_grad_() * 2

    with torch.no_grad():
        assert torch.equal(framesmith.compile(f, fullgraph=True)(torch.ones(3)), torch.ones(3))
