"""PyTorch's scans and maps, followed as Python over slices; associative scans of pointwise functions by an algorithm of
our own."""

import pytest
import torch
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as map_slices
from torch._higher_order_ops.scan import scan

import framesmith
from framesmith import exc

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


def test_many_slices_are_refused():
    with pytest.raises(exc.Unsupported, match="more than 128 slices"):
        framesmith.compile(lambda x: scan(cell, torch.zeros(5), x), fullgraph=True)(torch.rand(200, 5))
