"""What eager raises, compiled code raises: type, message, and the user's line at the end of the traceback."""

import traceback
import warnings

import pytest
import torch
from torch import nn

import framesmith


def product(x, y):
    a = x + 1
    b = a @ y
    return b * 2


def raises_itself(x, n):
    y = x.relu()
    if n > 3:
        raise ValueError(f"bad {n}")
    return y


def adds(x, y):
    return (x.sin() + y).cos()


def catches(x, y):
    try:
        return x @ y
    except RuntimeError as error:
        return x + len(str(error))


def error_of(fn, *args):
    with pytest.raises(Exception) as caught:
        fn(*args)
    last = traceback.extract_tb(caught.tb)[-1]
    return type(caught.value), str(caught.value), last.filename, last.lineno


CASES = {
    "shapes": (product, (torch.ones(3, 4), torch.ones(5, 6))),
    "type": (product, (torch.ones(3, 4), 3)),
    "dtype": (product, (torch.ones(3, 4), torch.ones(4, 6, dtype=torch.int64))),
    "broadcast": (adds, (torch.ones(3), torch.ones(4))),
    "own": (raises_itself, (torch.ones(3), 5)),
}


@pytest.mark.parametrize("fn, args", CASES.values(), ids=CASES)
def test_the_same_error_at_the_same_line(fn, args):
    fast = framesmith.compile(fn)
    assert error_of(fast, *args) == error_of(fn, *args)
    assert error_of(fast, *args) == error_of(fn, *args)


def test_errors_of_later_calls():
    fast = framesmith.compile(product)
    good, bad = (torch.ones(3, 4), torch.ones(4, 6)), (torch.ones(3, 4), torch.ones(5, 6))
    for _ in range(2):
        assert torch.equal(fast(*good), product(*good))
        assert error_of(fast, *bad) == error_of(product, *bad)


@pytest.mark.parametrize("args", [(torch.ones(3),), (), (torch.ones(3), 1, 2)], ids=len)
def test_wrong_number_of_arguments(args):
    fast = framesmith.compile(raises_itself)
    with pytest.raises(TypeError) as want:
        raises_itself(*args)
    with pytest.raises(TypeError) as got:
        fast(*args)
    assert str(got.value) == str(want.value)


def test_module_with_wrong_shapes():
    net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(6, 2))
    assert error_of(framesmith.compile(net), torch.ones(2, 4)) == error_of(net, torch.ones(2, 4))


def test_a_caught_error():
    args = torch.ones(3, 4), torch.ones(5, 6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(framesmith.compile(catches)(*args), catches(*args))


def test_an_index_out_of_range():
    def look_up(table, index):
        return nn.functional.embedding(index, table).relu()

    fast, table = framesmith.compile(look_up), torch.ones(4, 2)
    fast(table, torch.tensor([1, 2]))
    for f in (look_up, fast):
        with pytest.raises(IndexError, match="index out of range in self"):
            f(table, torch.tensor([1, 7]))


def raises_past_frames_that_are_refused(x):
    try:
        raise ValueError(x)
    finally:
        [locals() for _ in range(2)]


def test_what_is_refused_in_a_handler_leaves_the_trace_of_what_is_handled():
    fast = framesmith.compile(raises_past_frames_that_are_refused)
    assert error_of(fast, 3) == error_of(raises_past_frames_that_are_refused, 3)
