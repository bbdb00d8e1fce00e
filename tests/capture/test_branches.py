"""Branches on a tensor's data: both ways in one graph, in inference and in training; a break where they are no pure
tensor code."""

import gc
import weakref

import pytest
import torch
from torch.utils._pytree import tree_leaves

import framesmith
from framesmith import exc


@pytest.fixture(autouse=True)
def no_variants_of_other_tests():
    """Functions of one code object share variants."""
    framesmith.reset()


def alike(got, want):
    if isinstance(want, torch.Tensor):
        torch.testing.assert_close(got, want, equal_nan=True)
        assert got.stride() == want.stride() and got.requires_grad == want.requires_grad
    elif isinstance(want, tuple | list):
        assert type(got) is type(want) and len(got) == len(want)
        for g, w in zip(got, want, strict=True):
            alike(g, w)
    elif isinstance(want, dict):
        assert list(got) == list(want)
        alike([*got.values()], [*want.values()])
    else:
        assert type(got) is type(want) and got == want


def both(x):
    if x.mean() > 0:
        return x * 2
    return x - 1


def joined(x):
    y = x + 1
    if x.sum() > 0:
        y = (y * 2).relu()
    else:
        z = y.sin()
        y = z + y
    return y * 3, x


def of_a_number(x):
    if x.sum().item() > 0.5:
        x = x * 2
    return x


def nested(x):
    if x.max() > 1:
        if x.min() < 0:
            return x.exp()
        x = x.cos()
    elif not x.any():
        return x + 3
    return x.neg()


def left_early(x):
    for k in range(3):
        if x.sum() > 4:
            break
        x = x + k
    return x * 2


def several(x):
    a, b = x.abs().sum(), x * 1
    if (a > 3).logical_and(x[0, 0] > 0):
        a, b = b.sum(1), {"a": [a * 2, x], "b": 3}
    else:
        a, b = b.mean(1), {"a": [a / 2, x], "b": 3}
    return a, b


def one_after_another(x):
    for _ in range(4):
        x = x.sin() if x.sum() > 0 else x.cos() + 0.1
    return x


def in_a_callee(x):
    return both(x) + joined(x)[0]


def written_within(x):
    y = torch.zeros_like(x)
    if x.sum() > 0:
        z = x.clone()
        z[0].add_(3)
        y = z.mul_(2)
    return y + 1


def of_both_numbers(x):
    if not (x.sum().item() * 2 - x.min().item() > 1):
        return x * 2
    return x[:] + 1


def with_sizes_of_data(x):
    if x.sum() > 0:
        y = x[x > 0.5].sum()
    else:
        y = x.mean()
    return y * 2


def drawn(x):
    y = torch.rand(3)
    if x.sum() > 0:
        y = y * torch.rand(3)
    else:
        y = y + torch.randn(3)
    return y + torch.rand(3)


def of_numbers(x):
    k, n = 2.5, 1
    if x.sum() > 0:
        k, n = x.sum().item() * 2, x[0].round().long().sum().item() + 1
    return x * k + n, n


def of_constants(x):
    size, scale, positive = (2, 0.5, True) if x.mean() > 0 else (4, 3.0, False)
    return x * scale + size, positive, size + 1


ONE_GRAPH = [of_constants, of_numbers, both, joined, of_a_number, nested, left_early,
             several, one_after_another, in_a_callee, written_within, of_both_numbers, with_sizes_of_data, drawn]
INPUTS = [torch.rand(3, 4), -torch.rand(3, 4), torch.zeros(3, 4), torch.rand(3, 4) * 3 - 0.5, torch.randn(3, 4) * 2]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", ONE_GRAPH)
def test_both_ways_are_one_graph(program, dynamic, captures):
    compiled = framesmith.compile(program, fullgraph=True, dynamic=dynamic)
    for x in INPUTS * 2:
        torch.manual_seed(0)
        got = compiled(x.clone())
        torch.manual_seed(0)
        alike(got, program(x.clone()))
    assert len(captures) == 1
    if dynamic and program not in (several, drawn):
        for x in (torch.rand(5, 6), -torch.rand(2, 7)):
            alike(compiled(x.clone()), program(x.clone()))
        assert len(captures) == 1


def test_a_tensor_that_is_passed_on_is_that_tensor():
    compiled = framesmith.compile(of_a_number, fullgraph=True)
    x = -torch.rand(3, 4)
    assert compiled(x) is x


seen = []


def speaks(x):
    if x.sum() > 0:
        seen.append(1)
    return x * 2


def of_other_shape(x):
    return x[0] if x.sum() > 0 else x


def of_another_type(x):
    return (x * (2.0 if x.sum() > 0 else 3.0), 1 if x.sum() > 0 else None)


def writes(x):
    if x.sum() > 0:
        x.add_(1)
    return x * 2


