"""torch.utils.checkpoint in training: gradients are eager's, and its regions are computed again."""

from __future__ import annotations

import functools

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
    set_checkpoint_early_stop,
)

import framesmith
from tests.autograd.driver import agree, error_of
from tests.programs import Programs

scenario = Programs(agree)
X = torch.linspace(-1, 1, 12).reshape(3, 4)


def block():
    return nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Linear(16, 4))


@scenario
def two_regions(c):
    a, b = block(), block()
    f = c(lambda x: checkpoint(b, checkpoint(a, x, use_reentrant=False), use_reentrant=False))
    for _ in range(2):
        f(X).square().sum().backward()
    return [*a.parameters()], [*b.parameters()]


@scenario(breaks=True)
def the_second_run_draws_other_numbers(c):
    x = torch.ones(3, 4, requires_grad=True)
    f = c(lambda x: checkpoint(nn.Dropout(0.5), x * 2, use_reentrant=False, preserve_rng_state=False))
    f(x).sum().backward()
    return x.grad, torch.rand(2)


@scenario
def nested_regions(c):
    a, b = block(), block()

    def inner(x):
        return checkpoint(b, a(x), use_reentrant=False) * 2

    f = c(lambda x: checkpoint(inner, x, use_reentrant=False))
    f(X).square().sum().backward()
    return [*a.parameters()], [*b.parameters()]


@scenario
def a_region_with_dropout(c):
    m = nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5))
    x = X.clone().requires_grad_()
    y = c(lambda x: checkpoint(m, x, use_reentrant=False))(x)
    y.sum().backward()
    mask = (y != 0).float() * 2
    return torch.allclose(x.grad, mask.detach() @ m[0].weight.detach(), atol=1e-5)


@scenario
def a_region_that_writes_buffers(c):
    m = nn.Sequential(nn.Linear(4, 5), nn.Tanh())
    seen = torch.zeros(5)

    def fn(x):
        y = checkpoint(m, x, use_reentrant=False)
        seen.add_(y.detach().mean(0))
        return y

    f = c(fn)
    for _ in range(2):
        f(X).sum().backward()
    return m, seen


@scenario
def under_create_graph(c):
    m = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1)).double()
    x = X.double().clone().requires_grad_()
    g, = torch.autograd.grad(c(lambda x: checkpoint(m, x, use_reentrant=False))(x).sum(), x, create_graph=True)
    g.square().sum().backward()
    return m, x


@scenario(breaks=True)
def a_break_in_a_region(c):
    m, k = nn.Sequential(nn.Linear(4, 5), nn.Tanh()), nn.Linear(5, 2)

    def inner(x):
        h = m(x)
        if h.sum() > 1e9:
            h = h * 2
        return k(h).sin()

    f = c(lambda x: checkpoint(inner, x, use_reentrant=False) * 2)
    for _ in range(2):
        f(X).square().sum().backward()
    return m, k


@scenario
def a_batch_norm_in_a_region(c):
    m = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5, affine=False, track_running_stats=False), nn.Tanh())
    x = X.clone().requires_grad_()
    c(lambda x: checkpoint(m, x, use_reentrant=False))(x).square().sum().backward()
    return m, x


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm, self.calls = nn.Linear(4, 5), nn.BatchNorm1d(5), 0

    def forward(self, x):
        self.calls += 1
        return self.norm(self.linear(x)).tanh()


@scenario(breaks=True)
def the_second_run_updates_running_statistics(c):
    m = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh())
    f = c(lambda x: checkpoint(m, x, use_reentrant=False) * 2)
    for _ in range(2):
        f(X).square().sum().backward()
    return m


@scenario(breaks=True)
def the_second_run_changes_a_module(c):
    m = Counting().eval()
    f = c(lambda x: checkpoint(m, x, use_reentrant=False) * 2)
    for _ in range(2):
        f(X).square().sum().backward()
    return m, m.calls


@scenario(breaks=True)
def the_second_run_changes_a_class_of_the_frame(c):
    def fn(x, w):
        class Seen:
            count = 0

        def region(x):
            Seen.count += 1
            return (x @ w).sin()

        return checkpoint(region, x, use_reentrant=False).cos(), Seen

    w = torch.ones(4, 2, requires_grad=True)
    y, seen = c(fn)(X, w)
    y.sum().backward()
    return w, seen.count


@scenario(breaks=True)
def the_second_run_changes_a_class_again(c):
    def fn(x, w):
        Counting.total = 0

        def region(x):
            Counting.total += 1
            return (x @ w).sin()

        return checkpoint(region, x, use_reentrant=False).cos()

    w = torch.ones(4, 2, requires_grad=True)
    c(fn)(X, w).sum().backward()
    return w, Counting.total


@scenario(breaks=True)
def the_second_run_changes_a_list_of_the_frame(c):
    def fn(x, w):
        seen = []

        def region(x):
            seen.append(1)
            return (x @ w).sin()

        return checkpoint(region, x, use_reentrant=False).cos(), seen

    w = torch.ones(4, 2, requires_grad=True)
    y, seen = c(fn)(X, w)
    y.sum().backward()
    return w, seen


