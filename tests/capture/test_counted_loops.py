"""Loops of Python over a number of rounds that varies: one graph for all numbers, in training too; variants where a
round does more than compute."""

import warnings

import pytest
import torch
from torch.utils._pytree import tree_leaves

import framesmith
from framesmith.util.events import UnrolledLoop, on_event
from tests.capture.test_branches import alike


@pytest.fixture(autouse=True)
def no_variants_of_other_tests():
    """Functions of one code object share variants."""
    framesmith.reset()


W, U = torch.randn(4, 4, dtype=torch.double) / 2, torch.randn(4, 4, dtype=torch.double) / 2
B = torch.randn(4, dtype=torch.double)
WEIGHTS = [w.requires_grad_() for w in (W, U, B)]


def recurrent(x):
    h = x.new_zeros(x.shape[1], 4)
    outs = []
    for k in range(x.shape[0]):
        h = torch.tanh(x[k] @ W + h @ U + B)
        outs.append(h)
    return torch.stack(outs), outs[-1]


def batch_first(x):
    h = c = torch.zeros(3, 4, dtype=x.dtype)
    outs = []
    x = x.transpose(0, 1)
    for k in range(x.size(1)):
        gate = (x[:, k] @ W + h @ U).sigmoid()
        c = gate * c + (1 - gate) * x[:, k, :].tanh()
        h = c.tanh() * gate
        outs.append(h.unsqueeze(1))
    return torch.cat(outs, dim=1), h, len(outs)


def backwards(x):
    h, outs = x[0] * 0, []
    for k in reversed(range(len(x))):
        h = (h @ U + x[k]).tanh()
        outs.append(h)
    for k in range(len(x) - 1, -1, -1):
        h = h * x[k] + B
    return torch.stack(outs, 1), h


def over_a_tensor(x):
    total = 0.0
    for row in x:
        total = total + (row @ W).relu().sum() * 0.5
    return total


def with_numbers(x):
    y, last = x[0], 0
    for k, row in enumerate(x, 1):
        y = y + row * k - B / k
        last = k * 2
    return y, last


def in_parallel(x):
    z, out = x * 2, []
    for a, b in zip(x, z):
        out.append((a * b @ W).softmax(-1))
    return torch.stack(out, dim=-1)


def comprehension(x):
    return torch.stack([x[k] @ W for k in range(x.shape[0])])


def nested(x):
    outs = []
    for k in range(x.shape[0]):
        h = x[k]
        for row in x:
            h = (h * row @ W).tanh() + B
        outs.append(h)
    return torch.stack(outs).sum(0)


def two_in_a_row(x):
    outs, h = [x[0] @ W], x[0]
    for row in x:
        h = (h + row) / 2
        outs.append(h)
    g = h
    for y in outs:
        g = g * y.cos()
    return g


def second_of(x):
    h, g = x[0], []
    for row in x:
        h = (h @ U + row).tanh()
        g.append(h * 2)
    out = x[0] * 0
    for y in g:
        out = out + y * B
    return out


def shifted(x):
    y = x[0]
    for k in range(1, x.shape[0]):
        y = (y + x[k] - x[k - 1] * U.sum()).sin()
    return y


def set_within(x):
    h = x[0]
    for row in x:
        before = h
        h = (h + row @ W).tanh()
        change = (h - before).abs().max()
    return h, change, before


def with_a_branch(x):
    h = x[0]
    for row in x:
        if row.sum() > 0:
            h = h + row @ W
        else:
            h = h * 0.5 - row @ W
    return h


def adds_sometimes(x):
    h = x[0] * 1
    for row in x:
        if row.sum() > 0:
            h = h + row @ W
            if row.sum() > 3:
                h = h * row.mean()
    return h


def counts_some(x):
    h, count = x[0] * 1, 0
    for row in x:
        if h.sum() > 0:
            h = h - (row @ W).pow(2)
            count += 1
        else:
            h = h + row.sin()
    return h, count


