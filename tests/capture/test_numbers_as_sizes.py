"""Ints of the caller's that are sizes: symbols from their second value on, one variant for all."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import framesmith

from .test_dynamic_sizes import alike, no_variants_of_other_tests  # noqa: F401

X = torch.randn(48, 8)
PROGRAMS = {
    "slices": lambda x, n: (x[:n] * 2, x[n:] + 1, x[n:n + 2] * 2, x[-n:] * 2, x.narrow(0, n // 2, 2) + 1),
    "made": lambda x, n: (torch.zeros(n, 8) + x[0], torch.arange(n) * 2, torch.full((n,), 3.0), x.new_zeros([2, n])),
    "views": lambda x, n: (x.view(n, -1) * 2, x.view(-1, n) + 1, x[0].expand(n, 8) + 1, x.repeat(n, 1)),
    "scaled": lambda x, n: (x * n, x / n, x[:n] * n + torch.arange(n)[:, None] / n, x * (n / 3)),
    "timestep": lambda x, n: x * torch.cos(torch.tensor(n) * 0.1) + torch.full((8,), n).float(),
    "arithmetic": lambda x, n: (x[:2 * n - 1] * (n - 1), n + 1, x[:max(n, 2)], f"{n}"),
    "with sizes": lambda x, n: (x[:x.shape[0] - n] + 1, torch.arange(n * x.shape[1]), x.shape[0] // n),
    "operators": lambda x, n: (F.pad(x, (0, 0, 0, n)), x.roll(n, 0), x.topk(n, 0)[0], torch.ones(n, n).tril(),
                               F.interpolate(x[None, None], size=(n, 8))),
    "keywords": lambda x, *, n=3: x[:n].sum(0),
    "in a list": lambda x, sizes: x[:sizes[0]].sum(0),
}


def call(fn, name, n):
    return fn(X, n=n) if name == "keywords" else fn(X, [n]) if name == "in a list" else fn(X, n)


@pytest.mark.filterwarnings("error:framesmith")
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_second_value_makes_a_variant_for_all(name, captures):
    compiled = framesmith.compile(PROGRAMS[name])
    for n in (6, 8, 12, 16, 3, 4, 24, 2):
        alike(call(compiled, name, n), call(PROGRAMS[name], name, n))
    assert len(captures) == 2


@pytest.mark.parametrize("name", ["slices", "made", "scaled"])
def test_zero_one_and_negative_values_have_variants_of_their_own(name, captures):
    compiled = framesmith.compile(PROGRAMS[name])
    for n in (6, 8, 1, 12, 9, 1, 4):
        alike(call(compiled, name, n), call(PROGRAMS[name], name, n))
    assert len(captures) == 3


def test_a_branch_on_it_is_a_variant_for_each_side(captures):
    def program(x, n):
        return x[:n] * 2 if n > 10 else x[n:] + 1

    compiled = framesmith.compile(program)
    for n in (3, 4, 5, 12, 20, 7, 30):
        alike(compiled(X, n), program(X, n))
    assert len(captures) == 3


def test_what_needs_the_value_assumes_it():
    def program(x, n):
        return sum([x[i] for i in range(n)]), x.split(n)[0] * 2, math.sqrt(n), {n: 1}

    compiled = framesmith.compile(program)
    for n in (3, 4, 6, 3, 8):
        alike(compiled(X, n), program(X, n))


@pytest.mark.filterwarnings("error:framesmith")
def test_a_number_that_chooses_an_argument_leaves_sizes_symbols(captures):
    def program(x, n):
        return F.avg_pool1d(x[None], n, 1) + x.shape[0]

    compiled = framesmith.compile(program)
    for n, rows in ((2, 5), (3, 6), (2, 7), (3, 8), (2, 9), (3, 4)):
        alike(compiled(x := torch.randn(rows, 8), n), program(x, n))
    assert len(captures) <= 6


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.places = nn.Embedding(32, 16), nn.Embedding(64, 16)

    def forward(self, tokens, start):
        at = torch.arange(start, start + tokens.shape[1])
        return self.embed(tokens) + self.places(at)


def test_a_position_that_counts_up(captures):
    model = Decoder().eval()
    compiled = framesmith.compile(model)
    for step in range(40):
        tokens = torch.randint(0, 32, (2, 1))
        with torch.no_grad():
            alike(compiled(tokens, step), model(tokens, step))
    assert len(captures) <= 4


@pytest.mark.parametrize("name", ["rows", "all"])
def test_gradients(name, captures):
    def program(x, n):
        return x[:n].tanh() * n if name == "rows" else x.repeat(n, 1)

    compiled = framesmith.compile(program)
    for n in (3, 5, 9, 12):
        x = X.double().requires_grad_()
        grads = [torch.autograd.grad(f(x, n).square().sum(), x)[0] for f in (compiled, program)]
        torch.testing.assert_close(*grads)
    assert len(captures) == 2


def test_fullgraph_and_never():
    def program(x, n):
        return x[:n] * 2 if n > 4 else x + n

    for options in ({"fullgraph": True}, {"dynamic": False}):
        compiled = framesmith.compile(program, **options)
        for n in (3, 6, 7, 9, 2):
            alike(compiled(X, n), program(X, n))


def test_a_value_that_does_not_fit_raises_as_in_eager():
    def program(x, n):
        return x.view(n, -1) * 2

    compiled = framesmith.compile(program)
    for n in (6, 8, 12):
        alike(compiled(X, n), program(X, n))
    for n in (5, 7, 10**30):
        try:
            program(X, n)
        except (RuntimeError, TypeError, OverflowError) as error:
            with pytest.raises(type(error)):
                compiled(X, n)
