"""Modules whose calls run in eager (`registry.EAGER_MODULES`), among others of the same frame."""

import torch
from torch import nn

import framesmith
from framesmith.capture import registry


def test_each_call_of_a_module_is_asked_about():
    class Eager(nn.Linear):
        pass

    ask = lambda module: "its hooks" if isinstance(module, Eager) else None  # noqa: E731
    registry.EAGER_MODULES.append(ask)
    try:
        model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), Eager(3, 3))
        told = framesmith.explain(framesmith.compile(model))(torch.ones(2, 3))
    finally:
        registry.EAGER_MODULES.remove(ask)
    assert [reason for reason in told.break_reasons if "call of a" in reason and "its hooks" in reason]