def with_computed_numbers(x):
    h = x[0]
    for k in range(x.shape[0]):
        h = (h @ W + (k + 1) * 2 - k).tanh() / (k + 1)
    return h, k


TRAINED = [recurrent, batch_first, backwards, over_a_tensor, with_numbers, in_parallel, comprehension, nested,
           second_of, shifted, set_within, with_a_branch, adds_sometimes, counts_some, with_computed_numbers]


def run_all(run, n, grad, make=lambda n: torch.linspace(-1, 2, n * 12, dtype=torch.double).view(n, 3, 4).sin()):
    x = make(n).requires_grad_(grad)
    with torch.set_grad_enabled(grad):
        out = run(x)
    leaves = [y for y in torch.utils._pytree.tree_leaves(out) if isinstance(y, torch.Tensor) and y.requires_grad]
    if not leaves:
        return out, ()
    return out, torch.autograd.grad(sum(y.pow(2).sum() for y in leaves), [x, *WEIGHTS], allow_unused=True)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("program", TRAINED)
def test_a_loop_over_slices_is_one_graph(program, grad, captures):
    compiled = framesmith.compile(program, fullgraph=True, dynamic=True)
    for n in (5, 3, 9):
        (got, mine), (want, theirs) = [run_all(run, n, grad) for run in (compiled, program)]
        torch.testing.assert_close(got, want, check_stride=True)
        torch.testing.assert_close(mine, theirs)
        assert [g is None for g in mine] == [g is None for g in theirs]
    assert len(captures) == 1


def diffusion(x, steps):
    for i in range(steps):
        t = 1 - i / steps
        x = x - (x @ W).tanh() * t * 0.1
    return x


def power(x, n):
    v = x[0, 0] * 0 + 1
    for _ in range(n):
        v = W @ v
        v = v / v.norm()
    return v, v @ (W @ v)


def odd(x, n):
    for i in range(3, n, 2):
        x = x + i
    return x


@pytest.mark.parametrize("program", [diffusion, power, odd])
def test_a_number_of_rounds_is_an_argument(program, captures):
    compiled = framesmith.compile(program, fullgraph=True)
    x = torch.randn(2, 3, 4, dtype=torch.double)
    for n in (6, 8, 5, 11, 30):
        with torch.no_grad():
            torch.testing.assert_close(compiled(x, n), program(x, n))
    assert len(captures) <= 2


SEEN = []


def speaks(x):
    for row in x:
        SEEN.append(1)
        x = x + row
    return x


def gives_a_list(x):
    outs = []
    for row in x:
        outs.append(row * 2)
    return outs


def leaves_early(x):
    for k in range(x.shape[0]):
        x = x + x[k]
        if x.sum() > 5:
            break
    return x


def reads_its_list(x):
    outs = [x[0]]
    for row in x:
        outs.append(outs[-1] + row)
    return torch.stack(outs)


def grows(x):
    y = x[:1]
    for row in x:
        y = torch.cat([y, row[None]])
    return y


def stands(x):
    a, b = x[0], x[1]
    for _ in x:
        a, b = b, a
    return a.add_(1), x


def takes_by_hand(x):
    it = iter(x)
    y = next(it)
    for row in it:
        y = y * row
    return y, list(it)


def shares(x):
    h = x[0]
    for row in x:
        h = h + row
        g = h[0]
    g += 1
    return h


@pytest.mark.filterwarnings("ignore:framesmith")
@pytest.mark.parametrize("program", [speaks, gives_a_list, leaves_early, reads_its_list, grows, stands, takes_by_hand,
                                     shares])
def test_a_loop_that_does_more_is_unrolled(program):
    compiled = framesmith.compile(program, dynamic=True)
    for n in (3, 5):
        SEEN.clear()
        x = torch.linspace(-1, 2, n * 12).view(n, 3, 4)
        mine, theirs = x.clone(), x.clone()
        got, there = compiled(mine), len(SEEN)
        SEEN.clear()
        alike(got, program(theirs))
        assert there == len(SEEN) and torch.equal(mine, theirs)


