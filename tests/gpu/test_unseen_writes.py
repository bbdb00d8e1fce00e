"""Writes to weights on a device that leave the version counter as it is."""

import pytest
import torch
from torch import nn
from torch.utils import dlpack

import framesmith

HOOKED = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)
pytestmark = [pytest.mark.gpu,
              pytest.mark.skipif(not HOOKED, reason="storages of PyTorch before 2.13 have no hook for accesses")]

WRITES = {
    "row": lambda w: w.data[-1].zero_(), "element": lambda w: w.data.view(-1)[5].fill_(3),
    "negative": lambda w: w.data[1:3].neg_(),
    "dlpack": lambda w: dlpack.from_dlpack(w.detach()).view(-1)[3].fill_(5),
    "storage": lambda w: w.untyped_storage().__setitem__(4 * 11 + 3, 65), "version": lambda w: w.add_(0.1),
}  # fmt: skip


@torch.no_grad()
def test_the_next_call_sees_it():
    net = nn.Sequential(nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16), nn.Flatten(), nn.Linear(784, 64)).cuda().eval()
    x = torch.randn(4, 8, 9, 9, device="cuda")
    older = [p.data for p in net.parameters()]
    compiled = framesmith.compile(net)
    with torch.autocast("cuda", torch.bfloat16):
        for name, write in {"nothing": lambda w: None, **WRITES}.items():
            for k in (0, -2):
                write(list(net.parameters())[k])
                torch.testing.assert_close(compiled(x), net(x), rtol=2e-2, atol=5e-2, msg=lambda text,
                                           name=name: f"{name}: {text}")
                older[k].view(-1)[13] += 1
                torch.testing.assert_close(compiled(x), net(x), rtol=2e-2, atol=5e-2, msg=lambda text,
                                           name=name: f"after {name}: {text}")
