"""Training loops as people write them: the losses are eager's, step by step, also after a clean resume."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import framesmith

STEPS = 50
GENERATOR = torch.Generator().manual_seed(0)
DATA = TensorDataset(torch.randn(400, 3, 8, 8, generator=GENERATOR), torch.randint(0, 5, (400,), generator=GENERATOR))


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                         nn.Dropout(0.1),
                         nn.Linear(8 * 16, 5))


class Run:
    """A model, its optimiser and schedule, and where they are; `compiled`: the model's forward is."""

    def __init__(self, compiled: bool) -> None:
        self.model = network()
        self.call = framesmith.compile(self.model) if compiled else self.model
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, STEPS)

    def step(self, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> float:
        """One optimiser step over several batches, whose gradients add up."""
        total = 0.0
        for x, y in batches:
            loss = F.cross_entropy(self.call(x), y) / len(batches)
            loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.schedule.step()
        return total

    def save(self, path: Path) -> None:
        parts = self.call.state_dict(), self.optimizer.state_dict(), self.schedule.state_dict(), torch.get_rng_state()
        torch.save(parts, path)

    def resume(self, path: Path) -> None:
        model, optimizer, schedule, random = torch.load(path, weights_only=True)
        self.call.load_state_dict(model)
        self.optimizer.load_state_dict(optimizer)
        self.schedule.load_state_dict(schedule)
        torch.set_rng_state(random)


def batches() -> list[list[tuple[torch.Tensor, torch.Tensor]]]:
    """For each step, two batches, read by workers."""
    loader = DataLoader(DATA, batch_size=4, num_workers=2)
    every = list(loader)
    return list(zip(every[::2], every[1::2], strict=True))  # type: ignore[arg-type]


def losses(run: Run, steps: list) -> list[float]:
    return [run.step(list(step)) for step in steps]


def test_a_plain_loop(tmp_path: Path) -> None:
    steps = batches()
    assert len(steps) == STEPS
    torch.manual_seed(1)
    want = losses(Run(False), steps)
    torch.manual_seed(1)
    run = Run(True)
    got = losses(run, steps[:30])
    run.save(tmp_path / "half")
    again = Run(True)
    again.resume(tmp_path / "half")
    got += losses(again, steps[30:])
    assert got == pytest.approx(want, rel=1e-4)


def test_a_copy_trains_on_its_own() -> None:
    run = Run(True)
    x, y = DATA[:4]
    F.cross_entropy(run.call(x), y).backward()
    twin = copy.deepcopy(run.call)
    twin.zero_grad()
    torch.manual_seed(3)
    F.cross_entropy(twin(x), y).backward()
    plain = copy.deepcopy(run.model)
    plain.zero_grad()
    torch.manual_seed(3)
    F.cross_entropy(plain(x), y).backward()
    for p, q in zip(twin.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-6)
