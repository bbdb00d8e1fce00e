"""Collectives that fail raise eager's error in the user's function, and nothing is sent twice."""

import traceback
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import framesmith

from .test_collectives import inputs
from .world import World


def times_out(x, group):
    y = x * 2
    dist.all_reduce(y, group=group)  # here
    return y + 1


def raised(fn, *args):
    """Type, the program's last function and line in it, message and notes of what a call raises."""
    try:
        fn(*args)
    except Exception as error:
        last = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == __file__][-1]
        return type(error).__name__, (last.name, last.line), str(error), error.__notes__
    raise AssertionError("nothing is raised")


def alone():
    """Rank 1 does not take part in the second call, which times out in rank 0."""
    group = dist.new_group([0, 1], timeout=timedelta(seconds=2))
    compiled = framesmith.compile(times_out, fullgraph=True)
    compiled(inputs(), group)
    if dist.get_rank() == 0:
        kind, place, text, notes = raised(compiled, inputs(), group)
        line = next(k for k, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "# here" in text)
        assert "all_reduce" in notes[0] and f"{__file__}:{line} in times_out" in notes[0], notes
        assert kind == "RuntimeError" and "imed out" in text, (kind, text)
        assert place == ("times_out", "return y + 1"), place  # where the captured code ends


def test_a_timeout_is_raised_in_the_users_function():
    world = World(timeout=30)
    try:
        world.run(alone)
    finally:
        world.close()


def picks(x, index):
    dist.all_reduce(x)
    return x[index]


def sends_once():
    """An index that is out of range is found behind the collective: eager does not run it again."""
    compiled = framesmith.compile(picks, fullgraph=True)
    compiled(inputs(), torch.tensor([1]))
    x = inputs()
    with pytest.raises(IndexError):
        compiled(x, torch.tensor([7]))
    y = torch.ones(2)
    dist.all_reduce(y)
    assert y.eq(2).all()


def test_a_graph_that_fails_has_communicated_once(world):
    world.run(sends_once)


def of_constants():
    """A collective of parameters alone runs in each call."""
    model = torch.nn.Linear(4, 4).requires_grad_(False)

    def gathered(x):
        whole = x.new_empty(8, 4)
        dist.all_gather_into_tensor(whole, model.weight)
        return x @ whole.t() * 0 + whole.sum()

    compiled = framesmith.compile(gathered, fullgraph=True)
    for k in range(3):
        other = model.weight * (1 + dist.get_rank() + k)
        model.weight.data.copy_(other)
        torch.testing.assert_close(compiled(torch.ones(2, 4)), gathered(torch.ones(2, 4)))


def test_a_collective_of_parameters_is_not_evaluated_once_for_all(world):
    world.run(of_constants)


def after_another_group():
    compiled = framesmith.compile(lambda x: x * dist.get_world_size(), fullgraph=True)
    seen = [compiled(torch.ones(1)).item()]
    rank, store = dist.get_rank(), dist.distributed_c10d._get_default_store()
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=dist.PrefixStore(f"alone{rank}", store), rank=0, world_size=1)
    seen.append(compiled(torch.ones(1)).item())
    assert seen == [2, 1]


def test_the_default_group_is_guarded():
    world = World()
    try:
        world.run(after_another_group)
    finally:
        world.close()


def counted():
    """What is captured, and given up at a break, has not communicated."""
    calls = []

    def program(x):
        y = x + 1
        dist.all_reduce(y)
        framesmith.graph_break()
        calls.append(1)
        return y * 2

    x = inputs()
    before = dist.distributed_c10d._get_default_group()._get_sequence_number_for_group()
    framesmith.compile(program)(x)
    assert dist.distributed_c10d._get_default_group()._get_sequence_number_for_group() == before + 1


def test_a_capture_that_is_not_kept_has_not_communicated(world):
    world.run(counted)
