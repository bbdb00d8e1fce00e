"""Collectives within one graph give what they give in eager, in each process."""

import linecache
import traceback
import warnings

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as fc
from torch.distributed.device_mesh import init_device_mesh

import framesmith
from framesmith.testing import CompileCounter

PROGRAMS = {}


def program(fn):
    """A program of one tensor of [4, 6], which is another one in each process."""
    PROGRAMS[fn.__name__] = fn
    return fn


@program
def sums(x):
    y = x * 2
    dist.all_reduce(y)
    return y + 1


@program
def kinds_of_reductions(x):
    out = []
    for op in (dist.ReduceOp.MAX, dist.ReduceOp.MIN, dist.ReduceOp.PRODUCT, dist.ReduceOp.SUM):
        y = x.clone()
        dist.all_reduce(y, op=op)
        out.append(y)
    return out


@program
def in_place_of_an_input(x):
    dist.all_reduce(x)
    return x * 3


@program
def part_of_a_tensor(x):
    y = x * 3
    dist.all_reduce(y[1:3])
    return y


@program
def asynchronous(x):
    y, z = x * 2, x + 1
    works = [dist.all_reduce(y, async_op=True), dist.broadcast(z, src=1, async_op=True)]
    other = (x * x).relu() - 1
    assert all(work.wait() and work.is_completed() for work in works)
    return y + other, z


@program
def nobody_waits(x):
    y = x * 2
    dist.all_reduce(y, async_op=True).wait()
    return x + 1


@program
def broadcasts_and_reduces(x):
    y, z = x + 1, x + 2
    dist.broadcast(y, 1)
    dist.reduce(z, 0, op=dist.ReduceOp.MAX)
    return y, z if dist.get_rank() == 0 else None


@program
def gathers(x):
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x)
    whole = x.new_empty(8, 6)
    dist.all_gather_into_tensor(whole, x)
    return parts, whole


@program
def scatters(x):
    part, parts = x.new_empty(2, 6), torch.empty(4, 6)
    dist.reduce_scatter_tensor(part, x * 2)
    dist.all_to_all_single(parts, x)
    return part, parts


@program
def operands_last_until_they_are_sent(x):
    x = (x * 100).long().repeat(20000, 1)
    y = x * 2
    whole = y.new_empty(160000, 6)
    dist.all_gather_into_tensor(whole, y)
    other = (x + 1).cumsum(0) + 1
    return other.cumsum(1).sum(1), whole


@program
def uneven_parts(x):
    rank = dist.get_rank()
    sent, received = ([1, 3], [1, 2]) if rank == 0 else ([2, 2], [3, 2])
    out = x.new_empty(sum(received), 6)
    dist.all_to_all_single(out, x, received, sent)
    return out


@program
def rank_and_size(x):
    return x * dist.get_rank() + dist.get_world_size() + dist.get_rank(dist.group.WORLD)


@program
def equal_collectives_are_two(x):
    y, z = x.clone(), x.clone()
    dist.all_reduce(y)
    dist.all_reduce(z)
    return y, z


@program
def functional(x):
    group = dist.group.WORLD
    y = fc.all_reduce(x, "sum", group)
    gathered = fc.all_gather_tensor(y, 1, group)
    part = fc.reduce_scatter_tensor(gathered, "sum", 0, group)
    moved = fc.all_to_all_single(x, [2, 2], [2, 2], group)
    return y * 2, gathered + 1, part * 3, moved * 3, fc.broadcast(x, 0, group) + 1


def inputs():
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(7 + dist.get_rank()), device="cpu")
    return x.to(torch.get_default_device())


def same(a, b):
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(same, a, b))
    return a is b or a.shape == b.shape and a.stride() == b.stride() and torch.equal(a, b)


def compare(name):
    fn = PROGRAMS[name]
    compiled = framesmith.compile(fn, fullgraph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        for _ in range(3):
            given, other = inputs(), inputs()
            assert same(compiled(given), fn(other)) and torch.equal(given, other)
    assert torch._C._distributed_c10d._get_work_registry_size() == 0


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_eager(world, name):
    world.run(compare, name)


def of_another_group():
    one, all_of_us = dist.new_group([0]), dist.new_group([0, 1])

    def program(x, group):
        y = x + dist.get_rank(group)
        dist.all_reduce(y, group=group)
        return y

    counter = CompileCounter()
    compiled = framesmith.compile(program, backend=counter)
    x = inputs()
    for group in (all_of_us, dist.group.WORLD, all_of_us):
        assert torch.equal(compiled(x, group), program(x, group))
    assert counter.frame_count == 2, counter.frame_count
    if dist.get_rank() == 0:
        assert torch.equal(compiled(x, one), x)
    dist.barrier()


def test_groups_are_guarded(world):
    world.run(of_another_group)


def of_a_mesh():
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))

    def program(x, mesh):
        y = x * mesh.size() + mesh.get_local_rank()
        dist.all_reduce(y, group=mesh.get_group("tp"))
        return y

    x = inputs()
    assert torch.equal(framesmith.compile(program, fullgraph=True)(x, mesh), program(x, mesh))


def test_meshes(world):
    world.run(of_a_mesh)


def breaks():
    def program(x):
        y = x * 2
        dist.barrier()
        told = [None, None]
        dist.all_gather_object(told, dist.get_rank())
        return y + sum(told)

    x = inputs()
    assert torch.equal(framesmith.compile(program)(x), program(x))


def test_barriers_and_objects_break(world):
    world.run(breaks)


def works_that_cross():
    """A work from outside is waited for in each call, and one from inside is a work outside."""
    compiled = framesmith.compile(lambda y, work: (y * 2, work.wait(), y + 1)[::2])

    def begins(x):
        y = x + 1
        return y, dist.all_reduce(y, async_op=True)

    for _ in range(3):
        x = inputs()
        y, z = x.clone(), x.clone()
        compiled(y, dist.all_reduce(y, async_op=True))
        dist.all_reduce(z)
        assert torch.equal(y, z)
        value, work = framesmith.compile(begins)(x)
        expected, other = begins(x)
        assert type(work) is dist.Work and work.wait() and other.wait() and torch.equal(value, expected)


def test_works_cross_the_border(world):
    world.run(works_that_cross)


def refused():
    def program(x):
        y = x.clone()
        dist.all_reduce(y.t())
        return y

    def raised(fn):
        try:
            fn(inputs())
        except Exception as error:
            line = traceback.extract_tb(error.__traceback__)
            return type(error), str(error), [linecache.getline(f.filename, f.lineno) for f in line
                                             if f.filename == __file__][-1]
        return None

    assert raised(framesmith.compile(program)) == raised(program)


def test_what_eager_refuses(world):
    world.run(refused)
