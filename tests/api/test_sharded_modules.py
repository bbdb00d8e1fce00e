"""Modules with sharded parameters (`fully_shard`): hooks run in plain Python, what lies between is compiled."""

import subprocess
import sys

PROGRAM = """
import tempfile
import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
import framesmith
from framesmith.testing import CompileCounter

def made(*args, **kwargs):
    raise AssertionError("a new object by FSDPModule.__new__")

def gradients(module):
    return [p.grad.to_local().clone() for p in module.parameters()]

with tempfile.TemporaryDirectory() as folder:
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=0, world_size=1)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    fully_shard(module[0])
    fully_shard(module)
    x = torch.randn(3, 4)
    FSDPModule.__new__ = made
    counter = CompileCounter()
    compiled = framesmith.compile(module, backend=counter)
    assert isinstance(compiled, FSDPModule) and type(compiled).__name__ == type(module).__name__
    assert compiled._orig_mod is module
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
    for step in range(3):
        found = []
        for fn in (module, compiled):
            optimiser.zero_grad()
            out = fn(x)
            out.square().sum().backward()
            found.append([out.detach(), *gradients(module)])
        torch.testing.assert_close(*found)
        optimiser.step()
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), module(x))
    assert counter.frame_count > 0
    told = framesmith.explain(framesmith.compile(module))(x)
    assert told.graph_count == 2 and not told.refusals, str(told)
    assert [reason for reason in told.break_reasons if "hooks of fully_shard" not in reason] == [], told.break_reasons
    try:
        framesmith.compile(module, fullgraph=True)(x)
    except framesmith.exc.Unsupported as error:
        assert "hooks of fully_shard" in str(error), error
    else:
        raise AssertionError("fullgraph took a hook that is not captured")
    torch.testing.assert_close(compiled(x), module(x))
    torch.distributed.destroy_process_group()
    print("done")
"""


def test_fully_sharded_modules():
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0 and done.stdout.endswith("done\n"), done.stderr
