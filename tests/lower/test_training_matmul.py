"""Products of matrices that change from call to call: the operator against float64 in every layout, and the graphs that
it comes into."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import framesmith
from framesmith.config import Config
from framesmith.fake.recorder import Recorder
from framesmith.graph.interpreter import run
from framesmith.lower.contractions.choice import CANDIDATES, Chooser
from framesmith.lower.contractions.pack_linear import Request, choose_contractions

SIZES = [(1, 1, 1), (3, 5, 7), (14, 16, 32), (15, 17, 33), (31, 1100, 200), (130, 700, 300), (600, 40, 17),
         (20, 3, 1000), (7, 0, 9)]
LAYOUTS = {
    "rows": lambda r, c: torch.randn(r, c),
    "columns": lambda r, c: torch.randn(c, r).t(),
    "part": lambda r, c: torch.randn(r, c + 5)[:, 3 : c + 3],
    "sparse": lambda r, c: torch.randn(r, 2 * c)[:, ::2],
    "one row": lambda r, c: torch.randn(1, c).expand(r, c),
}
matmul = torch.ops.framesmith.matmul


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def check(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor) -> None:
    exact = a.double() @ b.double()
    exact = exact if bias is None else exact + bias.double()
    scale = a.double().abs() @ b.double().abs() + 1
    matmul.out(a, b, bias, out=out)
    assert ((out - exact).abs() / scale).nan_to_num(nan=1).amax().item() < 4e-7 if out.numel() else True


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("first", LAYOUTS)
@pytest.mark.parametrize("second", LAYOUTS)
def test_layouts(size, first, second) -> None:
    m, k, n = size
    a, b = LAYOUTS[first](m, k), LAYOUTS[second](k, n)
    for bias in (None, torch.randn(n), torch.randn(n, m).t(), torch.randn(m, 1)):
        for out in (torch.empty(m, n), torch.empty(n, m).t(), torch.empty(m, n + 3)[:, :n]):
            check(a, b, bias, out)


def test_nothing_is_written_beside_the_result() -> None:
    for m, k, n in SIZES:
        for whole in (torch.zeros(m + 2, n + 20), torch.zeros(n + 20, m + 2).t()):
            out = whole[1 : m + 1, 2 : n + 2]
            matmul.out(torch.ones(m, k), torch.ones(k, n), None, out=out)
            assert whole.sum() == out.sum() == m * k * n


@pytest.mark.parametrize("threads", (1, 2, 5))
def test_batches(threads) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for count, m, k, n in ((1, 130, 64, 257), (3, 100, 64, 90), (12, 33, 70, 128)):
            a, b = torch.randn(count, k, m).transpose(1, 2), torch.randn(1, k, n).expand(count, k, n)
            check(a, b, torch.randn(count, 1, n), torch.empty(m, count, n).transpose(0, 1))
    finally:
        torch.set_num_threads(before)


def test_the_errors_of_long_sums_do_not_grow_with_them() -> None:
    for k in (300, 20_000):
        a, b = torch.rand(k, 24).t(), torch.rand(k, 40)
        exact = a.double() @ b.double()
        assert ((matmul(a, b, None) - exact).abs().mean() / exact.mean()) < 2e-7


def test_products_of_a_graph_are_rewritten_as_eager() -> None:
    def fn(a, b, c, p, q):
        sums = torch.addmm(c, a, b), torch.addmm(c, a, b, beta=2)
        return *sums, a @ b, torch.bmm(p, q.transpose(1, 2)), torch.mm(a.t(), a), torch.mm(a, b[:, :2])

    inputs = torch.randn(20, 30), torch.randn(30, 40), torch.randn(40), torch.randn(3, 8, 16), torch.randn(3, 8, 16)
    recorder = Recorder()
    with torch.no_grad(), recorder:
        results = fn(*[recorder.input(t, f"i{n}") for n, t in enumerate(inputs)])
    graph = choose_contractions(recorder.finish(list(results)), lambda request: "own")
    targets = [str(n.target) for n in graph.nodes if n.op == "call_function"]
    assert targets.count("framesmith.matmul.default") >= 3
    assert targets.count("aten.addmm.default") == 1
    for ours, theirs in zip(run(graph, inputs), fn(*inputs), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
        assert ours.stride() == theirs.stride()


def test_a_product_is_measured_once_and_its_candidates_agree() -> None:
    memory: dict[str, str] = {}
    for shape in ((1, 300, 200, 300, 1, 0), (6, 130, 200, 130, 0, 1)):
        request = Request("product", torch.float32, shape)
        results = [run() for run in CANDIDATES["product"](request).values()]
        torch.testing.assert_close(*results)
        chooser = Chooser(Config(packing=False), memory)
        assert chooser(request) == chooser(request)
        assert len(chooser.measured) == 1
    assert len(memory) == 2


def test_training_calls_it(tmp_path) -> None:
    module = torch.nn.Linear(256, 512)
    x = torch.randn(256, 256, requires_grad=True)
    compiled = framesmith.compile(lambda x: F.gelu(module(x)).square().mean(), options={"cache_dir": str(tmp_path)})
    compiled(x).backward()
    ours = [x.grad, module.weight.grad, module.bias.grad]
    x.grad = None
    module.zero_grad()
    F.gelu(module(x)).square().mean().backward()
    for a, b in zip(ours, (x.grad, module.weight.grad, module.bias.grad), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-8)
    assert "product float32 1x256x256x256x0x1" in (tmp_path / "choices.json").read_text()
