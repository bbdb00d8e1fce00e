"""Marks of sizes: one kernel that is right for 0, 1 and any other, and sizes of which nothing may be assumed."""

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F

import framesmith

from .test_dynamic_sizes import ROWS, WEIGHT, alike, no_variants_of_other_tests  # noqa: F401

PROGRAMS = {
    "pointwise": lambda x: torch.relu(x * 2 + 1) - x.mean(0),
    "products": lambda x: (F.linear(x, WEIGHT).softmax(-1), x.t() @ x, torch.bmm(x[:, None], x[:, :, None])),
    "moments": lambda x: (x.var(0), x.std(1), x.mean(), x.sum(), x.prod(0), F.layer_norm(x, (8,)), x.norm()),
    "no elements": lambda x: (x.softmax(0), x.logsumexp(0), (x > 0).any(), x.cumsum(0), x.sort(0)[0]),
    "sizes that leave": lambda x: (x + x.shape[0], x.shape[0] * 3 - 1, x.numel(), x.shape),
    "joined": lambda x: (torch.cat([x, ROWS, x]), torch.stack([x, x]), x.repeat(2, 1), x[None].expand(3, -1, -1) + 1),
    "made": lambda x: (torch.arange(x.shape[0])[:, None] + x, torch.eye(x.shape[0]), F.pad(x, (0, 0, 1, 1))),
    "views": lambda x: (x.view(-1, 4).sum(0), x.reshape(-1) * 2, x.flip(0), x.roll(1, 0), x.chunk(2, 1), x.unbind(1)),
    "data": lambda x: ((x > 0).nonzero(), x[x[:, 0] > 0], torch.where(x > 0, x, x[:, :1])),
    "parts": lambda x: (x[:5] + 1, x[1:3] + 1, x[:, 2:5]),
    "attention": lambda x: F.scaled_dot_product_attention(*[x.view(-1, 2, 1, 4)] * 3),
    "images": lambda x: F.max_pool2d(F.pad(x.view(-1, 1, 2, 4), (1, 1, 1, 1), mode="reflect"), 2),
}


def marked(mark, n, **bounds):
    x = torch.randn(n, 8)
    mark(x, 0, **bounds)
    return x


