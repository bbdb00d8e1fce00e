"""`check`, `minify` and `bisect` on compilers with a fault made on purpose."""

import os
import subprocess
import sys
from functools import partial

import pytest
import torch

import framesmith
from framesmith.tools.child import Child, Lost, Raised
from tests.tools.faults import FAULTS, break_compiler

SECONDS = 20.0
OPTIONS = {"cache": False}
MENDED = ("sign_of_a_gradient", "off_by_one_mask")
"""Whose scripts are run without the fault, too: by an interpreter that never had it."""
BY_NAME = {fault.name: fault for fault in FAULTS}


def setup_of(fault):
    """What a child process needs to have the fault: nothing if it is forked from this one."""
    return partial(break_compiler, fault.name) if torch.cuda.is_initialized() else None


def execute(script):
    exec(compile(script, "<script>", "exec"), {})


def runs(script, seconds, setup):
    """Run a script in a process of its own; what comes of it, "" for nothing."""
    with Child(execute, setup) as child:
        try:
            child.ask(script, seconds)
        except (Lost, Raised) as error:
            return str(error)
    return ""


@pytest.fixture(params=FAULTS, ids=lambda fault: fault.name)
def fault(request, monkeypatch):
    model, *args = request.param.program()
    request.param.breaks(monkeypatch)
    yield request.param, model, args
    framesmith.reset()


def test_minify_finds_each_fault(fault):
    fault, model, args = fault
    seconds = 2.0 if fault.kind == "hang" else SECONDS
    setup = setup_of(fault)
    found = framesmith.minify(model, *args, train=fault.train, options=OPTIONS, setup=setup, seconds=seconds, slow=8.0)
    assert found.kind == fault.kind, found
    assert len(found.script.splitlines()) <= 25, found.script
    assert found.operators[1] <= min(4, found.operators[0])
    assert "load(" not in found.script
    assert runs(found.script, seconds, setup), found.script
    if fault.name in MENDED:
        subprocess.run([sys.executable, "-c", found.script], check=True, env=os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path))})


@pytest.mark.parametrize("fault", [f for f in FAULTS if f.kind == "wrong result"], ids=lambda f: f.name, indirect=True)
def test_check_names_the_operator(fault):
    fault, model, args = fault
    found = framesmith.check(model, *args, train=fault.train, options=OPTIONS)
    assert not found.ok
    assert not fault.operators or found.operator in fault.operators, found
    if fault.operators:
        assert found.place[0].endswith(("faults.py", "functional.py", "modules.py")), found


def test_there_are_twenty():
    assert len(FAULTS) >= 20
    assert len(BY_NAME) == len(FAULTS)


def test_what_is_right():
    x = torch.randn(4, 5, requires_grad=True)

    def f(a):
        return torch.softmax(a.sin() * 2, 1), a.argmax(1)

    assert framesmith.check(f, x, train=True)
    assert not framesmith.minify(f, x, train=True, slow=0.0).kind


BLAMED = {
    "sign_of_a_decomposition": "the decomposition of aten.tanh.default",
    "wrong_reduction": "the lowering of the prim amax",
    "batch_norm_folded_without_its_mean": "the pass fold_batch_norm",
    "raise_in_a_pass": "the pass dce",
    "wrong_where_two_reductions_are_fused": "the fusion of",
    "sign_of_a_gradient": "the decomposition of aten.gelu_backward.default",
    "swapped_operands_in_the_partition": "capture and autograd",
}


@pytest.mark.parametrize("fault", [BY_NAME[name] for name in BLAMED], ids=lambda f: f.name, indirect=True)
def test_bisect_says_what_is_to_blame(fault):
    fault, model, args = fault
    found = framesmith.bisect(model, *args, train=fault.train, options=OPTIONS, setup=setup_of(fault),
                              seconds=SECONDS, slow=0.0)
    assert found.verdict.kind == fault.kind
    assert any(text.startswith(BLAMED[fault.name]) for text in [*found.blamed, found.stage]), found
