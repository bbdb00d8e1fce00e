"""What can be done with an exported program."""

import ast
import copy
import subprocess
import sys

import pytest
import safetensors.torch
import torch
from torch import nn

import framesmith
from framesmith.exc import ExportError
from framesmith.export import Dim

from .test_export import same

aten = torch.ops.aten


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)

    def forward(self, x):
        return self.norm(torch.relu(self.linear(x)) + x)


class Model(nn.Module):
    """State of each kind, a module called twice, a result in a dict, a size among the results."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(4, 2)
        self.head.weight = nn.Parameter(self.blocks[0].linear.weight[:2].detach().clone())
        self.register_buffer("calls", torch.zeros(()))
        self.offset = torch.arange(2.0)

    def forward(self, x):
        self.calls += 1
        for block in self.blocks:
            x = block(x)
        x = self.blocks[0](x)
        return {"out": self.head(x) * x.shape[0] + self.offset, "rows": x.shape[0] * 2}


def exported(operators="core"):
    torch.manual_seed(0)
    model = Model().eval()
    return model, framesmith.export(model, (torch.randn(3, 4),), dynamic_shapes=({0: Dim("batch")},),
                                    operators=operators)


CASES = [(torch.randn(n, 4),) for n in (1, 2, 7)]


@pytest.mark.parametrize("operators", ["core", "prims", "aten"])
def test_operator_sets(operators, tmp_path):
    model, program = exported(operators)
    assert program.beyond == []
    same(program.verify(), model, *CASES)
    program.save(tmp_path / "p")
    same(framesmith.load(tmp_path / "p").verify(), model, *CASES)


def test_state_and_mutations():
    model, program = exported()
    assert len(program.parameters) == 10 and list(program.buffers) == ["calls"]
    torch.testing.assert_close(program.constants, {"constant_0": model.offset})
    assert program.mutations == ["calls"]
    program(*CASES[0])
    assert program.state["calls"] == 1 and model.calls == 0


class Counting(nn.Module):
    def __init__(self, reads):
        super().__init__()
        self.register_buffer("calls", torch.tensor(0))
        self.reads = reads

    def forward(self, x):
        self.calls.add_(1)
        return self.reads(x, self.calls)


def test_data_of_a_buffer_that_the_program_writes_are_not_assumed():
    model = Counting(lambda x, calls: x + 1 if calls < 2 else x - 1)
    program = framesmith.export(model, (torch.ones(2),))
    same(program, model, *[(torch.ones(2),)] * 3)
    model = Counting(lambda x, calls: x[:calls])
    same(framesmith.export(model, (torch.ones(2),)), model, *[(torch.ones(2),)] * 3)
    with pytest.raises(framesmith.exc.ExportError, match="known at run time"):
        framesmith.export(Counting(lambda x, calls: x + [1.0, 2.0, 3.0][calls]), (torch.ones(2),))


def test_the_text_runs():
    model, program = exported()
    space = {}
    exec(str(program), space)
    given = [program.state[i.target] if i.kind != "input" else CASES[2][0] for i in program.inputs]
    with torch.no_grad():
        torch.testing.assert_close(space["forward"](*given)[0], model(*CASES[2])["out"])
    assert "f32[batch, 4]" in str(program) and "test_program.py" in str(program)
    ast.parse(str(exported("prims")[1]))


def test_a_pass_of_plain_fx():
    model, program = exported()

    def with_silu(graph):
        for node in graph.nodes:
            if node.target is aten.relu.default:
                node.target = aten.silu.default

    changed = program.apply(with_silu).verify()
    assert not program.diff(exported()[1])
    lines = list(program.diff(changed))
    assert "  -aten.relu.default(addmm)  # f32[batch, 4]" in lines
    assert "  +aten.sigmoid.default(addmm)  # f32[batch, 4]" in lines  # silu is no core operator
    with pytest.raises(ExportError, match="keeps the outputs"):
        program.apply(lambda graph: setattr(list(graph.nodes)[-1], "args", ((),)))


def test_differences_of_state():
    _, program = exported()
    other = copy.deepcopy(program)
    other.state["head.bias"] = other.state["head.bias"].detach() + 1
    assert list(program.diff(other)) == ["state", "   head.bias: values differ by up to 1"]


def test_the_module_compiles():
    model, program = exported()
    compiled = framesmith.compile(program.module(), backend="eager")
    same(compiled, model, *CASES)
    assert sorted(program.module().state_dict()) == sorted(model.state_dict())


def test_unflattened_modules_have_the_original_paths():
    model, program = exported()
    tree = program.unflatten()
    same(tree, model, *CASES)
    assert {"blocks.0.linear.weight", "blocks.1.norm.bias", "head.bias", "calls"} <= set(tree.state_dict())
    x = torch.randn(5, 4)
    torch.testing.assert_close(tree.get_submodule("blocks.1.linear")(x)[0], model.blocks[1].linear(x))


def test_a_joint_backward():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)).train()
    program = framesmith.export(model, (torch.randn(3, 4),), dynamic_shapes=({0: Dim("batch")},), joint=True)
    for n in (2, 6):
        x, reference = torch.randn(n, 4), copy.deepcopy(model)
        reference.load_state_dict(program.state)
        want = reference(x)
        want.sum().backward()
        out, gradients = program.step((x,))
        torch.testing.assert_close(out, want)
        torch.testing.assert_close(gradients, {k: p.grad for k, p in reference.named_parameters()})
        torch.testing.assert_close(program.state["1.running_mean"], reference[1].running_mean)


def test_torch_export_programs_are_taken():
    class Small(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x, y):
            self.seen.add_(1)
            return {"a": self.linear(x).relu() + y, "b": (x, 2)}

    model = Small()
    n = torch.export.Dim("n", max=100)
    args = torch.randn(3, 4), torch.randn(3, 4)
    theirs = torch.export.export(model, args, dynamic_shapes={"x": {0: n}, "y": {0: n}})
    program = framesmith.export(theirs).verify()
    same(program, model, *[(torch.randn(k, 4), torch.randn(k, 4)) for k in (2, 9)])
    assert program.mutations == ["seen"] and program.state["seen"] == 2


def test_a_draft_names_every_break():
    class Broken(nn.Module):
        def forward(self, x):
            if x.sum() > 0:
                x = x[:2]
            if x.max() > 2:
                x = x[:, :1]
            return x

    found = framesmith.export(Broken(), (torch.randn(3, 4),), mode="draft")
    assert [o.kind for o in found.obstacles] == ["break", "break"] and found.program is None
    assert len({o.place for o in found.obstacles}) == 2 and all(o.remedy for o in found.obstacles)
    with pytest.raises(ExportError, match="truth of a tensor's data at .*test_program.py"):
        framesmith.export(Broken(), (torch.randn(3, 4),))


def test_a_draft_goes_on_past_dimensions_and_effects():
    class Odd(nn.Module):
        def forward(self, x):
            self.calls = 3
            return x.view(3, 4)

    found = framesmith.export(Odd(), (torch.randn(3, 4),), dynamic_shapes=({0: Dim("n")},), mode="draft")
    assert sorted(o.kind for o in found.obstacles) == ["dimension", "effect"]
    assert found.program(torch.randn(3, 4)).shape == (3, 4)


def test_a_tensor_kept_in_an_attribute_is_an_error():
    class Keeps(nn.Module):
        def forward(self, x):
            self.last = x + 1
            return x

    with pytest.raises(ExportError, match="keeps a tensor in .*last"):
        framesmith.export(Keeps(), (torch.randn(3, 4),))


def test_writes_of_arguments_and_aliases():
    class Writes(nn.Module):
        def forward(self, x):
            x.mul_(2)
            return x, x[0]

    program = framesmith.export(Writes(), (torch.ones(3, 4),), dynamic_shapes=({0: Dim("n")},))
    x = torch.ones(5, 4)
    out, row = program(x)
    assert out is x and (x == 2).all() and (row == 2).all()


# --- files

FRESH = """
import sys, torch, framesmith
program = framesmith.load(sys.argv[1])
x = torch.load(sys.argv[2])
print(program(x)["out"].tolist(), "tests.export.test_program" in sys.modules)
"""


def test_a_fresh_process_without_the_source(tmp_path):
    model, program = exported()
    program.save(tmp_path / "p")
    torch.save(CASES[2][0], tmp_path / "x")
    done = subprocess.run([sys.executable, "-c", FRESH, tmp_path / "p", tmp_path / "x"], capture_output=True, text=True)
    assert not done.returncode, done.stderr
    values, _, source = done.stdout.strip().rpartition(" ")
    assert source == "False"
    torch.testing.assert_close(torch.tensor(ast.literal_eval(values)), model(*CASES[2])["out"].detach())


def test_shared_and_strided_state(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = nn.Linear(4, 4)
            self.two = nn.Linear(4, 4)
            self.two.weight = self.one.weight
            self.register_buffer("part", torch.arange(12.0).view(3, 4)[:, 1])

        def forward(self, x):
            return self.two(self.one(x)) + self.part.sum()

    model = Tied()
    framesmith.export(model, CASES[1]).save(tmp_path / "p")
    again = framesmith.load(tmp_path / "p")
    same(again, model, CASES[1])
    assert (tmp_path / "p").stat().st_size < 12_000


@pytest.mark.parametrize("damage", ["cut", "flipped", "other", "newer", "text"])
def test_damaged_files(tmp_path, damage):
    path = tmp_path / "p"
    exported()[1].save(path)
    data = path.read_bytes()
    at = data.index(b"aten.relu.default")
    if damage == "cut":
        path.write_bytes(data[:-40])
    elif damage == "flipped":
        path.write_bytes(data[:at] + b"aten.rely.default" + data[at + 17:])
    elif damage == "other":
        safetensors.torch.save_file({"a": torch.zeros(2)}, path)
    elif damage == "newer":
        safetensors.torch.save_file({"a": torch.zeros(2)}, path, {"format": "framesmith program", "version": "99"})
    else:
        path.write_text("hello")
    with pytest.raises(ExportError, match="damaged|no exported program|reads formats up to"):
        framesmith.load(path)


def test_a_file_calls_no_operator_that_writes():
    from framesmith.export.file import find_target

    for name in ("aten.add_.Tensor", "aten.from_file.default", "os.system", "aten.nothing.default", "prims.nothing"):
        with pytest.raises(ExportError):
            find_target(name)
