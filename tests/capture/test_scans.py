"""PyTorch's scans and maps, followed as Python over slices; associative scans of pointwise functions by an algorithm of
our own."""

import pytest
import torch
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as map_slices
from torch._higher_order_ops.scan import scan

import framesmith

A, B = torch.rand(3, 7, 5), torch.rand(3, 7, 5)
W = torch.rand(5, requires_grad=True)
SQUARE = torch.rand(4, 3, 3)


def linear(left, right):
    return left[0] * right[0], right[0] * left[1] + right[1]


def cell(carry, x):
    h = (carry * W + x).tanh()
    return h, h.clone()


def keyed(left, right):
    return {"u": left["u"] * right["u"], "v": left["v"] + right["v"] * left["u"]}


SCANS = {
    "linear": lambda x: associative_scan(linear, (x, B), 1, combine_mode="generic"),
    "reverse": lambda x: associative_scan(torch.add, x, 2, reverse=True, combine_mode="generic"),
    "one element": lambda x: associative_scan(torch.maximum, x[:, :1], dim=1, combine_mode="generic"),
    "trees": lambda x: associative_scan(keyed, {"u": x, "v": x + 1}, 1, reverse=True, combine_mode="generic"),
    "products": lambda x: associative_scan(torch.matmul, SQUARE * x[0, 0, 0], 0, combine_mode="generic"),
    "scan": lambda x: scan(cell, torch.zeros(3, 5), x, dim=1),
    "scan backwards": lambda x: scan(cell, torch.zeros(3, 5), x, dim=1, reverse=True),
    "scan of trees": lambda x: scan(lambda c, v: ((c[0] + v["a"].sum(), c[1] * 2), {"y": c[0] * v["b"]}),
                                    (x.sum(), x[0].clone()), {"a": x, "b": x * 2}),
    "map": lambda x: map_slices(lambda v, w: (v * w).softmax(-1), x, W.detach().clone()),
    "map of trees": lambda x: map_slices(lambda v: {"a": v[0] * W, "b": v[1].sum()}, [x, x * 2]),
}


@pytest.mark.parametrize("name", SCANS)
def test_scans(name, captures):
    program = SCANS[name]
    compiled = framesmith.compile(program, fullgraph=True)
    for _ in range(2):
        found = []
        for run in (compiled, program):
            x = A.clone().requires_grad_()
            y = run(x)
            leaves = torch.utils._pytree.tree_leaves(y)
            found.append((leaves, torch.autograd.grad(sum(t.pow(2).sum() for t in leaves), [x, W], allow_unused=True)))
        (got, mine), (want, theirs) = found
        torch.testing.assert_close(got, want, check_stride=name.startswith("scan"))
        if torch.__version__ < "2.13" and name in ("scan", "scan backwards"):
            continue  # there PyTorch's gradients of a scan are not those of the loop
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(torch.zeros(()) if a is None else a, torch.zeros(()) if b is None else b)
    assert len(captures) == 1


@pytest.mark.parametrize("reverse", [False, True])
def test_an_associative_scan_over_any_number_of_slices(reverse, captures):
    def program(x):
        y = associative_scan(linear, (x, x + 1), 1, reverse=reverse, combine_mode="generic")
        return y[1] * 2, y[0].select(1, -1)

    compiled = framesmith.compile(program, fullgraph=True, dynamic=True)
    for n in (4, 3, 33, 130):
        found = []
        for run in (compiled, program):
            x = A[:, :1].repeat(1, n, 1).requires_grad_()
            y = run(x)
            found.append((y, torch.autograd.grad(sum(t.sum() for t in y), x)))
        torch.testing.assert_close(*found)
    assert len(captures) == 1


def by_slices(step, state, xs, reverse=False):
    """A scan as a loop of Python."""
    out = []
    for k in reversed(range(len(xs))) if reverse else range(len(xs)):
        state, y = step(state, xs[k])
        out.append(y)
    return state, torch.stack(out[::-1] if reverse else out)


def wide(carry, x):
    h = (carry * V + x).tanh()
    return h, h.clone()


def gated(carry, x):
    h, c = carry
    c = c * (x @ G).sigmoid() + x
    h = (h + c.tanh()).t().contiguous().t()
    return (h, c), (h * x).sum(0)


def from_nothing(carry, x):
    return carry + (x * V).sum(), x * 2


def in_half(carry, x):
    carry = carry * 0.5 + x.to(torch.bfloat16)
    return carry, carry[:2].double().exp()


def by_integers(carry, x):
    return (carry[0] + 1, carry[1] * V + carry[0]), carry[1] * x


def nested_scan(carry, x):
    inner, _ = scan(wide, carry, x.expand(130, 5) * V)
    return inner * x, inner.clone()


