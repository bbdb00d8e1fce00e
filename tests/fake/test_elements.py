"""Elements of tensors of positions, as expressions, against eager's at several sizes."""

import itertools

import pytest
import torch
import torch.nn.functional as F

import framesmith
from framesmith.fake.elements import Elements, Unknown, parts, shape_of
from framesmith.fake.recorder import Recorder
from framesmith.symbolic.env import ShapeEnv
from framesmith.symbolic.expr import Symbol
from framesmith.symbolic.node import symint

ATTENTION = torch.ops.aten.scaled_dot_product_attention.default


def packed(n, m):
    """Numbers of packed sequences, as transformers counts them: of positions that rise by one, 0."""
    at = torch.arange(n).unsqueeze(0).expand(m, -1)
    return (torch.diff(at, prepend=at[:, :1] - 1, dim=-1) != 1).cumsum(-1)


def looked_up(n, m):
    rows, columns = torch.arange(n)[:, None], torch.arange(n)[None, :]
    first = torch.zeros(1, 1, dtype=torch.int64)
    return packed(n, m)[first, rows] == packed(n, m)[0:1, :][torch.zeros_like(rows), columns]


KNOWN = {
    "range": lambda n, m: torch.arange(n) * 3 - 2,
    "range from": lambda n, m: torch.arange(2, n + 2, 1),
    "causal": lambda n, m: torch.arange(n)[:, None] >= torch.arange(m)[None, :],
    "lower triangle": lambda n, m: torch.ones(n, m, dtype=torch.bool).tril(),
    "upper triangle": lambda n, m: ~torch.ones(n, m, dtype=torch.bool).triu(1),
    "window": lambda n, m: (torch.arange(n)[:, None] - torch.arange(m) < 2) & (torch.arange(n)[:, None] > -1),
    "either": lambda n, m: (torch.arange(n)[:, None] < 2) | (torch.arange(m) == 0),
    "packed": packed,
    "looked up": looked_up,
    "last": lambda n, m: packed(n, m)[:, -1] == 0,
    "transposed": lambda n, m: (torch.arange(n)[:, None] + 2 * torch.arange(m)).t(),
    "permuted": lambda n, m: (torch.arange(n)[:, None, None] + 2 * torch.arange(m)[:, None]).permute(1, 2, 0),
    "steps": lambda n, m: torch.arange(2 * n + 1)[1::2],
    "joined": lambda n, m: torch.cat([torch.arange(1), torch.arange(n) + 5]),
    "full": lambda n, m: torch.full((n, m), 7) + torch.arange(m).new_zeros(m) + torch.arange(n).new_ones(n, 1),
    "joined twice": lambda n, m: torch.cat([torch.arange(4)] * 2)[3:4] + torch.arange(n),
    "counted": lambda n, m: torch.ones(n, m, dtype=torch.int64).cumsum(0) - 1,
    "flipped bits": lambda n, m: ~torch.arange(n),
    "flags": lambda n, m: (torch.arange(n) > 0).to(torch.bool).logical_not(),
}
UNKNOWN = {
    "of data": lambda n, m: torch.randint(5, (n,)),
    "floats": lambda n, m: torch.arange(n) / 2 > 1,
    "int32 may overflow": lambda n, m: torch.arange(n, dtype=torch.int32) * 9,
    "great factors": lambda n, m: torch.arange(n) * (1 << 40),
    "doubled": lambda n, m: torch.arange(n).add(torch.arange(n), alpha=2),
    "joined anywhere": lambda n, m: torch.cat([torch.arange(n), torch.arange(m)]),
    "sums of what differs": lambda n, m: torch.arange(n).cumsum(0),
}
SIZES = [(1, 1), (1, 4), (5, 3), (4, 4), (7, 2)]


def recorded(fn):
    """The graph of `fn`, called with symbols for the two sizes of an input."""
    rec = Recorder(shape_env=ShapeEnv())
    env = rec.shape_env
    shape = tuple(symint(env.new_symbol(n, ("x", d), lo=1, specialise=False), env) for d, n in enumerate((5, 3)))
    x = rec.input(torch.randn(5, 3), "x", shape=shape)
    with torch.no_grad(), rec:
        out = fn(*x.shape)
        node = rec.nodes(out)
    return node, shape


@pytest.mark.parametrize("name", KNOWN)
def test_elements_are_those_of_eager(name):
    node, sizes = recorded(KNOWN[name])
    names = [s.node.expr.name for s in sizes]
    found = [(index, Elements().at(node, index)) for index in parts(shape_of(node))]
    for n, m in SIZES:
        want, known = KNOWN[name](n, m), dict(zip(names, (n, m)))
        seen = 0
        for index, element in found:
            ranges = [range(1, size) if isinstance(i, Symbol) else range(1) for i, size in zip(index, want.shape)]
            for at in itertools.product(*ranges):
                env = known | {i.name: k for i, k in zip(index, at) if isinstance(i, Symbol)}
                assert element.evaluate(env) == want[at].item(), (name, n, m, at)
                seen += 1
        assert seen == want.numel()


@pytest.mark.parametrize("name", UNKNOWN)
def test_other_elements_are_not_guessed(name):
    node, _ = recorded(UNKNOWN[name])
    with pytest.raises(Unknown):
        for index in parts(shape_of(node)):
            Elements().at(node, index)


def masked(mask):
    return lambda x: F.scaled_dot_product_attention(x, x, x, mask(x.shape[-2]))


def attention_of(fn):
    rec = Recorder(shape_env=ShapeEnv())
    env = rec.shape_env
    x = rec.input(torch.randn(2, 3, 6, 8), "x",
                  shape=(2, 3, symint(env.new_symbol(6, "n", lo=1, specialise=False), env), 8))
    with torch.no_grad(), rec:
        out = fn(x)
    (node,) = [n for n in rec.finish([out]).nodes if n.target is ATTENTION]
    return node.args[3:]


def square(n):
    return torch.arange(n)[:, None], torch.arange(n)[None, :]


@pytest.mark.parametrize(
    ("mask", "args"),
    [
        (lambda n: square(n)[0] >= square(n)[1], (None, 0.0, True)),
        (lambda n: torch.ones(n, n, dtype=torch.bool).tril()[None, None], (None, 0.0, True)),
        (lambda n: (square(n)[0] >= 0).expand(n, n), ()),
        (lambda n: square(n)[1] < n, ()),
    ],
)
def test_masks_of_all_sizes_are_dropped(mask, args):
    assert attention_of(masked(mask)) == args
    step = framesmith.compile(masked(mask), fullgraph=True, dynamic=True)
    for n in (6, 1, 9):
        x = torch.randn(2, 3, n, 8)
        torch.testing.assert_close(step(x), masked(mask)(x))


@pytest.mark.parametrize(
    "mask",
    [
        lambda n: square(n)[0] > square(n)[1] - 2,
        lambda n: square(n)[0] <= square(n)[1],
        lambda n: (square(n)[0] >= square(n)[1]) & (square(n)[0] < 4),
        lambda n: square(n)[1] < 6,
    ],
)
def test_other_masks_stay(mask):
    (kept,) = attention_of(masked(mask))
    assert isinstance(kept, torch.fx.Node)