@pytest.mark.parametrize("sizes", [(5, 0, 1, 7), (0, 1, 5), (1, 0, 5)], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_kernel_for_none_one_and_many(name, sizes, captures):
    compiled = framesmith.compile(PROGRAMS[name])
    for n in sizes:
        x = marked(framesmith.mark_dynamic, n, min=0)
        got, want = compiled(x), PROGRAMS[name](x)
        for g, w in zip(*((v if isinstance(v, tuple) else (v,)) for v in (got, want)), strict=True):
            if isinstance(w, torch.Tensor):
                torch.testing.assert_close(g, w, rtol=1e-4, atol=1e-5, equal_nan=True)
                assert g.stride() == w.stride()
            elif isinstance(w, tuple) and isinstance(w[0], torch.Tensor):
                torch.testing.assert_close(g, w)
            else:
                assert g == w
    assert len(captures) == 1


@pytest.mark.parametrize("mark", [framesmith.mark_unbacked, torch._dynamo.decorators.mark_unbacked])
@pytest.mark.parametrize("name", ["pointwise", "products", "joined", "parts"])
def test_a_size_of_which_nothing_is_assumed(name, mark, captures):
    compiled = framesmith.compile(PROGRAMS[name])
    for n in (1, 5, 0, 7):
        alike(compiled(x := marked(mark, n)), PROGRAMS[name](x))
    assert len(captures) == 1


TRAINED = {
    "pointwise": lambda x: x.tanh() * x.sum(0),
    "rows": lambda x: F.gelu(F.linear(x, WEIGHT)),
    "nothing of the size is kept": lambda x: (x.repeat(2, 1), x.view(-1, 4).sum(0), torch.cat([x, ROWS]), x[1:]),
    "batches": lambda x: x.view(-1, 4, 2) @ x.view(-1, 2, 4),
}


def gradients_agree(compiled, program, x):
    grads = []
    for f in (compiled, program):
        out = f(x)
        grads += torch.autograd.grad(sum(o.sum() for o in out) if isinstance(out, tuple) else out.sum(), x)
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", TRAINED)
def test_training(name, captures):
    program = TRAINED[name]
    compiled = framesmith.compile(program)
    for n in (5, 1, 7, 12):
        x = marked(framesmith.mark_dynamic, n, min=1).requires_grad_()
        gradients_agree(compiled, program, x)
    assert len(captures) == 1


@pytest.mark.parametrize("name", ["nothing of the size is kept", "pointwise"])
def test_training_over_sizes_that_were_seen_to_vary(name, captures):
    program = TRAINED[name]
    compiled = framesmith.compile(program)
    for n in (5, 6, 7, 12):
        x = torch.randn(n, 8, requires_grad=True)
        gradients_agree(compiled, program, x)
    assert len(captures) == 2


def test_what_eager_refuses_of_no_elements_is_refused():
    compiled = framesmith.compile(lambda x: (x.amax(0), x.argmax(0)))
    for n in (5, 0, 1, 0):
        x = marked(framesmith.mark_dynamic, n, min=0)
        if n:
            assert torch.equal(compiled(x)[0], x.amax(0))
        else:
            with pytest.raises(IndexError, match="non-zero size"):
                compiled(x)


def test_a_program_that_does_otherwise_for_one_has_a_variant_for_it(captures):
    def program(x):
        return x.squeeze(0) if x.shape[0] == 1 else x.sum(0)

    compiled = framesmith.compile(program)
    for n in (1, 5, 0, 1, 3):
        alike(compiled(x := marked(framesmith.mark_dynamic, n, min=0)), program(x))
    assert len(captures) <= 3


def test_a_row_is_spread_over_others():
    def program(x, y):
        return x + y

    compiled = framesmith.compile(program)
    for m, n in ((1, 5), (5, 5), (1, 1), (0, 1), (0, 0), (4, 1)):
        x, y = (marked(framesmith.mark_dynamic, size, min=0) for size in (m, n))
        alike(compiled(x, y), program(x, y))


def rows_of(x):
    rows = []
    for i in range(x.shape[0]):
        rows.append(x[i])
    return rows


ASKED = {
    "a branch": (lambda x: x * 2 if x.shape[0] > 3 else x, "asks whether it >= 4", "x.shape[0] > 3"),
    "a loop": (rows_of, "asks whether it >= 1", "range(x.shape[0])"),
    "a loop of a generator": (lambda x: [*(x[i] for i in range(x.shape[0]))], "asks whether it == 5", "x.shape[0]"),
    "another size": (lambda x: x + ROWS[:5], "assumes that it is 5", "x + ROWS[:5]"),
}


@pytest.mark.parametrize("name", ASKED)
def test_who_asks_for_such_a_size_is_named(name):
    program, question, line = ASKED[name]
    with pytest.raises(framesmith.exc.ContradictedMark) as error:
        framesmith.compile(program)(marked(framesmith.mark_unbacked, 5))
    first, source, *_ = str(error.value).splitlines()
    assert question in first and "size 0 of L['x']" in first and __file__ in first and line in source


def test_what_operators_require_is_looked_at_before(captures):
    def program(x, y):
        return x * y

    compiled = framesmith.compile(program)
    for n in (5, 1, 0):
        alike(compiled(*(xy := [marked(framesmith.mark_unbacked, n) for _ in range(2)])), program(*xy))
    assert len(captures) == 1
    with pytest.raises(RuntimeError, match="must match"):
        compiled(marked(framesmith.mark_unbacked, 3), marked(framesmith.mark_unbacked, 4))


def test_the_range_of_such_a_size_is_guarded():
    compiled = framesmith.compile(lambda x: x * 2)
    compiled(marked(framesmith.mark_unbacked, 3, min=2, max=4))
    with pytest.raises(framesmith.exc.ContradictedMark, match="range from 2 to 4"):
        compiled(marked(framesmith.mark_unbacked, 5, min=2, max=4))


VARIES = {"batch": [(0, 0), (1, 0), (2, 0), (3, 0)], "queries": [(0, 2), (3, 2)], "keys": [(1, 2), (2, 2), (3, 3)]}


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("name", VARIES)
def test_attention_over_nothing(name, train):
    def program(q, k, v, m):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=m)

    compiled = framesmith.compile(program, fullgraph=True)
    for n in (5, 0, 1, 7):
        b, s, t = [n if name == one else other for one, other in (("batch", 2), ("queries", 6), ("keys", 4))]
        given, found = [torch.rand(b, 2, s, 8), *torch.rand(2, b, 2, t, 8), torch.rand(b, 1, s, t)], []
        for run in (compiled, program):
            leaves = [*[x.clone().requires_grad_(train) for x in given[:3]], given[3].clone()]
            for place, dim in VARIES[name]:
                framesmith.mark_dynamic(leaves[place], dim, min=0)
            y = run(*leaves)
            found.append((y, torch.autograd.grad(y.sum(), leaves[:3]) if train else ()))
        torch.testing.assert_close(*found, equal_nan=True)
