"""numerics="eager": each operator's 16-bit results are rounded before the next reads them, as eager has them in
memory."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import framesmith
from framesmith.config import Config
from framesmith.exc import FramesmithError

HALF = (torch.bfloat16, torch.float16)


def chains(x, y):
    """One result a chain of fused operators."""
    mean = x - x.mean(-1, keepdim=True)
    return {
        "arithmetic": ((x * 1.7 + y) * x - y / 3).tanh() * x.sigmoid() + (x - y).exp() * 0.1,
        "numbers": torch.add(x + 0.7, y, alpha=0.3) % 0.7 - 1.7 ** x,
        "factors": x * torch.tensor(0.7) / torch.tensor(0.3) * y,
        "logarithms": torch.xlogy(x, y.abs()) * 3 + torch.special.xlog1py(y, x.abs()) + torch.special.entr(x.abs()),
        "whole quotients": torch.div(x, y, rounding_mode="trunc") + torch.div(x, 0.3, rounding_mode="trunc"),
        "powers": x ** 3 + y ** 2 - (x.abs() + 1) ** 0.5,
        "choices": torch.where(x + 0.1 > y, (x * 3).clamp(max=0.3), y / 7) + 1,
        "activations": F.silu(y) * F.leaky_relu(x) - F.hardswish(x * y),
        "layer norm": F.layer_norm(x + y, (64,)) * y + x,
        "rms norm": F.rms_norm(x + y, (64,)) * y + x,
        "softmax": F.softmax(x * y, -1) * x + y,
        "sum": (x * y).sum(-1, keepdim=True) * x - y,
        "mean": (mean * y).square() * mean,
        "views": (x + y).view(8, 512).t().reshape(64, 64) * y + x,
    }


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_chains_are_eagers_bit_for_bit(dtype):
    x, y = (torch.randn(64, 64, generator=torch.Generator().manual_seed(k)).to(dtype) for k in (0, 1))
    want = chains(x, y)
    got = framesmith.compile(chains, fullgraph=True, options={"numerics": "eager"})(x, y)
    assert not {name: float((got[name] - want[name]).abs().max())
                for name in want if not torch.equal(got[name], want[name])}
    fused = framesmith.compile(chains, fullgraph=True)(x, y)
    assert not torch.equal(fused["arithmetic"], want["arithmetic"])


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.up, self.down = nn.Parameter(torch.rand(32)), nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x):
        h = F.dropout((x * self.scale + 0.3).tanh() * x, 0.3)
        return x + self.down(F.mish(self.up(h) * 1.1) * 0.7).softmax(-1) * self.scale


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_gradients_round_as_eagers_do(dtype):
    @torch.enable_grad()
    def step(numerics):
        torch.manual_seed(0)
        block = Block().to(dtype)
        x = torch.randn(16, 32).to(dtype).requires_grad_()
        call = framesmith.compile(block, fullgraph=True, options={"numerics": numerics}) if numerics else block
        out = call(x)
        out.square().sum().backward()
        return [out.detach(), x.grad, *[p.grad for p in block.parameters()]]

    def other(numerics):
        """Where more than the order of a product's sums shows."""
        return [k for k, (a, b) in enumerate(zip(step(numerics), want, strict=True))
                if float((a != b).double().mean()) > 0.01]

    want = step(None)
    assert not other("eager") and other("default")


def test_an_unknown_name_is_refused():
    with pytest.raises(FramesmithError, match="unknown numerics"):
        Config(numerics="exact")


def test_code_is_kept_apart_in_the_cache():
    assert Config().code_key() != Config(numerics="eager").code_key()


class Angles(nn.Module):
    """As rotary embeddings make them: a product of constants, in float32 whatever is around it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rates", torch.rand(1, 16, 2, generator=torch.Generator().manual_seed(0)))

    def forward(self, x):
        with torch.autocast("cpu", enabled=False):
            angles = self.rates @ torch.arange(64.0).view(1, 2, 32)
        return x + angles.cos()


def test_what_is_computed_once_is_in_the_precision_of_the_graph():
    model, x = Angles().eval(), torch.zeros(1, 16, 32)
    compiled = framesmith.compile(model, fullgraph=True)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(compiled(x), model(x))
        model.rates.mul_(2)
        torch.testing.assert_close(compiled(x), model(x))