def written_later(x):
    y = x * 1
    z = y
    if x.sum() > 0:
        z = x + 1
    z.add_(1)
    return y, z


def raises(x):
    if x.sum() > 0:
        y = x * 2
    else:
        y = x * unknown  # noqa: F821
    return y


def set_one_way(x):
    if x.sum() > 0:
        y = x * 2
    try:
        return y
    except UnboundLocalError:
        return x


def drawn_by_python(x):
    import random

    return x * random.random() if x.sum() > 0 else x


def until(x):
    while x.sum() < 20:
        x = x + 1
    return x


class Counted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls, self.last = 0, None

    def forward(self, x):
        self.calls += 1
        if x.sum() > 0:
            self.last = x
            return x * 2
        return x - self.calls


BREAKS = [speaks, of_other_shape, of_another_type, writes, set_one_way]


@pytest.mark.filterwarnings("ignore:framesmith")
@pytest.mark.filterwarnings("ignore:framesmith")
def test_numbers_that_no_tensor_holds_are_a_break():
    def chosen(x):
        return x + 1, 1 << 70 if x.mean() > 0 else 1

    compiled = framesmith.compile(chosen)
    for x in INPUTS:
        alike(compiled(x), chosen(x))


@pytest.mark.parametrize("program", [*BREAKS, written_later, until])
def test_what_is_no_pure_tensor_code_is_a_break(program):
    compiled = framesmith.compile(program)
    for x in INPUTS:
        del seen[:]
        mine, theirs = x.clone(), x.clone()
        got, there = compiled(mine), list(seen)
        del seen[:]
        alike(got, program(theirs))
        alike(mine, theirs)
        assert seen == there


@pytest.mark.parametrize("program", BREAKS)
def test_a_refusal_says_where_the_branch_is(program):
    with pytest.raises(exc.Unsupported, match=r"truth of a tensor's data at .*test_branches.py:\d+\n +.*\bif\b.*\n.*"
                                              r"both ways could be one graph, but"):
        framesmith.compile(program, fullgraph=True)(INPUTS[0].clone())


@pytest.mark.filterwarnings("ignore:framesmith")
def test_changes_of_objects_happen_one_way_only():
    mine, theirs = Counted(), Counted()
    compiled = framesmith.compile(mine)
    for x in INPUTS:
        alike(compiled(x), theirs(x))
        assert mine.calls == theirs.calls and (mine.last is None) is (theirs.last is None)


@pytest.mark.filterwarnings("ignore:framesmith")
def test_a_way_that_raises_raises():
    compiled = framesmith.compile(raises)
    alike(compiled(INPUTS[0]), raises(INPUTS[0]))
    with pytest.raises(NameError, match="unknown"):
        compiled(INPUTS[1])
    alike(compiled(INPUTS[0]), raises(INPUTS[0]))


