"""`framesmith.shapes`: formulas that have eager's values at any size, and errors before anything runs."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import framesmith


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.narrow, self.wide = nn.Conv1d(16, 4, 3, groups=4), nn.ConvTranspose1d(4, 6, 3)

    def forward(self, x):
        q, k, v = self.qkv(x).view(x.shape[0], x.shape[1], 3, 4, 4).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
        return self.wide(self.narrow(self.out(y).mT)), torch.bmm(y, y.mT)


def product(x, w):
    h = F.gelu(x @ w)
    return h.softmax(-1), h.sum(0)


CASES = {
    "attention and convolutions": (Net().eval(), [(torch.randn(b, n, 16),) for b, n in ((2, 7), (3, 12))]),
    "a product": (product, [(torch.randn(n, k), torch.randn(k, m)) for n, k, m in ((5, 8, 3), (7, 2, 9))]),
    "images": (nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
               [(torch.randn(b, 3, h, w),) for b, h, w in ((2, 32, 40), (3, 21, 26))]),
}


@pytest.mark.parametrize("name", CASES)
def test_formulas_at_other_sizes(name):
    fn, calls = CASES[name]
    with torch.no_grad():
        found = framesmith.shapes(fn, *calls[0])
        for args in calls:
            names = list(found.inputs)
            sizes = {f"{n}.shape[{d}]": size for n, x in zip(names, args) for d, size in enumerate(x.shape)}
            with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
                results = fn(*args)
            results = results if isinstance(results, tuple) else (results,)
            assert [tuple(n.evaluate(sizes) for n in shape) for _, shape in found.results] == [x.shape for x in results]
            assert found.flops.evaluate(sizes) == counter.get_total_flops()


def test_memory():
    found = framesmith.shapes(lambda x: (x + 1).exp()[1:].sum(), torch.randn(5, 4, dtype=torch.float64))
    sizes = {"x.shape[0]": 10, "x.shape[1]": 3}
    assert found.bytes.evaluate(sizes) == (240 + 240) + (240 + 240) + (216 + 8)
    assert found.peak.evaluate(sizes) == 3 * 240  # x, x + 1 and its exponential
    found = framesmith.shapes(lambda x: x.mul(2).add(1).relu(), torch.randn(6))
    assert str(found.peak) == "12*x.shape[0]"


def test_text():
    shown = str(framesmith.shapes(product, torch.randn(5, 8), torch.randn(8, 16))).splitlines()
    assert shown[:5] == [
        "x: float32[x.shape[0], x.shape[1]]", "w: float32[x.shape[1], w.shape[1]]",
        "result 0: float32[x.shape[0], w.shape[1]]", "result 1: float32[w.shape[1]]",
        "flops: 2*w.shape[1]*x.shape[0]*x.shape[1]",
    ]
    assert shown[-1].startswith("assumed: x.shape[1] == w.shape[0] (") and __file__ in shown[-1]


def test_what_does_not_fit_is_named_before_anything_runs():
    def program(x, w):
        y = torch.ops.aten.mul(x, 2)
        return y @ w

    with pytest.raises(framesmith.exc.ShapeError, match="cannot be multiplied") as error:
        framesmith.shapes(program, torch.randn(5, 8), torch.randn(7, 16))
    assert "return y @ w" in str(error.value) and f"{__file__}:" in str(error.value)


def test_what_breaks_the_graph_is_refused():
    with pytest.raises(framesmith.exc.Unsupported):
        framesmith.shapes(lambda x: x * 2 if framesmith.graph_break() is None else x, torch.ones(3))
    with pytest.raises(TypeError):
        framesmith.shapes(torch.relu, torch.ones(3))
