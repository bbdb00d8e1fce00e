"""accelerate: `Accelerator` compiles in `prepare`, whole or by repeated blocks, and unwraps and saves as without."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import framesmith

accelerate = pytest.importorskip("accelerate")
STEPS = 10


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 5)
        self.blocks = nn.ModuleList([Block() for _ in range(4)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """Accelerate keeps its state for the process."""
    yield
    accelerate.state.AcceleratorState._reset_state(True)


def train(folder: Path, **how: Any) -> tuple[list[float], Any, Any]:
    accelerate.state.AcceleratorState._reset_state(True)
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2, **how)
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = torch.utils.data.TensorDataset(torch.randn(STEPS * 8, 8), torch.randint(0, 5, (STEPS * 8,)))
    model, optimizer, loader = accelerator.prepare(model, optimizer, torch.utils.data.DataLoader(data, batch_size=8))
    losses = []
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = F.cross_entropy(model(x), y)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    accelerator.save_state(str(folder))
    return losses, accelerator, model


KINDS = {"by name": lambda: {"dynamo_backend": "inductor"},
         "plugin": lambda: {"dynamo_plugin": accelerate.utils.TorchDynamoPlugin(
             backend="inductor", mode="max-autotune", fullgraph=True, dynamic=False)},
         "regions": lambda: {"dynamo_plugin": accelerate.utils.TorchDynamoPlugin(
             backend="inductor", use_regional_compilation=True)}}


@pytest.mark.parametrize("kind", KINDS)
def test_the_accelerator(kind: str, tmp_path: Path, graphs: list[int]) -> None:
    want, _, plain = train(tmp_path / "plain")
    with framesmith.installed():
        got, accelerator, model = train(tmp_path / "fast", **KINDS[kind]())
        assert got == pytest.approx(want, rel=1e-4)
        # first and last layer and, four times, a block: by regions
        assert len(graphs) == (1 if kind != "regions" else 6), graphs
        inner = accelerator.unwrap_model(model, keep_torch_compile=False)
        assert isinstance(inner, Net) and list(inner.state_dict()) == list(plain.state_dict())
        accelerator.save_model(model, str(tmp_path / "model"))
        before = {name: value.clone() for name, value in model.state_dict().items()}
        with torch.no_grad():
            for p in model.parameters():
                p.zero_()
        accelerator.load_state(str(tmp_path / "fast"))
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        assert torch.allclose(model(torch.ones(2, 8)), inner(torch.ones(2, 8)), atol=1e-6)
    again = Net()
    accelerate.load_checkpoint_in_model(again, str(tmp_path / "model"))
    assert all(torch.equal(value, before[name]) for name, value in again.state_dict().items())
