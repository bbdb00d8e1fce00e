"""Export of programs with sizes that depend on data: equal to eager where data selects 0, 1, 2 and more elements, also
from a file in a process that lacks the source."""

import subprocess
import sys

import pytest
import torch
from torch import nn

import framesmith
from framesmith.export import Dim
from tests.capture import test_data_lengths as programs

FORMS = [programs.marked, programs.joined, programs.listed, programs.with_a_break, programs.of_numbers,
         programs.going_on]


class Head(nn.Module):
    """Decode boxes, filter them by score, suppress those that overlap."""

    def __init__(self, suppress):
        super().__init__()
        self.suppress = suppress
        corners = torch.rand(24, 2, generator=torch.Generator().manual_seed(3)) * 4
        self.register_buffer("anchors", torch.cat([corners, corners + 1.5], 1))

    def forward(self, deltas, scores, threshold):
        return programs.detect(self.suppress, self.anchors, deltas, scores, threshold)


def head_inputs(passing):
    """`passing`: how many of 24 scores pass the filter."""
    torch.manual_seed(passing)
    return torch.randn(24, 4) / 4, torch.randperm(24) / 24, torch.tensor((24 - passing - 0.5) / 24)


class Experts(nn.Module):
    """Each token goes to the expert that its score names."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.router = nn.Linear(8, 3, bias=False)
        self.experts = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])

    def forward(self, x):
        weight, chosen = self.router(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero()[:, 0]
            out = out.index_add(0, rows, expert(x[rows]) * weight[rows, None])
        return out


class Selected(nn.Module):
    def forward(self, x):
        y = torch.masked_select(x, x > 0)
        return y.sum(), y.exp().mean(), y, y.shape[0] * 2


class Counted(nn.Module):
    """A number of the data is a size."""

    def forward(self, x):
        n = (x > 0).sum().item()
        torch._check(n <= 4)
        return x[:n] * 2, torch.zeros(n + 1, 3), n


class Halves(nn.Module):
    """Two selections that are to be of one size."""

    def forward(self, x):
        return x[x > 0] + x[x < 0]


class Distinct(nn.Module):
    def forward(self, x):
        values, counts = torch.unique((x * 2).round(), return_counts=True)
        return values * counts, torch.repeat_interleave(x, (x > 0).long() * 2)


class Branched(nn.Module):
    def forward(self, x):
        y = x[x > 0]
        if y.numel() > 2:
            y = y[:2] * 3
        return y, (y + 1).sum()


class Shrinking(nn.Module):
    def forward(self, x):
        while x.sum() < 20 and x.shape[0] > 1:
            x = x[1:] * 2 + 1
        return x.sum(), x


class Split(nn.Module):
    def forward(self, x):
        n = (x > 0).sum()
        first, second = x.split([n.item(), 6 - n.item()])
        return first.sum() - second.sum()


class Told(nn.Module):
    """Only how many there are is read."""

    def forward(self, x):
        return x + len(torch.unique(x > 0)) + (x > 1).nonzero().shape[0]


def six(positive):
    """`positive`: how many of six elements are above zero."""
    torch.manual_seed(positive)
    x = torch.rand(6) + 0.25
    x[torch.randperm(6)[positive:]] *= -1
    return (x,)


def tokens(kind):
    torch.manual_seed(5)
    x = torch.randn(6, 8)
    return (x[:1].expand(6, 8).contiguous() if kind == 0 else x[kind - 1:kind + 1].repeat(3, 1) if kind < 3 else x,)


COUNTS = (0, 1, 2, 3, 6)
CASES = {
    **{f"head, {form.__name__}": (lambda form=form: Head(form), [head_inputs(n) for n in (0, 1, 2, 12, 24)])
       for form in FORMS},
    "experts": (Experts, [tokens(k) for k in range(4)]),
    "counted": (Counted, [six(n) for n in (0, 1, 2, 3, 4)]),
    "halves": (Halves, [six(3), (torch.tensor([1.0, -1.0]).repeat(3),), (torch.zeros(6),)]),
    **{m.__name__.lower(): (m, [six(n) for n in COUNTS]) for m in (Selected, Distinct, Branched, Shrinking, Split,
                                                                  Told)},
}


def outcome(run, args):
    try:
        return run(*[x.clone() for x in args])
    except RuntimeError as e:
        return type(e)


def agree(got, want):
    if isinstance(want, type):
        assert got is want
    else:
        torch.testing.assert_close(got, want, equal_nan=True)


@pytest.mark.parametrize("operators", ["core", "prims", "aten"])
@pytest.mark.parametrize("case", CASES)
def test_programs_are_equal_to_eager(case, operators):
    make, inputs = CASES[case]
    model = make().eval()
    program = framesmith.export(model, inputs[-1], operators=operators).verify()
    if operators != "aten":
        assert not program.beyond
    for args in inputs:
        with torch.no_grad():
            agree(outcome(program, args), outcome(model, args))


@pytest.mark.parametrize("case", CASES)
def test_any_example_gives_the_same_program(case):
    make, inputs = CASES[case]
    first, *others = [framesmith.export(make().eval(), args) for args in (inputs[0], inputs[-1])]
    assert not first.diff(others[0])


def test_files_run_in_a_process_without_the_source(tmp_path):
    expected = {}
    for number, (make, inputs) in enumerate(CASES.values()):
        model = make().eval()
        program = framesmith.export(model, inputs[0])
        program.save(tmp_path / f"{number}.fs")
        assert not program.diff(framesmith.load(tmp_path / f"{number}.fs"))
        with torch.no_grad():
            expected[number] = [(args, outcome(model, args)) for args in inputs]
    torch.save({k: [(a, None if isinstance(y, type) else y) for a, y in v] for k, v in expected.items()},
               tmp_path / "expected.pt")
    code = """if True:
        import sys, torch, framesmith
        for number, calls in torch.load(f"{sys.argv[1]}/expected.pt").items():
            program = framesmith.load(f"{sys.argv[1]}/{number}.fs").verify()
            for args, want in calls:
                try:
                    got = program(*args)
                except RuntimeError:
                    assert want is None, number
                else:
                    torch.testing.assert_close(got, want, equal_nan=True)
        """
    subprocess.run([sys.executable, "-c", code, tmp_path], check=True, cwd="/")


def test_what_is_asserted_of_data_raises():
    program = framesmith.export(Counted(), six(2))
    with pytest.raises(RuntimeError, match="does not hold"):
        program(*six(5))
    changed = framesmith.export(Halves(), six(3)).to("prims").to("core").apply(lambda graph: None)
    with pytest.raises(RuntimeError, match="does not hold"):
        changed(*six(2))
    agree(changed(*six(3)), outcome(Halves(), six(3)))


def test_a_dimension_may_be_called_as_a_size_of_data():
    class Both(nn.Module):
        def forward(self, x, y):
            return x[x > 0] * y.sum(), y * 2

    program = framesmith.export(Both(), (torch.randn(5), torch.randn(4)),
                                dynamic_shapes={"x": {0: Dim("u1", min=0)}, "y": {0: Dim("u0")}})
    for n in (0, 1, 2, 7):
        x, y = torch.randn(n), torch.randn(n + 1)
        torch.testing.assert_close(program(x, y), Both()(x, y))


def test_dimensions_and_sizes_of_data_together(tmp_path):
    program = framesmith.export(Experts().eval(), tokens(3), dynamic_shapes={"x": {0: Dim("tokens", min=1)}})
    program.save(tmp_path / "experts.fs")
    loaded = framesmith.load(tmp_path / "experts.fs")
    for n in (1, 2, 5, 40):
        x = torch.randn(n, 8)
        for run in (program, loaded, program.module(), program.unflatten()):
            torch.testing.assert_close(run(x).detach(), Experts()(x).detach())


class Loss(nn.Module):
    def __init__(self, whole):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(8, 8)
        self.whole = whole

    def forward(self, x):
        y = self.layer(x[x.sum(-1) > 0])
        return y.pow(2).sum() if self.whole else y


def test_a_joint_program_has_sizes_of_data_within(tmp_path):
    model = Loss(True)
    program = framesmith.export(model, (torch.randn(6, 8),), joint=True).verify()
    program.save(tmp_path / "loss.fs")
    for run in (program, framesmith.load(tmp_path / "loss.fs")):
        for x in (torch.randn(6, 8), -torch.ones(6, 8), torch.ones(6, 8)):
            model.zero_grad()
            loss = model(x)
            loss.backward()
            got, grads = run.step((x,))
            torch.testing.assert_close(got, loss.detach())
            for name, p in model.named_parameters():
                torch.testing.assert_close(grads[name], p.grad)
    with pytest.raises(framesmith.exc.ExportError, match="return a loss"):
        framesmith.export(Loss(False), (torch.randn(6, 8),), joint=True)


def test_the_text_runs():
    program = framesmith.export(Head(programs.marked), head_inputs(12))
    space = {}
    exec(str(program), space)
    given = dict(zip(("deltas", "scores", "threshold"), head_inputs(5), strict=True))
    args = [given.get(i.name, program.state.get(i.target)) for i in program.inputs]
    torch.testing.assert_close(tuple(space["forward"](*args)), Head(programs.marked)(*head_inputs(5)))


def test_a_list_of_which_data_decides_the_length_is_refused():
    with pytest.raises(framesmith.exc.ExportError, match="round by round, since a list"):
        framesmith.export(programs.returned, (torch.rand(5),))