class Two(torch.nn.Module):
    """The model of the issue: two branches with parameters of their own and one that both have."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.shared = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.dropout = torch.nn.Dropout(0.5)

    def forward(self, x):
        x = self.shared(x)
        if x.mean() > 0:
            return self.a(x).relu() * x
        return self.b(self.dropout(x)).tanh() + self.a.weight.sum()


class Joined(Two):
    def forward(self, x):
        h = self.shared(x)
        if h.mean() > 0:
            h = self.a(h).relu()
        else:
            h = self.b(self.dropout(h))
            if h.sum() > 0:
                h = h.sin()
        return self.shared(h), h.detach()


class Skipped(Two):
    def forward(self, x):
        h = self.shared(x).sigmoid()
        if x.sum() > 0:
            h = self.a(h)
        return h * 2


def trained(model, x, again=False):
    torch.manual_seed(0)
    x = x.clone().requires_grad_()
    out = model(x)
    first = out[0] if isinstance(out, tuple) else out
    params = [x, *model.parameters()]
    grads = torch.autograd.grad(first.sin().sum(), params, allow_unused=True, create_graph=again)
    if again:
        total = sum((g * g).sum() for g in grads if g is not None)
        grads += torch.autograd.grad(total, params, allow_unused=True)
    return out, grads


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("kind", [Two, Joined, Skipped])
def test_gradients_are_of_the_way_that_was_taken(kind, again, captures):
    torch.manual_seed(0)
    model = kind().double()
    compiled = framesmith.compile(model, fullgraph=True)
    for bias in (3.0, -3.0, 3.0):
        with torch.no_grad():
            model.shared.bias.fill_(bias)
        x = torch.rand(3, 4, dtype=torch.float64) * bias
        (got, mine), (want, theirs) = trained(compiled, x, again), trained(model, x, again)
        alike(got, want)
        for k, (a, b) in enumerate(zip(mine, theirs, strict=True)):
            if b is None and k >= len(mine) // 2 and again:  # of second order, zeros stand for none
                assert a is None or not a.any()
            else:
                assert (a is None) is (b is None)
                torch.testing.assert_close(a, b)
    with torch.no_grad():
        model.eval()
        alike(compiled(x), model(x))
    assert len(captures) == 2


def of_one_way(x, w):
    y = x * w
    if x.sum() > 0:
        return y
    return x.detach() * 2


def through_what_came_before(x, w):
    y = w.exp()
    return x * 2 if x.sum() > 0 else x * y


@pytest.mark.filterwarnings("ignore:framesmith")
@pytest.mark.parametrize("program", [of_one_way, through_what_came_before])
def test_where_one_way_alone_requires_grad_is_a_break(program):
    compiled = framesmith.compile(program)
    for sign in (1, -1):
        x = torch.rand(3, requires_grad=program is through_what_came_before)
        found = []
        for run in (compiled, program):
            w = torch.ones(3, requires_grad=True)
            y = run(x * sign, w)
            if y.requires_grad:
                y.sum().backward()
            found.append((y.requires_grad, y.detach(), w.grad))
        alike(found[0][:2], found[1][:2])
        assert (found[0][2] is None) is (found[1][2] is None)


W, V = torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True)
CONDS = {
    "lambdas": lambda x: torch.cond(x.sum() > 0, lambda a, b: a * b, lambda a, b: a - b, (x, x + 1)),
    "closures": lambda x: torch.cond(x.sum() > 0, lambda a: (a * W).exp(), lambda a: (a - V).sin() * V, (x * 2,)) + W,
    "trees": lambda x: torch.cond(x.sum() > 0, lambda a: {"a": a * W, "b": (a.sum(), a + 1)},
                                  lambda a: {"a": a - V, "b": (a.mean(), a * 2)}, (x,)),
    "nested": lambda x: torch.cond(x.sum() > 0, lambda a: torch.cond(a.max() > 0.9, lambda b: b * W, lambda b: b - W,
                                                                     (a,)), lambda a: a * 3 + W, (x,)),
    "no operands": lambda x: torch.cond(x.sum() > 0, lambda: W * 2, lambda: V.clone()) * x,
    "keywords": lambda x: torch.cond(pred=x.sum() > 0, true_fn=lambda a: a.cos(), false_fn=lambda a: a.sin(),
                                     operands=(x,)),
    "a size": lambda x: torch.cond(x.shape[0] > 3, lambda a: a.cos(), lambda a: a.sin(), (x,)),
}


@pytest.mark.parametrize("backend", ["native", "eager"])
@pytest.mark.parametrize("name", CONDS)
def test_cond(name, backend, captures):
    program = CONDS[name]
    compiled = framesmith.compile(program, fullgraph=True, backend=backend)
    for scale in (1.0, -1.0, 0.5):
        x = torch.rand(4) * scale
        found = []
        for run in (compiled, program):
            W.grad = V.grad = None
            y = run(x)
            leaves = [t for t in torch.utils._pytree.tree_leaves(y) if t.requires_grad]
            if leaves:
                sum(t.pow(2).sum() for t in leaves).backward()
            found.append((y, W.grad, V.grad))
        alike(found[0][0], found[1][0])
        for a, b in zip(found[0][1:], found[1][1:], strict=True):
            torch.testing.assert_close(torch.zeros(4) if a is None else a, torch.zeros(4) if b is None else b)
    assert len(captures) == 1 or backend == "eager"


def test_sides_of_cond_that_differ_are_refused():
    with pytest.raises(exc.Unsupported, match="different layouts"):
        framesmith.compile(lambda x: torch.cond(x.sum() > 0, lambda a: a[0], lambda a: a, (x,)),
                           fullgraph=True)(torch.rand(4))


@pytest.mark.parametrize("trains", [False, True])
def test_a_branch_keeps_no_model_alive(trains):
    model = Two()
    compiled = framesmith.compile(model, fullgraph=True)
    with torch.set_grad_enabled(trains):
        y = compiled(torch.rand(3, 4))
        if trains:
            y.sum().backward()
    weight = weakref.ref(model.a.weight)
    del model, compiled, y
    gc.collect()
    assert weight() is None


def test_a_view_of_what_a_path_passes_on_is_a_tensor_of_its_own():
    def program(g, view):
        p = torch.arange(3.0) if (g > 1).any() else g
        return view(p)

    for view in (lambda p: p, lambda p: p.detach(), lambda p: p.view(3), lambda p: (p, p[:], p.view_as(p))):
        compiled = framesmith.compile(program, options={"compiler_flags": "-O0"})
        for x in (torch.ones(3), torch.full((3,), 2.0), torch.ones(3)):
            found = [[r is x for r in tree_leaves(run(x, view))] for run in (program, compiled)]
            assert found[0] == found[1]
            torch.testing.assert_close(compiled(x, view), program(x, view))