def test_many_loops_that_do_more_are_unrolled():
    lines = "".join([f"    for row in x:\n        outs.append([row * {k}])\n" for k in range(20)])
    space = {}
    exec(f"def program(x):\n    outs = []\n{lines}    return outs", space)
    compiled = framesmith.compile(space["program"], fullgraph=True, dynamic=True)
    for n in (3, 5):
        alike(compiled(torch.ones(n, 4)), space["program"](torch.ones(n, 4)))


def later_written(x):
    x, outs = x * 1, []
    for row in x:
        outs.append(row)
    x.add_(1)
    return torch.stack(outs)


def shared_by_all(x):
    y, outs = x[0] * 1, []
    for _ in x:
        outs.append(y)
    y.add_(1)
    return torch.stack(outs)


def last_is_written(x):
    outs, h = [], x[0] * 1
    for row in x:
        h = h + row
        outs.append(h)
    h.add_(1)
    return torch.cat(outs)


def last_is_written_by_index(x):
    outs, h = [], x[0] * 1
    for row in x:
        h = h + row
        outs.append(h)
    outs[-1].add_(1)
    return torch.stack(outs), h


def writes_its_rows(x):
    x = x * 1
    for row in x:
        x[0] = row * 2
    return x


@pytest.mark.filterwarnings("ignore:framesmith")
@pytest.mark.parametrize("program", [later_written, shared_by_all, last_is_written, last_is_written_by_index,
                                     writes_its_rows])
def test_elements_that_are_written_after_the_round(program):
    compiled = framesmith.compile(program, dynamic=True)
    for n in (4, 5):
        x = torch.linspace(-1, 2, n * 12).view(n, 3, 4)
        alike(compiled(x), program(x))


class Layers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(5)])

    def forward(self, x, n):
        for layer in self.layers[:n]:
            x = layer(x).relu()
        return x


def test_layers_are_unrolled():
    model = Layers().eval()
    compiled = framesmith.compile(model)
    x = torch.randn(3, 4)
    for n in (2, 3, 5):
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("error")
            torch.testing.assert_close(compiled(x, n), model(x, n))


def sometimes(x):
    h = x[0] * 1
    for row in x:
        if row.sum() > 0:
            h = h + row @ W
        else:
            h = h * 0.5
    return h


def begins_again(x):
    h = x[0] @ U
    for row in x[1:]:
        if row.sum() > 0:
            h = h + row
        else:
            h = row * B
    return h


@pytest.mark.filterwarnings("ignore:framesmith")
@pytest.mark.parametrize("program", [sometimes, begins_again])
def test_gradients_that_some_rounds_do_not_give_are_none_as_in_eager(program):
    compiled = framesmith.compile(program, dynamic=True)
    for sign in (1, -1, 1):
        given = sign * (torch.rand(5, 3, 4).double() + 0.1)
        (_, mine), (_, theirs) = [run_all(run, 5, True, lambda n, given=given: given.clone())
                                  for run in (compiled, program)]
        torch.testing.assert_close(mine, theirs)
        assert [g is None for g in mine] == [g is None for g in theirs]


