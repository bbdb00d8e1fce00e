"""A second process takes over the captures of a model of transformers, whose forward has decorators, and runs and
trains it without capturing, generating or building anything."""

import shutil

import pytest

from tests.capture_cache import processes
from tests.forked import Interpreter

pytest.importorskip("transformers")

PROGRAM = """
import copy, json
import torch, framesmith
import benchmarks.models  # what torchvision declares, for libraries that look for it
from framesmith.lower.contractions import cached_packs
from framesmith.util import events
from transformers import BertConfig, BertForSequenceClassification
cached_packs.LEAST, cached_packs.LARGE = 0, 1
torch.manual_seed(0)
config = BertConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, vocab_size=99,
                    num_labels=3, problem_type="single_label_classification")
model = BertForSequenceClassification(config).eval()
{before}
assert hasattr(type(model).forward, "__wrapped__")  # it is decorated
other, compiled = copy.deepcopy(model), framesmith.compile(model)
given = {{"input_ids": torch.randint(0, 99, (2, 8)), "attention_mask": torch.ones(2, 8, dtype=torch.long)}}


def infer(call, model):
    with torch.no_grad():
        return [call(**given).logits for _ in range(2)]


def train(call, model):
    torch.manual_seed(1)  # of dropout
    optimiser, losses = torch.optim.SGD(model.parameters(), 0.1), []
    for _ in range(3):
        optimiser.zero_grad()
        losses.append(call(**given, labels=torch.tensor([0, 2])).loss)
        losses[-1].backward()
        optimiser.step()
    return torch.stack(losses).detach(), [p.grad for p in model.parameters()], [*model.state_dict().values()]


got, want = {how}(compiled, model), {how}(other, other)
torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
seen = events.recent()
print(json.dumps({{"ends": [e.outcome for e in seen if isinstance(e, events.CompileEnded)],
                  "stages": sorted({{s.stage for e in seen if isinstance(e, events.CompileEnded) for s in e.spans}}),
                  "captured": sum(isinstance(e, events.Captured) for e in seen),
                  "lookups": [[e.what, e.hit] for e in seen if isinstance(e, events.CacheLookup)],
                  "breaks": [str(e) for e in seen if isinstance(e, (events.GraphBreak, events.Fallback))]}}))
"""


class Program(processes.Program):
    text, library_text = PROGRAM, ""
    parts = {"before": "", "how": "infer"}


@pytest.fixture(scope="module")
def forks():
    made = Interpreter("framesmith.compiler", "framesmith.graph_compiler", "benchmarks.models",
                       "transformers.models.bert.modeling_bert")
    yield made
    made.close()


def begun(folder, **how):
    """A folder with the cache of a first process, an interpreter of its own, and what that tells."""
    first = Program(folder).run(**how)
    assert {"codegen", "build"} <= {*first["stages"]} and set(first["ends"]) == {"compiled"} and first["captured"]
    assert not first["breaks"]
    return folder, first


@pytest.fixture(scope="module")
def inferred(tmp_path_factory):
    return begun(tmp_path_factory.mktemp("inferred"))


def second_of(first, program, **how):
    """What a second process tells."""
    second = program.run(**how)
    assert not second["breaks"]
    assert not {"back end", "rewrite", "codegen", "build"} & {*second["stages"]}, second
    assert set(second["ends"]) == {"loaded"} and len(second["ends"]) == len(first["ends"]) and not second["captured"]
    return second


def test_inference(inferred, forks, tmp_path):
    folder, first = inferred
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    second = second_of(first, Program(tmp_path, forks))
    assert ["packed weights", False] in first["lookups"]
    assert second["lookups"] == [["capture", True], ["packed weights", True]]


def test_training(forks, tmp_path):
    how = {"how": "train", "before": "model.train()"}
    _, first = begun(tmp_path, **how)
    second = second_of(first, Program(tmp_path, forks), **how)
    assert second["lookups"] == [["capture", True], ["capture", True]]


def test_packed_weights_of_another_model_are_not_used(inferred, forks, tmp_path):
    shutil.copytree(inferred[0], tmp_path, dirs_exist_ok=True)
    program = Program(tmp_path, forks)
    changed = "with torch.no_grad(): model.bert.encoder.layer[1].output.dense.weight[3, 5] += 1"
    assert ["packed weights", False] in program.run(before=changed)["lookups"]
    assert ["packed weights", True] in program.run(before=changed)["lookups"]
