"""Attention with score modifications over tiles on a device: judged by float64, against eager's own errors.

Eager's `flex_attention` keeps all scores in float32; tiles round them to the type of the inputs, as eager's flash
attention does. So an error may be that of either.
"""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention import flex_attention as flex
from torch.nn.functional import scaled_dot_product_attention

import framesmith
from framesmith import targets

pytestmark = pytest.mark.gpu
B, H = 2, 4
SHAPES = {"even": (512, 64, 4), "groups": (500, 128, 2), "odd": (384, 96, 4), "short": (40, 64, 1)}
"""Length, width, heads of keys and values."""


def modifications(size):
    slopes = torch.exp2(-2.0 * torch.arange(H, device="cuda"))
    documents = torch.arange(size, device="cuda") // 50
    mods = {
        "plain": None, "causal": lambda s, b, h, q, k: torch.where(q >= k, s, -float("inf")),
        "alibi": lambda s, b, h, q, k: s + slopes[h] * (q - k), "cap": lambda s, b, h, q, k: 20 * torch.tanh(s / 20),
    }
    masks = {
        "all": None, "window": lambda b, h, q, k: (q >= k) & (q - k < 200), "documents": lambda b, h, q,
        k: documents[q] == documents[k],
        "first rows empty": lambda b, h, q, k: q > 30,
    }
    return mods, masks


def flash(q, k, v):
    groups = q.size(1) // k.size(1)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION if q.dtype is torch.bfloat16 else SDPBackend.MATH):
        return scaled_dot_product_attention(q, *[x.repeat_interleave(groups, 1) for x in (k, v)])


def distance(found, true):
    return ((found.double() - true).abs().max() / true.abs().max()).item()


@pytest.mark.parametrize(("shape", "mod", "mask"), [
    ("even", "plain", "all"), ("even", "causal", "all"), ("even", "plain", "window"),
    ("even", "alibi", "first rows empty"),
    ("groups", "alibi", "window"), ("groups", "cap", "documents"), ("odd", "cap", "documents"), ("odd", "plain", "all"),
    ("short", "alibi", "window"), ("short", "causal", "all"),
])
def test_errors_are_eagers(shape, mod, mask, monkeypatch):
    size, width, heads = SHAPES[shape]
    mods, masks = modifications(size)
    blocks = masks[mask] and flex.create_block_mask(masks[mask], None, None, size, size, device="cuda")
    found = []
    monkeypatch.setattr(targets, "user_kernels", lambda *p,
                        old=targets.user_kernels: found.append(old(*p)) or found[-1])
    torch.manual_seed(0)
    q = torch.randn(B, size, H, width, device="cuda", dtype=torch.bfloat16).transpose(1, 2).requires_grad_()
    k, v = (torch.randn(B, heads, size, width, device="cuda", dtype=torch.bfloat16, requires_grad=True)
            for _ in range(2))

    def program(q, k, v):
        return flex.flex_attention(q, k, v, mods[mod], blocks, enable_gqa=heads != H)

    def results(fn, *inputs):
        inputs = [x.detach().requires_grad_() for x in inputs]
        out = fn(*inputs)
        generator = torch.Generator("cuda").manual_seed(1)
        tangent = torch.randn(out.shape, device="cuda", generator=generator, dtype=torch.bfloat16).to(out.dtype)
        return out, *torch.autograd.grad(out, inputs, tangent)

    true = results(program, q.double(), k.double(), v.double())
    eager, mine = results(program, q, k, v), results(framesmith.compile(program, fullgraph=True), q, k, v)
    assert [len(kernels) for kernels in found] == [1, 2]
    assert mine[0].stride() == eager[0].stride()
    rounded = [distance(a, b) for a,
               b in zip(results(flash, q, k, v), results(flash, q.double(), k.double(), v.double()))]
    for a, b, c, least in zip(mine, eager, true, rounded):
        assert distance(a, c) <= 1.5 * max(distance(b, c), least)


