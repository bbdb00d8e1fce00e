"""Python values of tensors' data that decide nothing, or only what is asserted: captured, and computed by residual code."""

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
    lambda x: (x.sum().item(), int(x.long().sum()), float(x.long().max()), bool(x.sum()), not x.sum(), (x > 0).all().item()),
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
