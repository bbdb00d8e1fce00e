"""Plain data as JSON and back."""

import json
import math
import operator

import pytest
import torch

from framesmith.loops.ir import Origin
from framesmith.runtime.plan import Call, Dyn, Kind, Output, Plan, PlanValue, TensorArg
from framesmith.symbolic.expr import Symbol, max_
from framesmith.util.errors import NotSerializable
from framesmith.util.serialize import deserialize, serialize

S, T = Symbol("s0", 2), Symbol("s1", 0, 9)
PLAN = Plan(2, (PlanValue(Kind.VIEW, Dyn(1), (16, Dyn(0)), (1, 1), torch.bfloat16),), (Output(constant=Dyn(3)),),
            (Call("aten::add", "Tensor", (TensorArg(0), 2.5, None, (1, Dyn(0))), {"alpha": True}, (-1,)),))


@pytest.mark.parametrize("value", [
    None, True, 0, -1, 2**70, 1.5, -0.0, math.inf, "a\n\ud800\0", (), (1, (2, "x")), [1, (2,), [3]], {1: (2,), "a": []},
    b"\0\xff", 1 + 2j, torch.float16, torch.strided, torch.channels_last, torch.device("cuda:1"), torch.Size([2, 3]),
    operator.getitem, PLAN, Origin("aten.add", "file.py", 3), S, S * T + 3, (S * 4) // (T + 1), S % 8, max_(S, T),
    Symbol("n", 0, S), Kind.ARENA], ids=repr)
def test_what_is_written_is_read(value):
    found = deserialize(serialize(value))
    assert found == value and type(found) is type(value)
    assert str(found) == str(value)


def test_expressions_are_the_same_objects():
    assert deserialize(serialize((S * T + 3, S % 8))) == (S * T + 3, S % 8)
    assert deserialize(serialize(S * T + 3)) is S * T + 3


@pytest.mark.parametrize("value", [object(), lambda: 0, {1, 2}, torch.ones(1), Exception("x"), type, (1, [print, ...])],
                         ids=lambda v: type(v).__name__)
def test_what_has_no_form_is_refused(value):
    with pytest.raises(NotSerializable):
        serialize(value)


@pytest.mark.parametrize("text", [
    {"os:system": ["touch {}"]}, {"function": ["os:system"]}, {"function": ["builtins:exec"]},
    {"function": ["torch:load"], "x": []}, {"constant": ["load"]}, {"constant": ["nn"]}, {"bytes": ["!"]}, {},
    {"framesmith.runtime.build:build": []}, {"framesmith.bench:load": ["os:getcwd"]}, {"function": ["torch:nn"]},
    {"framesmith.runtime.plan:Dyn": []}, {"framesmith.runtime.plan:Dyn": [1, 2, 3]}, {"device": ["no"]},
    {"framesmith.graph.launch:_again": [["os", "system"], "", ""]}, {"list": 3}], ids=str)
def test_nothing_else_is_called(text):
    with pytest.raises(ValueError):
        deserialize(json.dumps(text).encode())


@pytest.mark.parametrize("text", [b"", b"{", b"[" * 100000, b"\xff", b"nul"], ids=lambda t: repr(t[:8]))
def test_other_text_is_refused(text):
    with pytest.raises(ValueError):
        deserialize(text)
