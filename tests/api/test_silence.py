"""Nothing is left in eager without a word, and of one thing there is one word."""

import asyncio
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import framesmith


@pytest.fixture(autouse=True)
def _warnings_anew():
    framesmith.reset()


def told(fn, *args, calls=6):
    """framesmith's warnings in some calls of `fn`."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(calls):
            fn(*args)
    return [str(w.message) for w in seen if "framesmith" in str(w.message)]


def generator(x):
    yield x * 2


async def coroutine(x):
    return x * 2


class Yielding(nn.Module):
    def forward(self, x):
        yield x * 2


@pytest.mark.parametrize("make", [lambda: generator, lambda: coroutine, Yielding],
                         ids=["generator", "coroutine", "module"])
def test_functions_whose_bodies_run_later_are_named_at_once(make):
    with pytest.warns(UserWarning, match="runs in eager: it is a generator or a coroutine function"):
        compiled = framesmith.compile(make())
    x = torch.ones(2)
    found = asyncio.run(compiled(x)) if make() is coroutine else next(compiled(x))
    assert torch.equal(found, x * 2)


def test_a_wrapper_that_has_compiled_nothing_says_so_once():
    compiled = framesmith.compile(np.median)
    assert len(found := told(compiled, np.ones(3))) == 1 and "calls of median have compiled nothing so far" in found[0]
    assert told(compiled, np.ones(3)) == []


@pytest.mark.parametrize("fn", [
    lambda x: x + 1,
    lambda x: x,
    lambda x: print(end="") or x + 1,
    lambda x: x.sum().item(),
], ids=range(4))
def test_what_is_compiled_says_nothing(fn):
    assert told(framesmith.compile(fn), torch.ones(2)) == []
    sizes = iter(range(1, 9))
    assert told(lambda compiled: compiled(torch.ones(next(sizes))), framesmith.compile(fn, dynamic=False)) == []


def test_what_raises_says_nothing():
    def fn(x):
        raise KeyError

    def call(compiled):
        with pytest.raises(KeyError):
            compiled(torch.ones(2))

    assert told(call, framesmith.compile(fn)) == []


def test_a_refusal_is_told_once():
    def fn(x):
        return locals() and globals().get("nothing") or x + 1

    found = told(framesmith.compile(fn), torch.ones(2))
    assert len(found) <= 1 and not any("have compiled nothing" in text for text in found)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)

    def forward(self, x):
        return self.norm(self.linear(x)).relu()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Block(), nn.Sequential(Block(), nn.GELU(), Block())

    def forward(self, x, adjacency=None):
        x = self.first(x)
        if adjacency is not None:
            x = torch.sparse.mm(adjacency, x)
        return self.second(x)


ODD = {
    "sparse": lambda: (torch.ones(4, 4), torch.eye(4).to_sparse()),
    "nested": lambda: (torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)]),),
    "meta": lambda: (torch.ones(4, 4, device="meta"),),
}


@pytest.mark.parametrize("kind", ODD)
def test_one_word_a_model_of_odd_tensors(kind):
    with torch.device("meta" if kind == "meta" else "cpu"):
        model = Model()
    model(*ODD[kind]())  # torch imports what it needs for these when it first runs
    assert len(told(framesmith.compile(model), *ODD[kind]())) == 1
