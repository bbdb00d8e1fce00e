"""A hundred random graphs with gradients; `python -m tests.nets.random_graphs` runs as many as one likes."""

from tests.fuzz.pool import run_all
from tests.nets.random_graphs import judge
from tests.nets.random_graphs_writer import write


def test_random_graphs():
    found = list(run_all(lambda seed: judge(write(seed)), list(range(100)), jobs=2))
    assert {seed: f"{v.kind}: {v.detail}\n{write(seed)}" for seed, v in found if not v.good} == {}
    assert sum(v.captured > 0 for _, v in found) > 80


CHANGING = """
import torch
calls = []

def inputs():
    return torch.ones(2),

def program(a):
    calls.append(1)
    return a if len(calls) < 3 else a.sum(),
"""


def test_a_difference_is_found():
    assert not judge(CHANGING).good
