"""Jagged nested tensors: a ragged batch is one graph for all lengths, forward and backward."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import framesmith
from framesmith.compiler import FrameCompiler
from framesmith.config import Config
from framesmith.ledger import Ledger
from framesmith.wrapping import wrap_function

BATCHES = ((3, 5), (2, 7), (9, 3, 1), (5, 6, 7, 8), (4, 4, 2, 11, 3), (12, 1), (6, 8), (3, 3, 3))


def compiled(fn, **how):
    ledger = Ledger()
    how = {"fullgraph": True, "suppress_errors": False, "cache": False, **how}
    return wrap_function(fn, FrameCompiler(Config(**how), ledger)), ledger


def ragged(lengths, grad=False, make=lambda n: torch.randn(n, 8, dtype=torch.float64)):
    return torch.nested.nested_tensor([make(n) for n in lengths], layout=torch.jagged, requires_grad=grad)


def same(want, got):
    assert type(got) is type(want)
    if isinstance(want, (tuple, list)):
        assert len(want) == len(got)
        for x, y in zip(want, got, strict=True):
            same(x, y)
    elif isinstance(want, torch.Tensor):
        assert got.requires_grad is want.requires_grad and got.is_leaf is want.is_leaf and got.dtype is want.dtype
        assert got.shape == want.shape and got.stride() == want.stride()
        if want.is_nested:
            assert got._ragged_idx == want._ragged_idx
            same(want.offsets(), got.offsets())
            same([want._maybe_min_seqlen, want._maybe_max_seqlen], [got._maybe_min_seqlen, got._maybe_max_seqlen])
            want, got = want._values, got._values
        torch.testing.assert_close(got.detach(), want.detach())
    else:
        assert want == got


def total(value):
    """A number of all results that require grad."""
    if isinstance(value, (list, tuple)):
        return sum(map(total, value))
    if not isinstance(value, torch.Tensor) or not value.requires_grad:
        return 0
    return (value.values() if value.is_nested else value).square().sum()


def graded(fn, x):
    x = x.detach().requires_grad_(x.requires_grad)
    out = fn(x)
    if isinstance(number := total(out), torch.Tensor):
        number.backward()
    return out, x.grad


def heads(x):
    return x.unflatten(-1, (2, 4)).transpose(1, 2)


WEIGHT = torch.randn(6, 8, dtype=torch.float64)
FUNCTIONS = {
    "pointwise": lambda x: (x * 2 + x.sigmoid()).relu(),
    "linear": lambda x: F.linear(x, WEIGHT),
    "layer_norm": lambda x: F.layer_norm(x, (8,)),
    "softmax": lambda x: F.softmax(x, -1),
    "values": lambda x: (x.values() * 2, (x + 1).values()),
    "padded": lambda x: x.to_padded_tensor(1.5),
    "sums": lambda x: (x.sum(), x.mean(), x.mean(-1), x.to_padded_tensor(0.0).sum(1)),
    "greatest": lambda x: x.amax(1),
    "views": lambda x: (x * 2, x.unflatten(-1, (2, 4)), x.transpose(1, 2), x.unsqueeze(-1), x.chunk(2, -1)),
    "shapes": lambda x: (x.shape[0], x.size(-1), x.dim(), x.is_nested, x.layout, x.offsets(), x * x.shape[0]),
    "rebuilt": lambda x: torch.nested.nested_tensor_from_jagged(x.values().sin(), x.offsets()),
    "copies": lambda x: (x.clone(), torch.cat([x, x], -1), x.to(torch.float32), torch.zeros_like(x), x),
    "attention": lambda x: F.scaled_dot_product_attention(heads(x), heads(x * 2), heads(x)).transpose(1, 2).flatten(-2),
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_one_graph_for_all_lengths(name, grad):
    fast, ledger = compiled(FUNCTIONS[name])
    for lengths in BATCHES:
        x = ragged(lengths, grad)
        same(graded(FUNCTIONS[name], x), graded(fast, x))
    assert len(ledger.records) <= 2, "one for the lengths, and one for the number of rows"


def test_unbind_has_a_graph_for_each_number_of_rows():
    def fn(x):
        return [row * 2 for row in x.unbind()]

    fast, ledger = compiled(fn)
    for lengths in ((3, 5), (2, 7), (6, 1), (1, 2, 3), (4, 5, 6)):
        x = ragged(lengths)
        same(fn(x), fast(x))
    assert len(ledger.records) == 2


def test_sums_along_the_ragged_dimension():
    """Along it eager has no derivative of a sum, and of softmax a wrong one: what counts is each row."""
    def fn(x):
        return x.sum(1), x.mean(1), F.softmax(x, 1).values()

    def by_rows(x):
        rows = x.unbind()
        return (torch.stack([r.sum(0) for r in rows]), torch.stack([r.mean(0) for r in rows]),
                torch.cat([r.softmax(0) for r in rows]))

    fast, ledger = compiled(fn)
    for lengths in BATCHES:
        x = ragged(lengths)
        same(fn(x), fast(x))
        (want, gradient), (got, found) = (graded(f, ragged_like(x)) for f in (by_rows, fast))
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(found.values(), gradient.values())


def ragged_like(x):
    return x.detach().clone().requires_grad_()


def test_lengths_that_the_graph_computes():
    """A nested tensor that does not know its longest row."""
    def fn(values, offsets):
        x = heads(torch.nested.nested_tensor_from_jagged(values, offsets))
        return F.scaled_dot_product_attention(x, x, x).transpose(1, 2).flatten(-2).values()

    fast, ledger = compiled(fn)
    for lengths in BATCHES:
        x = ragged(lengths)
        same(fn(x.values(), x.offsets()), fast(x.values(), x.offsets()))
    assert len(ledger.records) <= 3


def test_two_ragged_sizes_are_told_apart():
    def fn(x, y):
        return x.shape[1] == y.shape[1], x.shape == y.shape, x + 1 if x.size(1) == y.size(1) else y

    fast, _ = compiled(fn)
    x, y = ragged((3, 5)), ragged((3, 5))
    for a, b in ((x, y), (x, x), (x, x * 2), (y, x * 2)):
        same(fn(a, b), fast(a, b))
    add, _ = compiled(lambda x, y: x + y, fullgraph=False)
    same(x + x * 2, add(x, x * 2))
    with pytest.raises(RuntimeError, match="shapes"):
        add(x, y)


class Model(nn.Module):
    """A ragged batch of tokens -> a loss."""

    def __init__(self, width=16):
        super().__init__()
        self.embedding, self.norm = nn.Embedding(50, width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.head = nn.Linear(width, 3)

    def forward(self, tokens, labels):
        x = self.embedding(tokens)
        h = self.norm(x)
        q, k, v = (f(h).unflatten(-1, (4, -1)).transpose(1, 2) for f in (self.query, self.key, self.value))
        x = x + F.gelu(self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2)))
        pooled = x.to_padded_tensor(0.0).sum(1) / x.offsets().diff().unsqueeze(-1)
        return F.cross_entropy(self.head(pooled), labels)


@pytest.mark.parametrize("backend", ["native", "eager"])
def test_a_model_in_training_is_one_graph(backend):
    torch.manual_seed(0)
    model = Model().double()
    fast, ledger = compiled(model.forward, backend=backend)
    for lengths in BATCHES:
        tokens = ragged(lengths, make=lambda n: torch.randint(50, (n,)))
        labels = torch.randint(3, (len(lengths),))
        results = []
        for fn in (model, fast):
            model.zero_grad()
            loss = fn(tokens, labels)
            loss.backward()
            results.append([loss.detach(), *(p.grad for p in model.parameters())])
        torch.testing.assert_close(results[1], results[0])
    assert backend != "native" or len(ledger.records) <= 2


def test_across_a_break():
    """A nested tensor, and the ragged size itself, go on in a continuation."""
    def fn(x):
        rows, length, _ = x.shape
        y = x * 2
        framesmith.graph_break()
        z = (y + x).view(rows, length, 2, 4)
        framesmith.graph_break()
        return z.values() + 1, z, z.shape, length

    fast, _ = compiled(fn, fullgraph=False)
    for grad in (False, True):
        for lengths in BATCHES[:4]:
            x = ragged(lengths, grad)
            same(graded(fn, x), graded(fast, x))


def test_nothing_of_a_capture_is_left_in_pytorch():
    """The tensor that PyTorch keeps for its calls about nested tensors is a real one, whoever is the first to ask."""
    from torch.nested._internal import nested_tensor

    nested_tensor._dummy_instance = None
    fast, _ = compiled(lambda values, offsets: torch.nested.nested_tensor_from_jagged(values, offsets).values() * 2)
    values, offsets = torch.randn(8, 4), torch.tensor([0, 3, 8])
    same(values * 2, fast(values, offsets))
    assert type(nested_tensor._dummy_instance._values) is torch.Tensor


def test_written_in_place():
    def fn(x):
        x.mul_(2)
        return x, x.values() + 1

    fast, _ = compiled(fn)
    for lengths in BATCHES[:4]:
        x = ragged(lengths)
        twin = torch.nested.nested_tensor_from_jagged(x.values().clone(), x.offsets())
        want, got = fn(x), fast(twin)
        assert got[0] is twin
        same([want[0].values(), want[1]], [got[0].values(), got[1]])