class Experts(torch.nn.Module):
    """A mixture of experts as libraries write it: a loop over the experts that were hit."""

    def __init__(self, sentinel):
        super().__init__()
        self.sentinel = sentinel
        self.up = torch.nn.Parameter(torch.randn(4, 12, 8, dtype=torch.double) / 3)
        self.down = torch.nn.Parameter(torch.randn(4, 8, 6, dtype=torch.double) / 3)

    def forward(self, x, chosen, weights):
        final = torch.zeros_like(x)
        with torch.no_grad():
            mask = torch.nn.functional.one_hot(chosen, num_classes=5).permute(2, 1, 0)
            hit = torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero()
        for expert in hit:
            expert = expert[0]
            if self.sentinel and expert == 4:
                continue
            place, token = torch.where(mask[expert])
            gate, up = torch.nn.functional.linear(x[token], self.up[expert]).chunk(2, dim=-1)
            y = torch.nn.functional.linear(torch.nn.functional.silu(gate) * up, self.down[expert])
            final.index_add_(0, token, y * weights[token, place, None])
        return final


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("sentinel", [False, True])
def test_a_mixture_of_experts_is_one_graph(sentinel, grad, captures):
    model = Experts(sentinel)
    compiled = framesmith.compile(model, fullgraph=True, dynamic=True)
    for n, experts in ((96, [0, 1, 2, 3]), (80, [0, 3]), (200, [2, 1])):
        x, weights = torch.randn(n, 8, dtype=torch.double), torch.rand(n, 2, dtype=torch.double)
        chosen = torch.stack([torch.tensor(experts)[torch.randperm(len(experts))[:2]] for _ in range(n)])
        found = []
        for run in (compiled, model):
            a, b = x.clone().requires_grad_(grad), weights.clone().requires_grad_(grad)
            with torch.set_grad_enabled(grad):
                y = run(a, chosen, b)
            found.append((y, torch.autograd.grad(y.pow(2).sum(), [a, b, *model.parameters()]) if grad else ()))
        torch.testing.assert_close(*found)
    assert len(captures) == 1


def written_within(x):
    y, z = torch.zeros(3, 4, dtype=x.dtype), x * 2
    part = y[0]
    for row in x:
        y.add_(row)
        z[:, 0] += row[0].sin()
        if row.mean() > 0.3:
            y[1:] *= 0.5
    return y, z, part


@pytest.mark.parametrize("grad", [False, True])
def test_tensors_that_a_loop_writes(grad, captures):
    compiled = framesmith.compile(written_within, fullgraph=not grad, dynamic=True)
    for n in (5, 3, 9):
        (got, mine), (want, theirs) = [run_all(run, n, grad) for run in (compiled, written_within)]
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(mine, theirs)
    assert grad or len(captures) == 1


def indexed_by_data(x):
    k = x.abs().sum().long() % 3
    return x[:, k, 1:].cos(), x.transpose(1, 2)[..., k].sum(0)


def test_a_view_at_an_index_of_data(captures):
    compiled = framesmith.compile(indexed_by_data, fullgraph=True)
    for x in (torch.randn(2, 3, 4), torch.ones(2, 3, 4), torch.rand(2, 3, 4) * 5):
        alike(compiled(x), indexed_by_data(x))
    assert len(captures) == 1


def test_rounds_draw_as_in_eager():
    def program(x):
        for row in x:
            x = torch.nn.functional.dropout(x + row, 0.5)
        return x

    compiled = framesmith.compile(program, fullgraph=True, dynamic=True)
    for n in (3, 6):
        found = []
        for run in (compiled, program):
            torch.manual_seed(0)
            found.append(run(torch.ones(n, 3, 4)))
        torch.testing.assert_close(*found)


def test_why_a_loop_is_unrolled_is_told():
    happened = []
    with on_event(happened.append):
        compiled = framesmith.compile(leaves_early, dynamic=True)
        compiled(torch.zeros(4, 3, 4))
    first = leaves_early.__code__.co_firstlineno
    found, = [e for e in happened if isinstance(e, UnrolledLoop)]
    assert (found.line, found.cause[1]) == (first + 1, first + 3)
    assert "more than one place" in found.reason and "torch.where" in found.remedy
    assert "unrolled: the loop at" in str(found)
    assert found.reason in [row["reason"] for row in framesmith.report().facts["loops"]]


def test_the_elements_of_a_list_that_leave_are_what_was_appended():
    def zipped(g, n):
        return [pair[0] for pair in zip([g for _ in range(n)])]

    def left_open(g, n):
        return zip([g for _ in range(n)])

    def the_last(g, n):
        for v in [g for _ in range(n)]:
            last = v
        return [last]

    for program in (zipped, left_open, the_last):
        compiled = framesmith.compile(program, options={"compiler_flags": "-O0"})
        for n in (3, 4, 5, 2, 6):
            g = torch.ones(3)
            assert all(x is g for x in tree_leaves(list(compiled(g, n))))
