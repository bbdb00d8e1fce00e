"""Gradients of some results of a graph whose sizes vary: their backward is compiled when the guards are complete."""

import warnings

import pytest
import torch

import framesmith
from framesmith.util import log

PROGRAMS = {
    "a result that is written, of which the backward reads the sizes alone": (
        lambda a, c: [(t := a * 2), c * 2, t.softmax(-1).logical_not_(), t * 1][1::2], [(2, 4), (4,)]),
    "an empty result that is written": (
        lambda a, c: [(t := a[torch.tensor([0, -1, 0])]).detach().add_(1), a.sigmoid().logical_not_(),
                      t * c.norm()][2:],
        [(3, 0), (3, 4)]),
    "a size that is known by then": (
        lambda a: [(h := torch.nn.functional.gelu(a.copy_(a + a))).var(-1), h], [(3, 4)]),
    "an order of strides that the guards leave open": (
        lambda a, b: [b[:, ::2].index_fill_(-1, torch.tensor([0]), 0.5).fmod(2), b.clone(), a.sqrt().real.mul_(3)][:2],
        [(3, 4), (3, 4)]),
    "equal sizes that the guards leave open": (
        lambda a, c: [a, c.select(1, -1).clamp_(min=0.5), c.sum(-1)][::2], [(3, 4), (0, 3, 4)]),
    "a quotient of sizes in a formula": (lambda a: [(a * 1).var(-1), a.hsplit(2)[0].std(1), a.mean()], [(4, 6)]),
}


def gradients(fn, shapes, add):
    torch.manual_seed(0)
    leaves = [torch.rand([n + add if n else n for n in shape], requires_grad=True) for shape in shapes]
    results = fn(*[x * 1 for x in leaves])
    found = []
    for y in reversed([y for y in results if y.requires_grad]):
        tangent = torch.linspace(0.5, 1.5, y.numel()).view(y.shape)
        try:
            grads = torch.autograd.grad(y, leaves, tangent, allow_unused=True, retain_graph=True)
        except RuntimeError as error:
            grads = [type(error).__name__]
        found += [*grads, *[g.stride() for g in grads if isinstance(g, torch.Tensor)]]
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_of_each_result(name):
    fn, shapes = PROGRAMS[name]
    compiled = framesmith.compile(fn, dynamic=True, options={"warn": False})
    for add in (0, 2, 6):
        torch.testing.assert_close(gradients(compiled, shapes, add), gradients(fn, shapes, add))


def test_floats_of_sizes_do_not_fix_them(captures):
    compiled = framesmith.compile(lambda a: (a * 1).var(-1).sum(), dynamic=True)
    for n in (4, 5, 9):
        gradients(lambda a: [compiled(a)], [(3, n)], 0)
    assert len(captures) == 1


def test_targets_whose_sizes_are_other_symbols_than_those_of_the_logits():
    def loss(x, target):
        return torch.nn.functional.cross_entropy(x.view(-1, x.size(-1)), target.view(-1), ignore_index=-1)

    compiled = framesmith.compile(loss, dynamic=True)
    log.forget_warnings()
    for length in (4, 7, 9):
        leaf, target = torch.randn(2, length, 5, requires_grad=True), torch.arange(2 * length).view(2, length) % 6 - 1
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            given, = torch.autograd.grad(compiled(leaf * 1, target), leaf)
        assert not said, [str(w.message) for w in said]
        torch.testing.assert_close(given, *torch.autograd.grad(loss(leaf, target), leaf))


@pytest.mark.parametrize("program", [
    lambda x, y: x.sum(), lambda x, y: (x.sum() + y.sin().sum(), y.mean()),
    lambda x, y: torch.dropout(x, 0.5, True).sum() * y.sum(), lambda x, y: (torch.arange(y.shape[0]) * x).cos().sum()])
def test_gradients_that_read_only_sizes_are_differentiated_again_for_any(program):
    compiled = framesmith.compile(program, dynamic=True)
    for size in (4, 6, 3):
        given = [torch.randn(n, 1, dtype=torch.float64, requires_grad=True) for n in (5, size)]
        found = []
        for f in (compiled, program):
            torch.manual_seed(0)
            got = f(*[x * x for x in given])
            got = got[0] if isinstance(got, tuple) else got
            first = torch.autograd.grad(got, given, create_graph=True, allow_unused=True)
            found.append([*first, *torch.autograd.grad(sum(g.square().sum() for g in first if g is not None), given,
                                                       allow_unused=True)])
        for a, b in zip(*found, strict=True):
            assert a is b is None or torch.allclose(a, b, rtol=1e-12, atol=0)


def test_a_layer_that_fixes_a_size_behind_its_first_product():
    """The forward of one result's backward is that of all results: a GRU asks whether its input is contiguous, which
    depends on the number of steps, and counts the steps later."""
    def gradients(call, steps):
        x = torch.ones(2, steps, 3).requires_grad_()
        return torch.autograd.grad(call(x)[0].sum(), (x, *layer.parameters()))

    layer = torch.nn.GRU(3, 4, batch_first=True, bidirectional=True)
    compiled = framesmith.compile(layer)
    for steps in (5, 3, 1):
        torch.testing.assert_close(gradients(compiled, steps), gradients(layer, steps))
