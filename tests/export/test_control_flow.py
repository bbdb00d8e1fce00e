"""Exported branches, loops and scans: they run, print as Python that runs, are saved and loaded."""

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch._higher_order_ops.scan import scan

import framesmith


class Declared(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda v: self.one(v).relu(), lambda v: self.other(v) * 2, (x,))


class Plain(nn.Module):
    def forward(self, x):
        if x.mean() > 0:
            y = x.softmax(-1)
            return y * x.shape[0]
        return x - x.shape[0]


class Until(nn.Module):
    def forward(self, x):
        y, n = x.abs() + 0.1, torch.zeros((), dtype=torch.long)
        while y.sum() < 50:
            y, n = y * 2, n + 1
        return y, n


class Scanned(nn.Module):
    def forward(self, x):
        def step(carry, v):
            carry = (carry + v).tanh()
            return carry, carry * 2

        return scan(step, torch.zeros(4), x)


class Nested(nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            if x.max() > 1:
                return torch.nn.functional.layer_norm(x, (4,))
            return x.view(-1, 2, 2).flatten(1) * 2
        return x.flatten().view(-1, 4).neg()


MODELS = [Declared, Plain, Until, Nested]
SIZES = (3, 5, 2)


def inputs(n):
    return [torch.rand(n, 4), -torch.rand(n, 4), torch.rand(n, 4) * 3]


def namespace(program):
    space = {}
    exec(str(program), space)
    return space


@pytest.mark.parametrize("operators", ["core", "prims", "aten"])
@pytest.mark.parametrize("model", MODELS)
def test_control_flow_is_exported(model, operators, tmp_path):
    model = model().eval()
    program = framesmith.export(model, inputs(3)[:1], dynamic_shapes=({0: framesmith.Dim("n", min=2)},),
                                operators=operators)
    program.verify()
    program.save(tmp_path / "program.fs")
    loaded = framesmith.load(tmp_path / "program.fs")
    assert not program.diff(loaded)
    printed = namespace(program)["forward"]
    for n in SIZES:
        for x in inputs(n):
            with torch.no_grad():
                want = model(x)
            torch.testing.assert_close(program(x), want)
            torch.testing.assert_close(loaded(x), want)
            given = [x if i.kind == "input" else program.state[i.target].detach() for i in program.inputs]
            found = printed(*given)
            torch.testing.assert_close(found if isinstance(want, tuple) else found[0], want)


def test_scans_are_exported(tmp_path):
    model = Scanned()
    program = framesmith.export(model, (torch.rand(140, 4),), dynamic_shapes=({0: framesmith.Dim("n", min=2)},))
    program.save(tmp_path / "program.fs")
    loaded = framesmith.load(tmp_path / "program.fs")
    for n in (140, 200, 4):
        x = torch.rand(n, 4)
        torch.testing.assert_close(program(x), model(x))
        torch.testing.assert_close(loaded(x), model(x))
    assert len(program.graph.nodes) < 20


def test_a_process_without_the_source_runs_it(tmp_path):
    model = Declared().eval()
    program = framesmith.export(model, inputs(3)[:1])
    program.save(tmp_path / "program.fs")
    x = inputs(3)[0]
    torch.save({"x": x, "y": model(x).detach()}, tmp_path / "pair.pt")
    code = ("import sys, torch, framesmith; p = framesmith.load(sys.argv[1]); d = torch.load(sys.argv[2]); "
            "torch.testing.assert_close(p(d['x']), d['y'])")
    subprocess.run([sys.executable, "-c", code, tmp_path / "program.fs", tmp_path / "pair.pt"], check=True)


def test_passes_and_other_sets():
    program = framesmith.export(Plain(), inputs(3)[:1], operators="aten")
    lowered = program.to("core")
    assert "softmax" in str(program) and program.diff(lowered)
    for x in inputs(3):
        torch.testing.assert_close(lowered(x), Plain()(x))
    same = program.apply(lambda graph: None)
    assert not program.diff(same)


def test_a_program_with_a_branch_is_compiled():
    module = framesmith.export(Declared().eval(), inputs(3)[:1]).module()
    compiled = framesmith.compile(module)
    for x in inputs(3):
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), module(x))


def test_a_joint_program_has_the_derivative_of_a_branch(tmp_path):
    model = Declared()
    program = framesmith.export(model, inputs(3)[:1], joint=True).verify()
    program.save(tmp_path / "program.fs")
    for run in (program, framesmith.load(tmp_path / "program.fs")):
        for x in inputs(3):
            model.zero_grad()
            y = model(x)
            y.sum().backward()
            got, grads = run.step((x,))
            torch.testing.assert_close(got, y.detach())
            for name, p in model.named_parameters():
                torch.testing.assert_close(grads[name], torch.zeros_like(p) if p.grad is None else p.grad)


class OfAnotherSize(nn.Module):
    def forward(self, x):
        return x[:2] if x.sum() > 0 else x * 2


class Shrinking(nn.Module):
    def forward(self, x):
        while x.sum() < 20 and x.shape[0] > 1:
            x = x[1:] * 2 + 1
        return x.sum()


@pytest.mark.parametrize("model", [OfAnotherSize, Shrinking])
def test_arms_may_change_sizes(model):
    program = framesmith.export(model(), (torch.ones(5),)).verify()
    for x in (torch.ones(5), -torch.ones(5), torch.ones(5) * 9):
        torch.testing.assert_close(program(x), model()(x))


class OfAnotherDtype(nn.Module):
    def forward(self, x):
        return x[:2].long() if x.sum() > 0 else x * 2


class WrittenLater(nn.Module):
    """A result of a branch is an earlier tensor, which is written behind it."""

    def forward(self, x):
        y = x * 2
        z = y if x.sum() > 0 else x * 3
        y.add_(1)
        return z


@pytest.mark.parametrize(("model", "why"), [(OfAnotherDtype, "layout"), (WrittenLater, "written later")])
def test_branches_that_are_no_nodes_are_errors(model, why):
    with pytest.raises(framesmith.exc.ExportError, match=why):
        framesmith.export(model(), (torch.ones(5),))


def test_a_first_round_that_differs_is_a_path_of_its_own():
    class Model(nn.Module):
        def forward(self, x):
            last = None
            while x.sum() < 20:
                x = x + (1 if last is None else last)
                last = x.mean()
            return x

    program = framesmith.export(Model(), (torch.ones(5),))
    for x in (torch.ones(5), torch.ones(5) * 9, -torch.ones(5) / 2):
        torch.testing.assert_close(program(x), Model()(x))
