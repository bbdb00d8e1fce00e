"""Assertions on data: captured, and where one does not hold the frame runs again as plain Python."""

import pytest
import torch

import framesmith


class Counter:
    calls = 0


def program(x, counter, *rest, low=0.0, **words):
    counter.calls += 1
    y = x * 2
    torch._check_tensor_all(y > low, lambda: f"{rest} {words}")
    counter.calls += 1
    return y + 1


def test_an_assertion_that_holds():
    fast, counter = framesmith.compile(program, fullgraph=True, backend="eager"), Counter()
    assert torch.equal(fast(torch.ones(3), counter, 1, a=2), torch.full((3,), 3.0)) and counter.calls == 2


def test_an_assertion_that_does_not():
    fast, counter = framesmith.compile(program, fullgraph=True, backend="eager"), Counter()
    fast(torch.ones(3), counter, 1, low=0.5, a=2)
    with pytest.raises(RuntimeError) as plain:
        program(torch.zeros(3), Counter(), 1, low=0.5, a=2)
    with pytest.raises(RuntimeError) as ours:
        fast(torch.zeros(3), counter, 1, low=0.5, a=2)
    assert str(ours.value) == str(plain.value) and counter.calls == 3


def test_handlers_see_it():
    offset = torch.ones(3)

    def careful(x):
        try:
            torch._assert((x > 0).all(), "below")
            return x + offset
        except AssertionError as error:
            return str(error)
        finally:
            seen.append(1)

    seen = []
    fast = framesmith.compile(careful, fullgraph=True, backend="eager")
    assert torch.equal(fast(torch.ones(3)), torch.full((3,), 2.0))
    assert fast(-torch.ones(3)) == "below" and seen == [1, 1]


def test_a_tuple_before_a_size():
    fast = framesmith.compile(lambda x: ((-1,) + x.shape[1:] + (2,), x + 1), fullgraph=True,  # noqa: RUF005
                              backend="eager")
    shape, _ = fast(torch.ones(3, 4))
    assert shape == (-1, 4, 2) and type(shape) is torch.Size
