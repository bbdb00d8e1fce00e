"""Passes, decompositions and lowerings that a program adds."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import framesmith
from framesmith.exc import FramesmithError
from framesmith.graph import patterns
from framesmith.passes import IDENTITIES, REGISTERED, Context
from framesmith.pipeline import PASSES

PACKAGE = Path(framesmith.__file__).parent
X = torch.randn(5)


@pytest.fixture
def registered():
    """Functions to be taken back after a test."""
    functions = []
    yield functions.append
    for function in functions:
        framesmith.unregister(function)
    assert not REGISTERED and not IDENTITIES


def externs(fn, *args):
    return framesmith.explain(fn)(*args).records[0].report.externs


def test_a_pass_runs_behind_the_one_that_it_names(registered):
    seen = []

    @framesmith.register_pass(after="fold_batch_norm")
    def doubles(graph, context):
        seen.append(type(context))
        for node in graph.nodes:
            if node.target is torch.ops.aten.mul.Tensor:
                node.args = (node.args[0], 4)

    registered(doubles)
    assert torch.equal(framesmith.compile(lambda x: x.abs() * 2)(X), X.abs() * 4) and seen == [Context]
    framesmith.unregister(doubles)
    assert torch.equal(framesmith.compile(lambda x: x.abs() * 2)(X), X.abs() * 2)


@pytest.mark.parametrize(("form", "after"), (("prims", "decompose"), ("loops", "lower"), ("program", "schedule")))
def test_a_pass_of_each_form(registered, form, after):
    seen = []

    @framesmith.register_pass(after, form)
    def look(subject):
        seen.append(type(subject).__name__)

    registered(look)
    framesmith.compile(lambda x: x.cos() * 3)(X)
    assert seen == [{"prims": "Graph", "loops": "LoopGraph", "program": "Program"}[form]]


def test_an_unknown_pass_is_refused():
    with pytest.raises(FramesmithError, match="no pass 'dec' of the form 'aten'; there are cse, dce"):
        framesmith.register_pass(after="dec")
    with pytest.raises(FramesmithError, match="no pass 'dce' of the form 'loops'"):
        framesmith.register_pass(after="dce", form="loops")


def test_verify_names_the_pass_that_broke_a_graph(registered):
    @framesmith.register_pass(after="dce")
    def breaks(graph):
        first, second = [node for node in graph.nodes if node.op == "call_function"]
        second.append(first)  # behind its user

    registered(breaks)
    fn = framesmith.compile(lambda x: x.sin() * 2, options={"verify": True, "suppress_errors": False})
    with pytest.raises(FramesmithError, match="after the pass breaks: .* before it is defined"):
        fn(X)


def test_a_decomposition_is_fused_and_taken_back(registered):
    def fn(x):
        return torch.special.spherical_bessel_j0(x) + 1

    def rule(b, x):
        return b.sin(x) / x

    (before,) = externs(fn, X)
    framesmith.register_decomposition(torch.ops.aten.special_spherical_bessel_j0.default)(rule)
    registered(rule)
    framesmith.reset()
    assert externs(fn, X) == () and torch.allclose(framesmith.compile(fn)(X), fn(X))
    framesmith.unregister(rule)
    framesmith.reset()
    assert externs(fn, X) == (before,)


def test_a_value_that_a_rule_reads_is_part_of_the_cache_key(registered):
    def fn(x):
        return torch.special.spherical_bessel_j0(x) + 1

    def by(factor):
        return lambda b, x: x * factor

    class Held:
        value = 2.0

    for factor in (2.0, 3.0):
        rule = framesmith.register_decomposition(torch.ops.aten.special_spherical_bessel_j0.default)(by(factor))
        framesmith.reset()
        assert torch.allclose(framesmith.compile(fn)(X), X * factor + 1)
        (plain,) = IDENTITIES
        framesmith.unregister(rule)
        again = framesmith.register_decomposition(torch.ops.aten.special_spherical_bessel_j0.default)(by(factor))
        assert {plain} == set(IDENTITIES)
        framesmith.unregister(again)
    for _ in range(2):  # what it holds is not known to be the same
        registered(framesmith.register_decomposition(torch.ops.aten.special_spherical_bessel_j0.default)(by(Held)))
    assert len(set(IDENTITIES)) == 2


def test_a_pattern_without_conditions_is_part_of_the_cache_key(registered):
    def identity(pattern, new):
        registered(framesmith.register_pass(after="dce", name="changes")(
            lambda graph: patterns.rewrite(graph, {pattern: new})))
        return IDENTITIES[-1]

    a, b = patterns.tensors("a b")
    assert len({identity(x, a) for x in (-a, patterns.p.neg(a, ...), a + b, b + a, a - b, a * b | a / b)}) == 6
    assert identity(-a, a) == identity(-patterns.tensors("a")[0], a) != identity((-a).where(bool), a)
    assert identity((-a).where(bool), a) != identity((-a).where(bool), a)


def test_registrations_are_taken_back_in_any_order(registered):
    func = torch.ops.aten.special_spherical_bessel_j0.default
    first, second = (framesmith.register_decomposition(func)(rule)
                     for rule in (lambda b, x: x * 2.0, lambda b, x: x * 3.0))
    for function, factor in ((None, 3.0), (first, 3.0), (second, None)):
        if function is not None:
            framesmith.unregister(function)
        framesmith.reset()
        want = torch.special.spherical_bessel_j0(X) if factor is None else X * factor
        assert torch.allclose(framesmith.compile(lambda x: torch.special.spherical_bessel_j0(x) + 1)(X), want + 1)


def test_a_lowering_may_leave_a_prim_to_eager(registered):
    row = framesmith.register_lowering("erfinv")(lambda context, spec, x: None)
    registered(row)
    assert externs(lambda x: torch.erfinv(x) + 1, X) == ("aten::erfinv",)
    framesmith.unregister(row)
    framesmith.reset()
    assert externs(lambda x: torch.erfinv(x) + 1, X) == ()


def test_names_of_passes_are_their_own():
    assert len({one.name for one in PASSES}) == len(PASSES)


def test_a_scalar_operator_is_one_row(tmp_path):
    """Without its row, the operator is a call of eager's kernel, and all else is as before."""
    shutil.copytree(PACKAGE, tmp_path / "framesmith", ignore=shutil.ignore_patterns("*.so", "__pycache__", "csrc"))
    for library in PACKAGE.glob("*.so"):
        (tmp_path / "framesmith" / library.name).symlink_to(library)
    table = tmp_path / "framesmith" / "prims" / "scalars.py"
    text, rows = re.subn(r'^_op\("atan2".*\n', "", table.read_text(), flags=re.MULTILINE)
    assert rows == 1
    table.write_text(text)
    program = tmp_path / "app.py"
    program.write_text("import torch, framesmith\n"
                       "fn = lambda x: torch.atan2(x, x + 1).hypot(x)\n"
                       "x = torch.randn(5)\n"
                       "assert torch.allclose(framesmith.compile(fn)(x), fn(x))\n"
                       "print(framesmith.__file__, *framesmith.explain(fn)(x).records[0].report.externs)\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, cwd=tmp_path, timeout=300,
                          env={**os.environ, "PYTHONPATH": path})
    assert done.stdout.split() == [str(tmp_path / "framesmith" / "__init__.py"), "aten::atan2"], done.stderr
