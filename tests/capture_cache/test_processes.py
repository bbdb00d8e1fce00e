"""A second process takes over captures of the first, where all that they refer to is the same."""


import pytest

from tests.capture_cache import processes

LIBRARY = """
import torch
from torch import nn

SCALE = 2.0
TABLE = {"mode": "add"}
SIZES = (1, 2)


def unrelated(x):
    return x + 1


def helper(x, shift=1.0):
    return x * SCALE + shift


def pick(x):
    return helper(x) if TABLE["mode"] == "add" else helper(x) - 3


def plus(shift, level):
    def decorated(method):
        def wrapper(self, x):
            return method(self, x) + shift * level if torch.backends.mha.get_fastpath_enabled() else x
        return wrapper
    return decorated


class Block(nn.Module):
    factor = 3.0

    def __init__(self, width=4):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.steps = 2

    def forward(self, x):
        for _ in range(self.steps):
            x = pick(self.linear(x)) * self.factor
        return {"out": self.shifted(x), "sizes": SIZES}

    @plus(0.5, 2)
    @plus(0.5, level=3)
    def shifted(self, x):
        return x - 1
"""

PROGRAM = """
import json, sys
import torch, framesmith
from framesmith.util import events
import library
torch.manual_seed(0)
{before}
model = library.Block({width}).eval()
x = torch.randn(3, {width})
{between}
with torch.no_grad():
    compiled = framesmith.compile(model, {options})
    got, want = compiled(x), model(x)
    again = compiled(x)
    {after}
assert torch.allclose(got["out"], want["out"], atol=1e-5), (got, want)
assert torch.equal(got["out"], again["out"]) and got["sizes"] == want["sizes"]
seen = events.recent()
print(json.dumps({{"loaded": [e.outcome for e in seen if isinstance(e, events.CompileEnded)],
                  "graphs": [[e.name, e.device, [*map(str, e.operators)], e.work, e.externs, e.key, e.constants,
                              e.given, e.values] for e in seen if isinstance(e, events.GraphCompiled)],
                  "held": [[g.name, [[c.name, c.bytes] for c in g.constants]] for g in framesmith.memory().graphs],
                  "captured": sum(isinstance(e, events.Captured) for e in seen),
                  "misses": [e.reason for e in seen if isinstance(e, events.CacheLookup) and e.what == "capture"],
                  "bound": [e.reason for e in seen if isinstance(e, events.NotCached)]}}))
"""


class Program(processes.Program):
    text, library_text = PROGRAM, LIBRARY
    parts = {"before": "", "between": "", "options": "", "after": "", "width": 4}

    def hits(self, **how) -> bool:
        """Whether a process of its own captures nothing."""
        found = self.run(**how)
        assert found["loaded"] in (["loaded"], ["compiled"]), found
        assert (found["loaded"] == ["loaded"]) == (found["captured"] == 0), found
        assert len(found["graphs"]) == 1
        return found["loaded"] == ["loaded"]


def test_a_second_process_captures_nothing(program):
    assert program.hits()


def test_a_loaded_graph_is_reported_as_the_one_that_was_compiled(tmp_path):
    program = Program(tmp_path)
    first, second = program.run(), program.run()
    assert second["loaded"] == ["loaded"]
    assert first["graphs"] == second["graphs"] and first["held"] == second["held"]
    assert first["graphs"][0][3] and first["held"][0][1]


@pytest.mark.parametrize("old, new, hits", [
    ("return x + 1", "return x + 2", True),
    ("def unrelated", "# a comment\n\n\ndef unrelated", True),
    ("return x * SCALE + shift", "return x * SCALE - shift", False),
    ("SCALE = 2.0", "SCALE = 2.5", False),
    ("shift=1.0", "shift=1.5", False),
    ('"mode": "add"', '"mode": "sub"', False),
    ("factor = 3.0", "factor = 4.0", False),
    ("self.steps = 2", "self.steps = 3", False),
    ("SCALE = 2.0", "SCALE = 2", False),
    ("SIZES = (1, 2)", "SIZES = (1, 3)", True),
    ("+ shift * level", "- shift * level", False),
    ("level=3", "level=4", False),
    ("return x - 1", "return x - 2", False),
    ("    factor = 3.0", "    def __getattr__(self, name):\n        return super().__getattr__(name)\n    factor = 3.0",
     False),
], ids=["unrelated function", "lines moved", "inlined function", "global", "default", "container", "class attribute",
        "attribute", "constant's type", "what is read in each call", "decorator's function",
        "what a decorator is given", "decorated method", "special method"])
def test_what_a_capture_read_is_compared(program, old, new, hits):
    assert old in LIBRARY
    program.library(LIBRARY.replace(old, new))
    assert program.hits() is hits


@pytest.mark.parametrize("how", [
    {"width": 5}, {"options": "options={'fusion': False}"}, {"before": "library.SCALE = 7.0"},
    {"between": "model.factor = 5.0"}, {"between": "model.linear.register_forward_hook(lambda m, a, o: o * 2)"},
    {"between": "library.Block.forward = lambda self, x: {'out': x - 1, 'sizes': 1}"},
    {"before": "torch.set_default_dtype(torch.float64)"},
    {"between": "x = framesmith.mark_dynamic(x, 0) or x"},
    {"before": "framesmith.disallow_in_graph(library.unrelated); "
               "library.helper = framesmith.allow_in_graph(lambda x: x * 5)"},
    {"before": "torch.backends.mha.set_fastpath_enabled(False)"},
], ids=["sizes", "options", "global", "instance", "hook", "method", "default dtype", "mark", "another function",
        "flag of torch"])
def test_the_state_of_the_process_is_compared(program, how):
    assert not program.hits(**how)


def test_sizes_that_vary_are_those_of_the_first_process(program):
    grown = "for n in (6, 7): compiled(torch.randn(n, 4))"
    assert program.run(after=grown)["loaded"] == ["loaded", "compiled"]
    assert program.run(after=grown.replace("6, 7", "9, 11"))["loaded"] == ["loaded"]
