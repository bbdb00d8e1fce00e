"""Entries of the capture cache within a process: after a reset, variants are made of what the disk has."""

import dataclasses
import functools
import json
import random
import warnings
from typing import Optional

import pytest
import torch
from torch import nn

import framesmith
from framesmith.capture import registry
from framesmith.capture_cache.digests import class_digest
from framesmith.capture_cache.graphs import shared, unshared
from framesmith.capture_cache.references import References
from framesmith.util import events

SHIFT = 1.0
RATES = {"a": 0.5, "b": 2.0}
LEVEL = [3]


@pytest.fixture
def outcome(tmp_path):
    """Calls a function as a new process would, compares it with eager, and tells how its variant was made."""

    def call(fn, *args):
        framesmith.reset()
        compiled = framesmith.compile(fn, options={"keep_captures": True, "cache_dir": str(tmp_path / "cache")})
        with torch.no_grad():
            torch.testing.assert_close(compiled(*args), fn(*args))
        return [e.outcome for e in events.recent() if isinstance(e, events.CompileEnded)][-1]

    return call


def scaled(x):
    return x * RATES["a"] + SHIFT


def test_a_variant_is_loaded_after_a_reset(outcome, monkeypatch):
    x = torch.randn(4)
    assert [outcome(scaled, x) for _ in range(2)] == ["compiled", "loaded"]
    monkeypatch.setitem(RATES, "a", 0.25)
    assert [outcome(scaled, x) for _ in range(2)] == ["compiled", "loaded"]
    monkeypatch.setitem(RATES, "a", 0.5)
    assert outcome(scaled, x) == "loaded"  # there is an entry for each


@functools.lru_cache
def level():
    return LEVEL[0]


def leveled(x):
    return x * level()


def test_what_a_cache_of_the_program_says_is_asked_again(outcome, monkeypatch):
    level.cache_clear()
    x = torch.randn(4)
    assert [outcome(leveled, x) for _ in range(2)] == ["compiled", "loaded"]
    monkeypatch.setattr(f"{__name__}.LEVEL", [5])
    level.cache_clear()
    assert outcome(leveled, x) == "compiled"
    level.cache_clear()


def of_set(x):
    return [x * len(name) for name in {"a", "bcd", "ef"}]


def of_hash(x):
    return x * (hash("text") % 7)


def of_address(x):
    return x * (id(RATES) % 5)


def of_text(x):
    return x * len(repr(scaled))


def warning(x):
    warnings.warn("here", stacklevel=1)
    return x + 1


@framesmith.assume_constant_result
def assumed():
    return 3


def of_assumption(x):
    return x * assumed()


@framesmith.allow_in_graph
def taken_whole(x):
    return x * SHIFT


def of_whole(x):
    return taken_whole(x) + 1


@pytest.mark.parametrize("fn, why", [
    (of_set, "order of a set"), (of_hash, "hash of an object"), (of_address, "address"), (of_text, "address"),
    (warning, "line"), (of_assumption, "asked for once"),
    (of_whole, "taken whole"),
], ids=lambda p: p.__name__ if callable(p) else "")
@pytest.mark.filterwarnings("ignore:here")
def test_what_only_this_process_has_is_not_kept(outcome, fn, why):
    x = torch.randn(4)
    assert outcome(fn, x) == "compiled"
    assert any(why in e.reason for e in events.recent() if isinstance(e, events.NotCached))
    assert outcome(fn, x) == "compiled"


def test_a_damaged_entry_is_passed_over(outcome, tmp_path):
    x = torch.randn(4)
    outcome(scaled, x)
    (entry,) = (tmp_path / "cache").rglob("*.capture")
    data = entry.read_bytes()
    entry.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert outcome(scaled, x) == "compiled"


def multiplied(x):
    return torch.mul(x, 3)


def test_what_the_program_says_of_a_function_is_compared(outcome):
    x = torch.randn(4)
    assert [outcome(multiplied, x) for _ in range(2)] == ["compiled", "loaded"]
    before = registry.CALLS.get(torch.mul)
    framesmith.disallow_in_graph(torch.mul)
    try:
        assert outcome(multiplied, x) != "loaded"
    finally:
        registry.CALLS.pop(torch.mul)
        if before is not None:
            registry.CALLS[torch.mul] = before
    assert outcome(multiplied, x) == "loaded"


def doubled(fn):
    def wrapper(x):
        return fn(x) * 2
    return wrapper


@doubled
@doubled
def decorated(x):
    return x + 1


def calls_decorated(x):
    return decorated(x) - 1


