"""`python -m framesmith bench`: a model of the user's beside eager and the installed peers."""

import importlib.util
import json
import math

import pytest
import torch

from framesmith import bench
from framesmith.peers import PEERS

MODEL = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(8, 8)
    def forward(self, x, *, scale, shift=None):
        return {"out": torch.relu(self.inner(x)) * scale}
def make():
    return Net(), (torch.randn(4, 8),), {"scale": torch.tensor(2.0)}
def alone():
    return torch.nn.Identity(), torch.randn(3)
def broken(model, args, kwargs):
    raise ValueError("no such\\nthing")
def double(model, args, kwargs):
    return lambda: {"out": model(*args, **kwargs)["out"] * 2}
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "model.py").write_text(MODEL)
    return str(tmp_path / "model.py")


def run(*arguments):
    return bench.main([*arguments, "--rounds", "2", "--seconds", "0.001"])


def test_a_users_model_beside_a_peer_and_two_of_their_own(file, tmp_path, capsys):
    out = tmp_path / "out.json"
    assert run(f"{file}:make", "--only", "framesmith", "--only", "jit.trace", "--peer", f"mine={file}:double", "--peer",
               f"other={file}:broken", "--json", str(out)) == 0
    rows = json.loads(out.read_text())["peers"]
    assert list(rows) == ["eager", "framesmith", "jit.trace", "mine", "other"]
    ours = rows["framesmith"]
    assert ours["graphs"] == 1 and ours["breaks"] == 0 and ours["error"] < 1e-5 and ours["low"] <= ours["seconds"]
    assert math.isclose(ours["speedup"], rows["eager"]["seconds"] / ours["seconds"])
    assert rows["jit.trace"]["error"] < 1e-6 and math.isclose(rows["mine"]["error"], 1, rel_tol=1e-5)
    assert rows["other"] == {"how": f"{file}:broken", "weights": "", "failed": "ValueError: no such"}
    shown = capsys.readouterr().out
    assert "framesmith: 1 graphs, 0 breaks" in shown and "other fails: ValueError: no such" in shown
    assert "frozen until one is written" in shown


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="needs matplotlib")
@pytest.mark.parametrize("ending", ["svg", "png"])
def test_the_plot(file, tmp_path, ending):
    rows = {"eager": {"seconds": 2.0, "low": 1.0, "high": 3.0, "speedup": 1.0}, "peer": {"failed": "no"},
            "framesmith": {"seconds": 1.0, "low": 0.9, "high": 1.5, "speedup": 2.0}}
    bench.plot(rows, "model", str(tmp_path / f"plot.{ending}"))
    data = (tmp_path / f"plot.{ending}").read_bytes()
    assert (b"<svg" in data[:800] if ending == "svg" else data.startswith(b"\x89PNG")) and len(data) > 2000


def test_a_single_argument_and_a_module_path(file):
    model, args, kwargs = bench.load(f"{file}:alone")
    assert kwargs == {}
    assert len(args) == 1 and model(*args) is args[0]
    model, args, kwargs = bench.load(f"{__name__}:here")
    assert model(*args, **kwargs) == 3


def here():
    return (lambda a, b: a + b), (1,), {"b": 2}


@pytest.mark.parametrize("name", ["model", "no.such.module:f", "missing.py:f", f"{__name__}:missing"])
def test_a_name_that_is_none(name):
    with pytest.raises(SystemExit):
        bench.load(name)


def test_an_unknown_contender():
    with pytest.raises(SystemExit, match="no contender is named 'x'; there are: eager; framesmith"):
        bench.chosen(["x"], [])


def test_errors():
    one, inf, nan = torch.ones(2), torch.tensor([math.inf, 1.0]), torch.tensor([math.nan, 1.0])
    assert bench.error_between((one, {"a": one}), [one, one]) == 0 and bench.error_between((), one) is None
    assert math.isnan(bench.error_between([one, nan], [one, one])) and not bench.error_between(inf, one) < 1


def test_the_options_that_torch_compile_is_given_are_its_own():
    for name in ("torch.compile", "torch.compile, frozen", "torch.compile, best"):
        PEERS[name].build(torch.nn.Identity(), (torch.ones(1),), {})  # raises for an unknown option