G = torch.rand(5, 5, dtype=torch.double, requires_grad=True)
V = torch.rand(5, dtype=torch.double, requires_grad=True)
EYE = torch.eye(5, dtype=torch.double)
ZEROS, ONES = torch.zeros(5, dtype=torch.double), torch.ones(3, 5, dtype=torch.double)
MANY = {
    "cell": (lambda x: scan(wide, ZEROS, x), lambda x: by_slices(wide, ZEROS, x)),
    "backwards": (lambda x: scan(wide, x[0], x, reverse=True), lambda x: by_slices(wide, x[0], x, True)),
    "two carried": (lambda x: scan(gated, (ONES * 0, ONES), x.unsqueeze(1).expand(-1, 3, 5) * 1),
                    lambda x: by_slices(gated, (ONES * 0, ONES),
                                        x.unsqueeze(1).expand(-1, 3, 5) * 1)),
    "a state without grad first": (lambda x: scan(from_nothing, ZEROS[0], x),
                                   lambda x: by_slices(from_nothing, ZEROS[0], x)),
    "bfloat16": (lambda x: scan(in_half, torch.zeros(5, dtype=torch.bfloat16), x),
                 lambda x: by_slices(in_half, torch.zeros(5, dtype=torch.bfloat16), x)),
    "integers": (lambda x: scan(by_integers, (torch.zeros((), dtype=torch.long), ONES[0]), x),
                 lambda x: by_slices(by_integers, (torch.zeros((), dtype=torch.long), ONES[0]), x)),
    "nested": (lambda x: scan(nested_scan, ONES[0], x),
               lambda x: by_slices(lambda c, y: ((i := by_slices(wide, c, y.expand(130, 5) * V)[0]) * y, i.clone()),
                                   ONES[0], x)),
    "map": (lambda x: map_slices(lambda v: (v * V).softmax(-1), x), lambda x: (x * V).softmax(-1)),
    "products": (lambda x: associative_scan(torch.matmul, x.view(-1, 1, 5) * EYE, 0, combine_mode="generic"),
                 lambda x: x.cumprod(0).view(-1, 1, 5) * EYE),
}


@pytest.mark.parametrize("name", MANY)
def test_many_slices_are_one_node(name, captures):
    program, loop = MANY[name]
    compiled = framesmith.compile(program, fullgraph=True, options={"numerics": "eager"})
    for _ in range(2):
        found = []
        for run in (compiled, loop):
            x = (torch.arange(150 * 5, dtype=torch.double).remainder(7) / 7 + 0.3).view(150, 5).requires_grad_()
            leaves = torch.utils._pytree.tree_leaves(run(x))
            loss = sum(t.double().pow(2).sum() for t in leaves)
            grads = torch.autograd.grad(loss, [x, V, G], allow_unused=True)
            found.append((leaves, grads))
        (got, mine), (want, theirs) = found
        torch.testing.assert_close(got, want)
        assert [y.stride() for y in got] == [y.stride() for y in want]
        assert [y.requires_grad for y in got] == [y.requires_grad for y in want]
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(torch.zeros(()) if a is None else a, torch.zeros(()) if b is None else b)
    assert len(captures) == 1


def test_gradients_of_gradients_of_many_slices():
    w, found = torch.rand(5, dtype=torch.double, requires_grad=True), []
    step = lambda c, x: ((h := (c * w + x).tanh()), h.clone())  # noqa: E731
    program = lambda x: scan(step, x[0] * 0, x)  # noqa: E731
    for run in (framesmith.compile(program, fullgraph=True), lambda x: by_slices(step, x[0] * 0, x)):
        x = torch.linspace(0, 1, 750, dtype=torch.double).view(150, 5).requires_grad_()
        first, last = run(x)[::-1]
        grads = torch.autograd.grad(first.pow(2).sum() + last.sum(), [x, w], create_graph=True)
        found.append((grads, torch.autograd.grad(grads[0].pow(2).sum() + grads[1].sum(), [x, w])))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("train", [False, True])
def test_a_number_of_slices_that_varies(train, captures):
    program = lambda x: scan(cell, torch.zeros(5), x)  # noqa: E731
    compiled = framesmith.compile(program, fullgraph=True, dynamic=True)
    for n in (140, 300, 7):
        found = []
        for run in (compiled, lambda x: by_slices(cell, torch.zeros(5), x)):
            x = torch.linspace(0, 1, n * 5).view(n, 5).requires_grad_(train)
            with torch.set_grad_enabled(train):
                y = run(x)
                found.append((y, torch.autograd.grad(y[0].sum() + y[1].sum(), [x, W]) if train else ()))
        torch.testing.assert_close(*found)
    assert len(captures) == 1


def test_a_scan_draws_for_each_slice():
    program = lambda x: map_slices(lambda v: torch.nn.functional.dropout(v * W, 0.5), x)  # noqa: E731
    compiled = framesmith.compile(program, fullgraph=True)
    x = torch.rand(150, 5) + 1
    y = compiled(x)
    assert 200 < int((y == 0).sum()) < 550
    (grad,) = torch.autograd.grad(y.sum(), W)
    torch.testing.assert_close(grad, (x * 2 * (y != 0)).sum(0))
