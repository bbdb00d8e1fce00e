"""What ranks compile at the same time, one of them generates, and the others load."""

import copy
import multiprocessing
import time

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import framesmith
from framesmith.runtime.cache import LOCK_SECONDS, Cache
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


WIDTH = 256


def kept(folder):
    return {"cache_dir": folder, "keep_captures": True}


def captured_once(folder):
    """Train one step, and return how this rank got the code of the module and of its backward."""
    torch.manual_seed(0)
    layers = [torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU()) for _ in range(9)]
    net, seen = torch.nn.Sequential(*layers).double(), []
    other = copy.deepcopy(net)
    x = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(dist.get_rank())).double()
    dist.barrier()
    with events.on_event(seen.append):
        framesmith.compile(DistributedDataParallel(net), options=kept(folder))(x).sum().backward()
    assert not any(isinstance(e, events.Fallback) for e in seen)
    DistributedDataParallel(other)(x).sum().backward()
    for a, b in zip(net.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-9, atol=1e-12)
    return [e.outcome for e in seen if isinstance(e, events.CompileEnded) and e.function == "Sequential.forward"]


def test_one_rank_captures_for_all(world, tmp_path):
    """The other one loads the forward and each segment of the backward."""
    found = sorted(world.run(captured_once, str(tmp_path)), key=len)
    assert found[0] == ["compiled"] and len(found[1]) > 2 and {*found[1]} == {"loaded"}, found


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x):
        return x + torch.nn.functional.gelu(self.linear(x))


class Broken(torch.nn.Module):
    """Its frame breaks behind each layer; of its two results one is used."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(Layer() for _ in range(2))
        self.double()

    def forward(self, x):
        for layer in self.layers:
            x = layer(x * 2)
            time.sleep(0)
        return x.sin(), x.cos()


def sharded(net):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in net.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(net, mesh=mesh)


WAYS = {"DDP": DistributedDataParallel, "FSDP2": sharded}


def frames(folder, way):
    """Train two steps, and return how this rank got the code of each part of each frame."""
    net, other = WAYS[way](Broken()), WAYS[way](Broken())
    x, seen = torch.full((4, 8), 0.1 + dist.get_rank()).double(), []
    dist.barrier()
    call = framesmith.compile(net, options=kept(folder))
    for _ in range(2):
        with events.on_event(seen.append):
            call(x)[0].sum().backward()
        other(x)[0].sum().backward()
    assert not any(isinstance(e, events.Fallback) for e in seen)
    for a, b in zip(net.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-9, atol=1e-12)
    began = {e.compile: e.why for e in seen if isinstance(e, events.CompileBegan)}
    return [(e.function, began[e.compile], e.outcome) for e in seen if isinstance(e, events.CompileEnded)]


@pytest.mark.parametrize("way", WAYS)
def test_one_rank_captures_frames_that_break(world, tmp_path, way):
    """And one compiles a backward that is begun when it is known which results have gradients."""
    found = world.run(frames, str(tmp_path), way)
    captures = [[row for row in rows if row[1] != "backward"] for rows in found]
    for rows in zip(*captures, strict=True):
        assert len({row[:2] for row in rows}) == 1 and [row[2] for row in rows].count("compiled") <= 1, found
    made = [row for rows in found for row in rows if row[1] == "backward" and row[2] == "compiled"]
    assert len(made) == 1 and {row[2] for rows in found for row in rows} == {"compiled", "loaded"}, found


def dependent(folder, how):
    """Call a function of which each rank needs another variant."""
    rank, x = dist.get_rank(), torch.ones(4)
    fn = VARIANTS[how]
    dist.barrier()
    if how == "never" and rank == 0:
        return
    call, given = framesmith.compile(fn, options=kept(folder)), (x, rank) if how == "argument" else (x,)
    for _ in range(2):
        if how == "raises" and rank == 0:
            with pytest.raises(ValueError, match="none"):
                call(*given)
        else:
            torch.testing.assert_close(call(*given), fn(*given))


def by_rank(x):
    return x * 2 + dist.get_rank()


def by_argument(x, rank):
    return x * 2 + rank


def by_branch(x):
    if dist.get_rank() == 0:
        return x * 2
    return x * 3 + dist.get_rank()


def that_raises(x):
    if dist.get_rank() == 0:
        raise ValueError("none")
    return x * 2 + dist.get_rank()


def that_breaks(x):
    y = x * 2
    if dist.get_rank() == 0:
        time.sleep(0)
    return y + dist.get_rank()


VARIANTS = {"rank": by_rank, "argument": by_argument, "branch": by_branch, "raises": that_raises,
            "breaks": that_breaks, "never": by_rank}


@pytest.mark.parametrize("how", VARIANTS)
def test_programs_that_depend_on_the_rank(world, tmp_path, how):
    began = time.monotonic()
    world.run(dependent, str(tmp_path), how)
    assert time.monotonic() - began < LOCK_SECONDS / 2


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
