"""Views and writes: random programs over a pool of tensors that alias, against eager."""

import random

import pytest
import torch
import torch.nn.functional as F

from tests.fake.harness import check

VIEWS = (
    lambda x, r: x[r.randrange(x.shape[0])],
    lambda x, r: x[..., r.randrange(2) :],
    lambda x, r: x[:: r.randrange(1, 3)],
    lambda x, r: x.transpose(0, -1),
    lambda x, r: x.permute(*reversed(range(x.dim()))),
    lambda x, r: x.unsqueeze(r.randrange(x.dim() + 1)),
    lambda x, r: x.squeeze(),
    lambda x, r: x.view(-1) if x.is_contiguous() else x.view(x.shape),
    lambda x, r: x.reshape(-1, x.shape[-1]),
    lambda x, r: x.diagonal(0, 0, -1) if x.dim() > 1 else x[1:],
    lambda x, r: x.unbind(0)[-1],
    lambda x, r: x.split(2, -1)[0],
    lambda x, r: x.chunk(2, 0)[-1],
    lambda x, r: x.detach(),
    lambda x, r: x.expand(*x.shape),
    lambda x, r: x.narrow(0, 0, 1),
    lambda x, r: x.mT if x.dim() > 1 else x,
    lambda x, r: x.flatten(),
    lambda x, r: x.view_as(x),
)

WRITES = (
    lambda x, y, r: x.add_(1),
    lambda x, y, r: x.mul_(2.0),
    lambda x, y, r: x.copy_(y.sum()),
    lambda x, y, r: x.fill_(r.randrange(9)),
    lambda x, y, r: x.zero_(),
    lambda x, y, r: F.relu(x, inplace=True),
    lambda x, y, r: x.sub_(y.mean()),
    lambda x, y, r: x.masked_fill_(x > 1, -1.0),
    lambda x, y, r: x.__setitem__(..., 3.0),
    lambda x, y, r: x.__setitem__((..., 0), y.amax()),
    lambda x, y, r: torch.neg(x, out=x),
    lambda x, y, r: x.clamp_(-2, 2),
    lambda x, y, r: x.index_fill_(-1, torch.tensor([0]), 7.0),
    lambda x, y, r: x.copy_(y) if x.shape == y.shape else x.add_(y.sum()),
    lambda x, y, r: x.index_put_((torch.tensor([0]),), y.min()),
)

PURE = (
    lambda x, y, r: x * 2,
    lambda x, y, r: x.clone(),
    lambda x, y, r: x + y.sum(),
    lambda x, y, r: torch.cat([x, x]),
    lambda x, y, r: x.contiguous(),
    lambda x, y, r: torch.zeros_like(x),
    lambda x, y, r: x.to(torch.float32),
    lambda x, y, r: torch.empty(x.shape[::-1]).fill_(1).t() if x.dim() == 2 else x.cumsum(0),
)


def program(seed):
    def run(*inputs):
        r = random.Random(seed)
        pool = list(inputs)
        for _ in range(14):
            x, y = r.choice(pool), r.choice(pool)
            kind = r.random()
            if x.dim() == 0 or x.numel() == 0:
                pool.append(x + 1)
            elif kind < 0.4:
                pool.append(r.choice(VIEWS)(x, r))
            elif kind < 0.75:
                r.choice(WRITES)(x, y, r)
            else:
                pool.append(r.choice(PURE)(x, y, r))
        return pool

    return run


@pytest.mark.parametrize("seed", range(150))
def test_random_program(seed):
    torch.manual_seed(seed)
    layout = torch.randn(4, 3, 2).permute(2, 0, 1) if seed % 3 == 0 else torch.randn(2, 4, 3)
    try:
        program(seed)(layout.clone(), torch.randn(4, 4))
    except RuntimeError:
        return  # a program that eager refuses
    check(program(seed), layout, torch.randn(4, 4), tol=1e-5)


def test_cache_update():
    def f(keys, new, at):
        keys.index_copy_(2, at, new)
        keys[:, :, :2] *= 2
        return keys[:, :, :4] @ new.mT

    check(f, torch.randn(1, 2, 6, 3), torch.randn(1, 2, 1, 3), torch.tensor([3]), tol=1e-6)


def test_views_of_other_dtype_and_complex():
    def f(x):
        c = torch.view_as_complex(x.reshape(4, 3, 2))
        d = c * torch.polar(torch.ones(3), torch.arange(3).float())
        y = torch.view_as_real(d).flatten(1)
        z = y.clone()
        z.view(torch.int32).bitwise_and_(0)
        return y, z, x.real, d.imag

    check(f, torch.randn(4, 6), tol=1e-6)


def test_as_strided_of_a_view():
    def f(x):
        y = x.clone()
        v = y[1].as_strided((2, 2), (6, 1), 2)
        v.add_(1)
        return y, v

    check(f, torch.randn(4, 6))


def test_as_strided_of_parts_of_complex_numbers():
    """Its sizes, strides and offset count elements of the type that it is called on."""
    def f(x):
        v = x.real.as_strided((2, 2), (1, 4), 1)
        v.add_(1)
        return x, v, torch.view_as_real(x).as_strided((4,), (2,), 1)

    check(f, torch.randn(4, 6, dtype=torch.complex64))


def test_write_to_one_of_two_outputs():
    def f(x):
        values, index = x.max(1)
        values[0] = 3
        q, k, v = (x @ x.T).split([1, 1, 2])
        k.copy_(q)
        return values, index, q, k, v

    check(f, torch.randn(4, 6), tol=1e-6)


def test_inputs_written_with_old_values_of_each_other():
    def later(x, y):
        x[0]
        y.copy_(x.view(3))
        x.add_(1)

    def exchanged(x, y):
        t = torch.empty(3)
        t.copy_(x)
        x.copy_(y)
        y.copy_(t)
        return t

    def around(x, y, z):
        old = [torch.empty(3).copy_(t) for t in (x, y, z)]
        for t, value in zip((x, y, z), (*old[1:], old[0])):
            t.copy_(value)

    check(later, torch.randn(3), torch.randn(3))
    check(exchanged, torch.randn(3), torch.randn(3))
    check(around, torch.randn(3), torch.randn(3), torch.randn(3))
