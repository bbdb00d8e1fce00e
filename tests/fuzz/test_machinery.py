"""The parts of the fuzzer: programs are the same on every machine, differences are seen, crashes are findings, programs
become small."""

import os
import signal
import subprocess
import sys

import pytest
import torch

from tests.fuzz.pool import run_all
from tests.fuzz.program import Options, generate
from tests.fuzz.reduce import reduce
from tests.fuzz.runner import Verdict, check, run
from tests.fuzz.snapshot import difference, freeze

CALLS = """
from tests.fuzz.prelude import EVENTS, note

def main(xs, k):
    xs.append(k)
    print(k)
    note(k)
    if k == 2:
        raise ValueError(k)
    return xs, k

def arguments(call):
    return ([], call), {}
"""


TEXT = "from tests.fuzz.program import *; print(''.join(generate(seed, Options('open')) for seed in range(20)), end='')"


def test_a_seed_is_one_program():
    """Whatever the process; and all are Python."""
    texts = {subprocess.run([sys.executable, "-c", TEXT], env={**os.environ, "PYTHONHASHSEED": s}, capture_output=True,
                            text=True).stdout
             for s in ("1", "2")}
    mine = [generate(seed, Options("open")) for seed in range(20)]
    assert texts == {"".join(mine)} and len(set(mine)) == 20
    for text in mine:
        compile(text, "<program>", "exec")


def test_a_run_sees_everything():
    seen = run(CALLS, None)
    assert [x.printed for x in seen] == [f"{k}\n" for k in range(5)]
    assert type(seen[2].error) is ValueError and seen[2].lines == [("main", 9)]
    assert seen[1].outcome == ("tuple", ("again", 0), ("int", 1))
    assert [x[2][2:] for x in seen[1].world[1][2:] if x[1] == ("str", "EVENTS")] == [(("int", 1),)]
    assert check(CALLS).kind == "same"


X = torch.ones(3)
PAIRS = [
    ([1, 2], [2, 1]), (1, True), (1.0, 1), (0.0, -0.0), ([X, X], [X, X.clone()]), ([X, X[:]], [X, X.clone()]),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    (X, X.double()), (X, torch.ones(3, 1)), (X, X.as_strided((3,), (0,))), (ValueError(1), ValueError(2)),
    (iter([1]), iter([])),
    ((1,), [1]),
    (X, torch.nn.Parameter(X)), (lambda a=1: a, lambda a=2: a), ({1}, {2}), (KeyError("a"), "a"),
]


@pytest.mark.parametrize("a, b", PAIRS)
def test_differences_are_seen(a, b):
    assert difference(freeze(a), freeze(b))


@pytest.mark.parametrize("a", [[1, [X, X]], {"a": float("nan")}, torch.tensor([float("nan"), 1.0]), ValueError("x"),
                               {3, 1, 2}, None])
def test_equal_values_do_not_differ(a):
    assert not difference(freeze(a), freeze(a))


def _job(item):
    if item == 2:
        os.kill(os.getpid(), signal.SIGSEGV)
    return Verdict("same", str(item))


def test_a_crash_is_a_finding_and_the_rest_goes_on():
    found = dict(run_all(_job, list(range(5)), jobs=2, batch=3))
    assert [found[k].kind for k in range(5)] == ["same", "same", "crash", "same", "same"]
    assert "SIGSEGV" in found[2].detail


def test_reduction_keeps_what_fails():
    text = (generate(3, Options("none"))
            + "\ndef also():\n    for i in range(3):\n        if i:\n            bad = [i, 2 + 3]\n")
    small = reduce(text, lambda source: Verdict("different",
                                                "call 0: outcome.1: x") if "bad" in source else Verdict("same"))
    assert len(small.splitlines()) < 12 and "bad" in small