def test_what_the_program_says_of_a_function_beneath_a_decorator_is_compared(outcome):
    x = torch.randn(4)
    assert [outcome(calls_decorated, x) for _ in range(2)] == ["compiled", "loaded"]
    inner = decorated.__closure__[0].cell_contents
    framesmith.allow_in_graph(inner)
    try:
        assert outcome(calls_decorated, x) != "loaded"
    finally:
        registry.CALLS.pop(inner)
    assert outcome(calls_decorated, x) == "loaded"


class Net(nn.Module):
    gain = 2

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.order = ["first", "second"]
        self.scale = 1.5
        self.act = torch.relu

    def forward(self, x, flip=False):
        for name in self.order:
            x = self.act(getattr(self, name)(x)) * self.gain
        return -x * self.scale if flip or RATES["b"] > 3 else x + SHIFT


def _changes(net):
    return [lambda: net.order.reverse(), lambda: setattr(net, "scale", random.choice([1.5, 2.5])),
            lambda: setattr(net, "act", random.choice([torch.relu, torch.tanh])),
            lambda: setattr(Net, "gain", random.choice([2, 3])), lambda: RATES.__setitem__("b", random.choice([2, 4])),
            lambda: net.train(not net.training), lambda: setattr(net, "second", net.first),
            lambda: setattr(net, "second", nn.Linear(4, 4, bias=False)), lambda: net.first.weight.data.mul_(1.5),
            lambda: net.order.append("first") if len(net.order) < 3 else net.order.pop()]


def test_whatever_changed_the_answer_is_eager_s(outcome, monkeypatch):
    random.seed(3)
    monkeypatch.setitem(RATES, "b", 2.0)
    monkeypatch.setattr(Net, "gain", 2)
    net, seen = Net(), []
    for _ in range(24):
        random.choice(_changes(net))()
        seen.append(outcome(net, torch.randn(random.choice([2, 3]), 4)))
    assert {"compiled", "loaded"} == set(seen), seen


def rescaled(factor):
    def wrap(fn):
        @functools.wraps(fn)
        def wrapper(x):
            return fn(x) * factor

        return wrapper

    return wrap


@rescaled(2.0)
@rescaled(3.0)
def twice_rescaled(x):
    return x + 1


def calls_rescaled(x):
    return twice_rescaled(x).sin()


def test_functions_that_decorators_make_are_found_by_their_names(outcome, monkeypatch):
    x = torch.randn(4)
    assert [outcome(calls_rescaled, x) for _ in range(2)] == ["compiled", "loaded"]
    monkeypatch.setattr(f"{__name__}.twice_rescaled", rescaled(5.0)(twice_rescaled.__wrapped__))
    assert outcome(calls_rescaled, x) == "compiled"


def test_a_function_made_in_each_call_is_not_kept(outcome):
    def made(factor):
        return lambda x: x * factor

    x = torch.randn(4)
    assert [outcome(applied, x, made(2.0)) for _ in range(2)] == ["compiled", "compiled"]


def applied(x, fn):
    return fn(x)


def rated(x, kind):
    return x, RATES[kind]


def test_a_frame_that_is_not_worth_its_guards_is_not_captured_again(tmp_path):
    captured = []
    for _ in range(2):
        framesmith.reset()
        compiled = framesmith.compile(rated, options={"keep_captures": True, "cache_dir": str(tmp_path / "cache")})
        with events.on_event(captured.append):
            assert [compiled(3, kind) for kind in RATES] == [(3, 0.5), (3, 2.0)]
    assert sum(isinstance(event, events.Captured) for event in captured) == 2


@dataclasses.dataclass
class Sizes:
    width: Optional[int] = None  # noqa: UP045
    deep: bool = True


def test_fields_of_a_class_are_told_apart(monkeypatch):
    digests = [class_digest(Sizes)]
    monkeypatch.setattr(Sizes.__dataclass_fields__["deep"], "default", 1)
    digests.append(class_digest(Sizes))
    monkeypatch.setattr(Sizes.__dataclass_fields__["deep"], "default", dataclasses.MISSING)
    digests.append(class_digest(Sizes))
    monkeypatch.setitem(Sizes.__annotations__, "width", Optional[float])  # noqa: UP045
    digests.append(class_digest(Sizes))
    assert len(set(digests)) == 4


def test_parts_of_a_plan_are_stored_once_and_keep_their_types():
    refs = References(scaled.__code__, scaled.__globals__)
    plan = ((1, True, 1.0, "1", None, ()), ((1, True, 1.0, "1", None, ()), (1,), torch.float32), {"a": (1, [2])})
    rows = shared(refs, plan)
    found = unshared(refs, json.loads(json.dumps(rows)))
    assert repr(found) == repr(plan) and found[0] is found[1][0] and len(rows) == 12
