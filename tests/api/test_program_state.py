"""A compile leaves the program's state alone: generators, flags, defaults, warnings, signals, and what else a process
has."""

import importlib

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import framesmith
from tests.program_state import snapshot

pytestmark = pytest.mark.filterwarnings("ignore")


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(32, 96)

    def forward(self, x):
        q, k, v = self.qkv(x).view(2, 48, 3, 2, 16).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v)


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.layers = kind(24, 24, num_layers=2, batch_first=True)

    def forward(self, x):
        return self.layers(x)[0]


def images():
    return nn.Sequential(nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, groups=16))


KINDS = {
    "linear": (lambda: nn.Sequential(nn.Linear(128, 384), nn.GELU(), nn.Linear(384, 128)), (300, 128)),
    "attention": (Attention, (2, 48, 32)),
    "lstm": (lambda: Recurrent(nn.LSTM), (3, 20, 24)),
    "gru": (lambda: Recurrent(nn.GRU), (3, 20, 24)),
    "convolution": (images, (2, 8, 20, 20)),
}


def forward(make, shape, **options):
    x, compiled = torch.ones(shape), framesmith.compile(make().eval(), **options)

    def run():
        with torch.no_grad():
            compiled(x)

    return run


def training(make, shape):
    x, compiled = torch.ones(shape), framesmith.compile(make())
    return lambda: compiled(x).sum().backward()


def stepping():
    model = nn.Linear(5, 6)
    model(torch.ones(5)).sum().backward()
    return framesmith.compile(torch.optim.AdamW(model.parameters()).step)


def broken():
    def f(x):
        y = x.sin() + 1
        framesmith.graph_break()
        return (y * 2).sum()

    compiled, x = framesmith.compile(f), torch.ones(7)
    return lambda: compiled(x)


def raising():
    def f(x):
        x.sin_()
        raise LookupError("the program's")

    compiled, x = framesmith.compile(f), torch.ones(7)

    def run():
        with pytest.raises(LookupError):
            compiled(x)

    return run


def failing():
    """A fault in the back end."""
    def backend(graph, examples):
        raise ArithmeticError("ours")

    compiled, x = framesmith.compile(lambda x: x.sin() + 1, backend=backend, options={"warn": False}), torch.ones(7)
    return lambda: compiled(x)


CASES = {
    **{kind: lambda kind=kind: forward(*KINDS[kind]) for kind in KINDS},
    **{f"{kind} trained": lambda kind=kind: training(*KINDS[kind]) for kind in KINDS},
    **{f"{mode} of {kind}": lambda kind=kind, mode=mode: forward(*KINDS[kind], mode=mode)
       for kind in ("linear", "attention") for mode in ("max-autotune", "reduce-overhead")},
    "optimiser": stepping, "break": broken, "raising": raising, "failing": failing,
}  # fmt: skip


def _autocast():
    return torch.autocast("cpu", dtype=torch.bfloat16)


@pytest.mark.parametrize("case", CASES)
def test_a_cold_compile_leaves_the_programs_state_alone(case, tmp_path, monkeypatch):
    monkeypatch.setenv("FRAMESMITH_CACHE_DIR", str(tmp_path))
    importlib.import_module("torch.utils.deterministic")
    with torch.enable_grad():
        run = CASES[case]()
        before = snapshot()
        run()
        after = snapshot()
    assert {k: (before[k], after[k]) for k in before if before[k] != after[k]} == {}


@pytest.mark.parametrize("kind", KINDS)
def test_a_cold_compile_under_other_settings_leaves_them_alone(kind, tmp_path, monkeypatch):
    monkeypatch.setenv("FRAMESMITH_CACHE_DIR", str(tmp_path))
    run = forward(*KINDS[kind])
    torch.set_default_dtype(torch.float64)
    torch.use_deterministic_algorithms(True)
    torch.set_default_device("meta")
    try:
        with _autocast():
            before = snapshot()
            run()
            after = snapshot()
    finally:
        torch.set_default_dtype(torch.float32)
        torch.use_deterministic_algorithms(False)
        torch.set_default_device(None)
    assert {k: (before[k], after[k]) for k in before if before[k] != after[k]} == {}


def test_random_numbers_after_a_cold_compile_are_eagers(tmp_path, monkeypatch):
    monkeypatch.setenv("FRAMESMITH_CACHE_DIR", str(tmp_path))
    q = torch.ones(2, 3, 40, 16)
    torch.manual_seed(0)
    framesmith.compile(F.scaled_dot_product_attention)(q, q, q)
    assert torch.rand(1) == torch.rand(1, generator=torch.Generator().manual_seed(0))
