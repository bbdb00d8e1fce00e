"""A second process trains with the captures of the first, where all that they refer to is the same."""


import pytest

from tests.capture_cache import processes

LIBRARY = """
import torch
from torch import nn

SCALE = 2.0


def unrelated(x):
    return x + 1


class Net(nn.Module):
    def __init__(self, rate=0.5):
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
        self.drop = nn.Dropout(rate)

    def forward(self, x):
        h = self.drop(self.norm(self.first(x)).tanh()) * SCALE
        return {"out": self.second(h), "norm": h.norm()}
"""

PROGRAM = """
import copy, json
import torch, framesmith
from framesmith.util import events
import library
torch.manual_seed(0)
model = library.Net().double()
{before}
other, x = copy.deepcopy(model), torch.randn(6, 4, dtype=torch.float64)
{between}
compiled = framesmith.compile(model)

def shown(call, model):
    torch.manual_seed(1)
    optimiser = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1)
    losses = []
    for _ in range(3):
        optimiser.zero_grad()
        loss = call(x)["out"].square().mean()
        loss.backward()
        optimiser.step()
        losses.append(loss.detach())
    return losses, [*model.state_dict().values()], [p.grad for p in model.parameters()]

got, want = shown(compiled, model), shown(other, other)
torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)
seen = events.recent()
print(json.dumps({{"ends": [e.outcome for e in seen if isinstance(e, events.CompileEnded)],
                  "captured": sum(isinstance(e, events.Captured) for e in seen),
                  "graphs": [[e.part, e.name, [*map(str, e.operators)], e.key] for e in seen
                             if isinstance(e, events.GraphCompiled)]}}))
"""


class Program(processes.Program):
    text, library_text = PROGRAM, LIBRARY
    parts = {"before": "", "between": ""}

    def hits(self, **how) -> bool:
        """Whether a process of its own captures and compiles nothing."""
        found = self.run(**how)
        assert found["ends"] in (["loaded"] * 2, ["compiled"] * 2), found
        assert (found["ends"] == ["loaded"] * 2) == (found["captured"] == 0), found
        return not found["captured"]


def test_a_second_process_captures_and_compiles_nothing(tmp_path):
    program = Program(tmp_path)
    first, second = program.run(), program.run()
    assert second["ends"] == ["loaded", "loaded"] and not second["captured"]
    assert first["graphs"] == second["graphs"] and [part for part, *_ in first["graphs"]] == ["forward", "backward"]


@pytest.mark.parametrize("old, new, hits", [
    ("def unrelated(x):\n    return x + 1", "# a comment\n\n\ndef unrelated(x):\n    return x + 2", True),
    ("SCALE = 2.0", "SCALE = 2.5", False),
    ("* SCALE", "/ SCALE", False),
    ("rate=0.5", "rate=0.25", False),
    ("nn.BatchNorm1d(8)", "nn.BatchNorm1d(8, momentum=0.2)", False),
], ids=["unrelated function", "global", "source", "rate of dropout", "momentum"])
def test_what_a_capture_read_is_compared(program, old, new, hits):
    assert old in LIBRARY
    program.library(LIBRARY.replace(old, new))
    assert program.hits() is hits


@pytest.mark.parametrize("how", [
    {"before": "model.first.weight.requires_grad_(False)"}, {"before": "model.eval()"},
    {"before": "model.drop.eval()"}, {"before": "model.second = torch.nn.Linear(8, 3, False).double()"},
    {"between": "x.requires_grad_()"},
    {"between": "for m in (model, other): m.norm.register_forward_hook(lambda m, a, o: o * 2)"},
    {"before": "torch.use_deterministic_algorithms(True)"},
], ids=["a frozen parameter", "evaluation", "evaluation of a part", "no bias", "an input that requires grad", "hook",
        "deterministic algorithms"])
def test_the_state_of_the_process_is_compared(program, how):
    assert not program.hits(**how)