MASKS = {
    "bias": lambda m, n: torch.randn(1, H, m, n, device="cuda").bfloat16(),
    "rows with gaps": lambda m, n: torch.randn(m, n, H, device="cuda").bfloat16().permute(2, 0, 1)[None],
    "padding": lambda m, n: (torch.arange(n, device="cuda") < n - 30)[None, None, None].expand(B, 1, m, n),
    "causal numbers": lambda m,
    n: torch.full((m, n), torch.finfo(torch.bfloat16).min, device="cuda", dtype=torch.bfloat16).triu(1),
    "float32 numbers": lambda m, n: torch.randn(B, 1, m, n, device="cuda"),
}


@pytest.mark.parametrize("width", [32, 64, 128])
@pytest.mark.parametrize("size", [(512, 512), (49, 49), (200, 77), (1, 300)])
@pytest.mark.parametrize("mask", MASKS)
def test_errors_with_a_mask_are_eagers(mask, size, width):
    torch.manual_seed(0)
    rows, columns = size
    q, k, v = [torch.randn(B, n, H, width, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
               for n in (rows, columns, columns)]
    given = MASKS[mask](rows, columns)

    def program(q, k, v, given):
        out = scaled_dot_product_attention(q, k, v, given)
        return out, out.transpose(1, 2).reshape(B, rows, -1) * 2

    with torch.no_grad():
        true = program(*[x.double() for x in (q, k, v)], given if given.dtype is torch.bool else given.double())
        with torch.autocast("cuda", torch.bfloat16):
            eager, mine = program(q, k, v, given), framesmith.compile(program, fullgraph=True)(q, k, v, given)
    for a, b, c in zip(mine, eager, true, strict=True):
        assert a.stride() == b.stride() and a.dtype is b.dtype
        assert distance(a, c) <= 1.5 * max(distance(b, c), 2.0**-9)


def test_attention_that_is_written_out():
    """Windows with a bias each, some of them masked, as a product, a softmax and a product."""
    torch.manual_seed(0)
    q, k, v = torch.randn(8, 49, 3, H, 32, device="cuda", dtype=torch.bfloat16).permute(2, 0, 3, 1, 4).unbind(0)
    bias = torch.randn(H, 49, 49, device="cuda")
    shifted = torch.zeros(4, 49, 49, device="cuda")
    shifted[-1, :20, 20:] = -100.0

    def program(q, k, v, bias, shifted):
        scores = (q * 32**-0.5) @ k.transpose(-2, -1) + bias
        scores = scores.view(2, 4, H, 49, 49) + shifted[None, :, None]
        return (torch.softmax(scores.view(8, H, 49, 49), -1).to(v.dtype) @ v).transpose(1, 2).reshape(8, 49, -1)

    with torch.no_grad():
        true = program(*[x.double() for x in (q, k, v, bias, shifted)])
        eager, mine = program(q, k, v, bias, shifted), framesmith.compile(program, fullgraph=True)(q, k, v, bias,
                                                                                                   shifted)
    assert mine.stride() == eager.stride() and distance(mine, true) <= 1.5 * max(distance(eager, true), 2.0**-9)


def test_training_with_a_mask_whose_rows_have_gaps_keeps_no_scores():
    """Within a graph of its own nobody knows that it masks nothing, as between blocks that are compiled one by one."""
    torch.manual_seed(0)
    mask = (torch.arange(512, device="cuda").view(1, 1, -1, 1) >= 0).expand(2, 1, 512, 512)
    x = torch.randn(2, 512, H, 64, device="cuda", dtype=torch.bfloat16).requires_grad_()

    def attend(x, mask):
        q = (x * 2).transpose(1, 2)
        return scaled_dot_product_attention(q, q, q, attn_mask=mask)

    found = []
    for call in (attend, framesmith.compile(attend)):
        call(x, mask).sum().backward()
        x.grad = None
        before = torch.cuda.memory_allocated()
        y = call(x, mask)
        kept = torch.cuda.memory_allocated() - before
        y.square().sum().backward()
        found.append((y.stride(), kept, y.detach(), x.grad))
        x.grad = None
    (layout, kept, *_), (strides, ours, *got) = found
    scores = 2 * H * 512 * 512 * 2
    assert kept > scores > ours and layout == strides
    exact = x.detach().double().requires_grad_()
    y = attend(exact, mask)
    y.square().sum().backward()
    for ours, true in zip(got, (y.detach(), exact.grad), strict=True):
        assert torch.linalg.vector_norm(ours - true) <= 2 ** -7 * torch.linalg.vector_norm(true)
