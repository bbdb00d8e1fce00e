"""Attention whose scale varies from call to call, with a size or as a number of the caller's, needs no variants."""

import math

import pytest
import torch

import framesmith
from tests.capture.test_branches import alike

attention = torch.nn.functional.scaled_dot_product_attention


@pytest.fixture(autouse=True)
def no_variants_of_other_tests():
    """Functions of one code object share variants."""
    framesmith.reset()


def of_rows(q, k, v):
    return attention(q, k, v, scale=q.shape[-2] ** -0.5)


def of_a_root(q, k, v):
    return attention(q, k, v, is_causal=True, scale=1 / math.sqrt(k.shape[-2]))


def of_channels(q, k, v):
    x = torch.cat([q, k, v], -1).transpose(1, 2).flatten(2)
    batch, rows, _ = x.shape
    q, k, v = x.reshape(batch, rows, 3, 4, -1).permute(2, 0, 3, 4, 1).unbind(0)
    return attention(q, k, v, scale=rows ** -0.5).transpose(-1, -2).reshape(batch, rows, -1)


def masked(q, k, v):
    kept = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    added = torch.linspace(-1, 1, k.shape[-2]).expand(q.shape[-2], -1)
    scale = 0.9 ** q.shape[-2]
    return attention(q, k, v, kept, scale=scale), attention(q, k, v, attn_mask=added, scale=-scale)


def grouped(q, k, v):
    return attention(query=q, key=k[:, :1], value=v[:, :1], enable_gqa=True, scale=q.shape[-2] ** -0.25)


def double(q, k, v):
    return attention(q.double(), k.double(), v.double(), scale=q.shape[-2] ** -0.5)


def of_heads_behind(q, k, v):
    q, k, v = torch.stack([q, k, v]).transpose(2, 3).contiguous().transpose(2, 3)
    out = attention(q, k, v, scale=q.shape[-2] ** -0.5)
    return out, out.transpose(1, 2).flatten(2)


PROGRAMS = [of_rows, of_a_root, of_channels, masked, grouped, double, of_heads_behind]


def operands(rows, width=8, **options):
    generator = torch.Generator().manual_seed(rows)
    return [torch.randn(2, 4, rows, width, generator=generator, **options) for _ in range(3)]


@pytest.mark.parametrize("backend", ["native", "eager"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_scale_of_sizes_needs_no_variants(program, backend, captures):
    compiled = framesmith.compile(program, dynamic=True, backend=backend, fullgraph=True)
    for rows in (5, 7, 2, 16, 40, 3):
        alike(compiled(*operands(rows)), program(*operands(rows)))
    assert backend == "eager" or len(captures) == 1
    alike(compiled(*operands(1)), program(*operands(1)))


@pytest.mark.parametrize("program", PROGRAMS)
def test_it_is_trained(program, captures):
    compiled = framesmith.compile(program, dynamic=True, fullgraph=True)
    for rows in (5, 7, 2, 16, 3):
        found = []
        for run in (compiled, program):
            leaves = operands(rows, requires_grad=True)
            out = run(*leaves)
            total = sum([y.square().sum() for y in (out if isinstance(out, tuple) else (out,))])
            found.append((out, torch.autograd.grad(total, leaves)))
        alike(*found)
    varies = program is of_channels and torch.__version__ < (2, 13)  # a variant for each size before
    assert varies or len(captures) == 1


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_scale_of_the_callers_is_an_input(dynamic, captures):
    def fn(q, k, v, scale):
        return attention(q, k, v, scale=scale) + scale

    compiled = framesmith.compile(fn, dynamic=dynamic)
    for scale in (0.5, 0.25, 1.5, -0.75, 0.0, 3.0, 1e-30, 0.1):
        alike(compiled(*operands(6), scale), fn(*operands(6), scale))
    assert len(captures) < 5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_query_of_half_precision_is_not_rounded_again(dtype):
    compiled = framesmith.compile(of_rows, dynamic=True, backend="eager")
    for rows in (5, 7, 9):
        given = [x.to(dtype) * 3 for x in operands(rows)]
        assert torch.equal(compiled(*given), of_rows(*given))


def every_second_column(q, k, v):
    return attention(q[..., ::2], k[..., ::2], v[..., ::2], scale=q.shape[-2] ** -0.5)


def of_parts(q, k, v):
    q, k, v = torch.cat([q, k, v], -1).transpose(1, 2).contiguous().transpose(1, 2).chunk(3, -1)
    return attention(q, k, v, scale=q.shape[-2] ** -0.5)


def one_head_for_all(q, k, v):
    return attention(q[:, :1].expand(-1, 4, -1, -1), k, v, scale=q.shape[-2] ** -0.5)


@pytest.mark.parametrize("program", [every_second_column, of_parts, one_head_for_all])
def test_the_layout_is_that_of_eager(program):
    compiled = framesmith.compile(program, dynamic=True)
    for rows in (5, 7, 2, 1, 16):
        alike(compiled(*operands(rows)), program(*operands(rows)))


def test_errors_are_those_of_eager():
    compiled = framesmith.compile(of_rows, dynamic=True)
    compiled(*operands(4))
    for q, k, v in (operands(0), [operands(4)[0], *operands(4, width=6)[1:]]):
        with pytest.raises((ZeroDivisionError, RuntimeError)) as wanted:
            of_rows(q, k, v)
        with pytest.raises(wanted.type):
            compiled(q, k, v)


def test_autocast_and_transforms_keep_their_rules():
    def fn(q, k, v):
        with torch.autocast("cpu", torch.bfloat16):
            return of_rows(q, k, v), torch.vmap(of_rows)(q, k, v)

    compiled = framesmith.compile(fn, dynamic=True)
    for rows in (5, 7, 3):
        alike(compiled(*operands(rows)), fn(*operands(rows)))
