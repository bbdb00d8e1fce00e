"""What ranks compile at the same time, one of them generates, and the others load."""

import multiprocessing
import time

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import framesmith
from framesmith.runtime.cache import Cache
from framesmith.util import events

STAGES = ("decompose", "lower", "schedule", "codegen")


def trained(folder):
    """Train one step, and return the stages of this rank that generated code, by graph, with the gradients."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 1)).double()
    seen = []
    dist.barrier()
    with events.on_event(seen.append):
        call = framesmith.compile(DistributedDataParallel(net), options={"cache_dir": folder})
        call(torch.full((4, 8), 1.0 + dist.get_rank()).double()).sum().backward()
    assert not any(isinstance(e, events.Fallback) for e in seen)
    graphs = [e for e in seen if isinstance(e, events.GraphCompiled)]
    made = [span.stage for e in seen if isinstance(e, events.CompileEnded) for span in e.spans if span.stage in STAGES]
    return len(graphs), sorted(made), [p.grad for p in net.parameters()]


def test_one_rank_generates_code(world, tmp_path):
    found = world.run(trained, str(tmp_path))
    graphs, alone = found[0][0], world.run(trained, str(tmp_path / "other"))
    assert graphs >= 2 and {count for count, _, _ in found} == {graphs}
    for runs in (found, alone):
        made = [name for _, names, _ in runs for name in names]
        assert {made.count(name) for name in STAGES} == {graphs}, "each graph once, in all ranks together"
    torch.testing.assert_close(found[0][2], found[1][2])


def hold(folder, ready):
    with Cache(folder).alone("ab" * 24):
        ready.set()
        time.sleep(600)


def test_a_rank_that_ends_while_it_generates_holds_up_no_other(tmp_path):
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=hold, args=(str(tmp_path), ready), daemon=True)
    process.start()
    assert ready.wait(60)
    process.kill()
    began = time.monotonic()
    with Cache(tmp_path).alone("ab" * 24):
        assert time.monotonic() - began < 5


@pytest.mark.parametrize("folder", ["/proc/self", "/dev/null/none"])
def test_a_folder_that_cannot_be_written_costs_no_error(folder):
    with Cache(folder).alone("ab" * 24):
        pass