@scenario
def a_region_changes_what_it_has_made(c):
    def region(x):
        parts, count, total = [], 0, torch.zeros(3, 4)

        def add(y):
            nonlocal count
            count += 1
            parts.append(y * count)
            total.add_(y)

        for _ in range(3):
            add(x.sin())
        return sum(parts) * total

    x = X.clone().requires_grad_()
    c(lambda x: checkpoint(region, x, use_reentrant=False))(x).sum().backward()
    return x


@scenario(breaks=None)
def reentrant(c):
    m = block()
    x = X.clone().requires_grad_()
    f = c(lambda x: checkpoint(m, x * 2, use_reentrant=True))
    f(x).sum().backward()
    return m, x


@scenario(breaks=None)
def sequential(c):
    m = nn.Sequential(block(), block(), block())
    x = X.clone().requires_grad_()
    c(lambda x: checkpoint_sequential(m, 2, x, use_reentrant=False))(x).sum().backward()
    return m, x


@scenario
def around_compiled_blocks(c):
    m = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh())
    f, g = c(m), c(lambda x: x.sin() * 2)
    for _ in range(2):
        checkpoint(f, X, use_reentrant=False).sum().backward()
        checkpoint(lambda x: g(f(x)).cos(), X, use_reentrant=False).sum().backward()
        with set_checkpoint_early_stop(False):
            checkpoint(f, X, use_reentrant=False).sum().backward()
    return m


@scenario
def a_block_that_sets_itself_up(c):
    m = nn.Sequential(nn.LazyLinear(4), nn.Tanh(), nn.Linear(4, 2))
    f = c(m)
    for _ in range(3):
        checkpoint(f, X, use_reentrant=False).sum().backward()
    return m


@scenario
def wrappers_of_distributed_training(c):
    a, b = block(), block()
    f, g = checkpoint_wrapper(c(a)), c(checkpoint_wrapper(b))
    for _ in range(2):
        g(f(X)).sum().backward()
    return [*a.parameters()], [*b.parameters()]


def saving_products(ctx, op, *args, **kwargs):
    is_product = op in (torch.ops.aten.addmm.default, torch.ops.aten.mm.default)
    return CheckpointPolicy.MUST_SAVE if is_product else CheckpointPolicy.PREFER_RECOMPUTE


@scenario(breaks=None)
def selective(c):
    a, b = block(), block()
    how = {"use_reentrant": False,
           "context_fn": functools.partial(create_selective_checkpoint_contexts, saving_products)}
    f, g = c(a), c(lambda x: checkpoint(b, x * 2, **how))
    for _ in range(2):
        checkpoint(f, g(X), **how).sum().backward()
    return [*a.parameters()], [*b.parameters()]


@scenario
def under_an_outer_autocast(c):
    blocks = [block() for _ in range(3)]

    def fn(x):
        for b in blocks:
            x = checkpoint(b, x, use_reentrant=False)
        return x

    f = c(fn)
    for _ in range(2):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = f(X)
        y.float().sum().backward()
    return blocks


@scenario
def autocast_around_a_region(c):
    m = block()

    def fn(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return checkpoint(m, x.view(4, 3).t().contiguous().view(3, 4), use_reentrant=False).float()

    f = c(fn)
    for _ in range(2):
        f(X).sum().backward()
    return m


@scenario
def a_hook_on_what_is_saved_raises(c):
    m, packed = block(), []

    def pack(x):
        packed.append(x.shape)
        raise KeyError("full")

    f = c(m)
    f(X)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        return error_of(lambda: f(X)), len(packed)


test_checkpoint = scenario.test()


def bytes_kept(fn, *args):
    """What the graph of `fn` keeps for its backward beside its inputs, in bytes."""
    graphs = []

    def backend(gm, examples):
        graphs.append(gm.graph)
        return gm.forward

    kept = []
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        framesmith.compile(fn, backend=backend, fullgraph=True)(*args)
    given = {x.data_ptr() for a in args for x in (a.parameters() if isinstance(a, nn.Module) else [a])}
    return sum(x.nbytes for x in kept if x.data_ptr() not in given)


def test_a_region_keeps_nothing():
    m = nn.Sequential(nn.Linear(4, 256), nn.GELU(), nn.Linear(256, 4))
    x = torch.randn(32, 4)
    plain = bytes_kept(lambda m, x: m(x).sin(), m, x)
    checkpointed = bytes_kept(lambda m, x: checkpoint(m, x, use_reentrant=False).sin(), m, x)
    assert plain >= 32 * 256 * 4
    assert checkpointed <= 32 * 4 * 4


def test_a_number_that_a_checkpointed_region_does_not_read_is_not_specialised():
    layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.0))

    def stepped(x, index):
        def region(y):
            parts = [y]
            parts.append(layers(y))
            return sum(parts)

        return checkpoint(region, x, use_reentrant=False)

    compiled = framesmith.compile(stepped, fullgraph=True)
    for index in range(4):
        compiled(torch.randn(2, 4, requires_grad=True), index).sum().backward()
    assert len(framesmith._C.entries(stepped)) == 1
