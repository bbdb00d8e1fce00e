"""Operators without a shape rule, on symbolic sizes: their kernels are asked at several sizes."""

import pytest
import torch

from framesmith.fake.infer import RULES, infer
from framesmith.fake.tensor import new_fake
from framesmith.symbolic.env import ShapeEnv
from framesmith.symbolic.layout import contiguous_strides
from framesmith.symbolic.node import symint

aten = torch.ops.aten


def fakes(*shapes, probing=True):
    """Fakes of float32; "n" and "m" among the sizes are symbols."""
    env = type("Asking", (ShapeEnv,), {"probing": probing, "__slots__": ()})()
    known = {name: symint(env.new_symbol(hint, name), env) for name, hint in (("n", 6), ("m", 10))}
    made = [tuple([known.get(n, n) for n in shape]) for shape in shapes]
    return env, known, [new_fake(shape, contiguous_strides(shape), torch.float32) for shape in made]


@pytest.mark.parametrize("func, shape, args, want", [
    (aten.adaptive_avg_pool1d.default, ("n", 3, "m"), ([4],), "(n, 3, 4)"),
    (aten.upsample_linear1d.vec, ("n", 3, "m"), (None, False, [2.0]), "(n, 3, 2*m)"),
    (aten.cummax.default, ("n", "m"), (1,), "(n, m)"),
    (aten._cdist_forward.default, ("n", "m", 3), None, "(n, m, m)"),
])
def test_answers_are_read_as_expressions(func, shape, args, want):
    assert func not in RULES
    env, known, (x,) = fakes(shape)
    out = infer(func, (x, *args) if args is not None else (x, x, 2.0, None), {})
    out = out[0] if isinstance(out, tuple) else out
    names = {str(v.node.expr): k for k, v in known.items()}
    text = "(" + ", ".join(str(n) for n in out.shape) + ")"
    for symbol, name in names.items():
        text = text.replace(symbol, name)
    assert text == want and not env.guards


def test_other_environments_take_the_size_as_it_is():
    env, _, (x,) = fakes(("n", 3), probing=False)
    assert infer(aten.cummax.default, (x, 1), {})[0].shape == (6, 3) and env.guards


@pytest.mark.parametrize("func, shapes, args", [
    (aten.slice_scatter.default, ((8, 4), (8, 2)), (1, 1, 3)), (aten.select_scatter.default, ((8, 4), (8,)), (1, 2)),
    (aten.alias.default, ((8, 4),), ()), (aten.split_with_sizes.default, ((8, 4),), ([1, 3], 1)),
    (aten._native_batch_norm_legit_no_training.default, ((2, 4, 3), (4,), (4,), (4,), (4,)), (0.1, 1e-5)),
])
def test_rules_agree_with_eager(func, shapes, args):
    real = [torch.rand(s) for s in shapes]
    given = [new_fake(s, contiguous_strides(s), torch.float32) for s in shapes]
    want, got = func(*real, *args), infer(func, (*given, *args), {})
    several = isinstance(got, tuple | list)
    for a, b in zip(want if several else [want], got if several else [got], strict=True):
        assert (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype)
