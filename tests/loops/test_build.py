"""The body builder: sharing, folding, masks, replay."""

import torch

from framesmith.loops.build import Builder, Replay
from framesmith.loops.ir import Const, Load
from framesmith.loops.text import body_text
from framesmith.symbolic.expr import Symbol

i = Symbol("i", 0, 31)
f32 = torch.float32


def test_equal_operations_are_shared():
    b = Builder()
    x = b.load("p", i, f32)
    assert b.scalar("mul", x, x) is b.scalar("mul", b.load("p", i, f32), x)
    assert len(b.ops) == 2


def test_constants_keep_sign_and_type():
    b = Builder()
    assert b.const(0.0, f32) is not b.const(-0.0, f32)
    assert b.const(1, torch.int64) is not b.const(1, f32)
    assert b.const(2.7, torch.int64).value == 2


def test_folds():
    b = Builder()
    x, one, zero = b.load("p", i, f32), b.const(1.0, f32), b.const(0.0, f32)
    assert b.scalar("mul", x, one) is x
    assert b.scalar("sub", x, zero) is x
    assert b.scalar("add", x, zero) is not x  # -0.0 + 0.0 is 0.0
    assert b.scalar("where", b.pred(i, 32), x, one) is x
    assert b.scalar("logical_and", b.pred(i, 0), b.pred(i, 5)).value is False


def test_comparisons_of_indices_become_conditions():
    b = Builder()
    assert body_text((b.scalar("lt", b.index(i), b.const(7, torch.int64)),)) == "v0 = pred i < 7"
    assert b.scalar("ge", b.index(i), b.const(0, torch.int64)).value is True


def test_conditions_that_say_the_same_are_one():
    b, n, j = Builder(), Symbol("n", 2), Symbol("j", 0, 9)
    assert b.pred(4 * i + 3, 56) is b.pred(4 * i + 4, 57) is b.pred(0, 14 - i) is b.pred(i, 14)
    assert b.pred(-1, 4 * i - 3) is b.pred(3, 4 * i) is b.pred(0, i)
    assert b.pred(i + 3, n + 3) is b.pred(2 * i, 2 * n) is b.pred(i, n)
    assert b.pred(2 * i + 1, 2 * j) is b.pred(i, j) is not b.pred(i, j + 1)
    for lhs, rhs in ((4 * i + 3, 52), (5, 3 * i), (i + j, 7), (3 * i + 2, 6 * j + 1), (7 - 2 * i, 3)):
        op = b.pred(lhs, rhs)
        for at in ({i: x, j: y} for x in range(32) for y in range(10)):
            assert (op.lhs.subs(at).const < op.rhs.subs(at).const) is ((lhs - rhs).subs(at).const < 0)


def test_masked_loads_stay_inside():
    b = Builder()
    v = b.masked(b.pred(i, 7), lambda: b.load("p", i, f32), -1.0)
    load = next(op for op in b.ops if type(op) is Load)
    assert load.args and v.args[1] is load
    assert type(b.masked(b.pred(i, 0), lambda: b.load("p", i, f32), -1.0)) is Const


def test_a_value_that_is_never_needed_leaves_no_trace():
    b = Builder()

    def element():
        return b.memo.setdefault("element", b.const(2.0, torch.float32))

    b.masked(b.const(False, torch.bool), element, 0.0)
    assert element() in b.ops


def test_half_types_compute_in_float32():
    b = Builder()
    x = b.load("p", i, torch.bfloat16)
    assert x.dtype is f32
    y = b.cast(x, torch.bfloat16)
    assert y.rounding is torch.bfloat16 and b.cast(y, torch.bfloat16) is y


def test_replay_substitutes_and_forwards():
    b = Builder()
    v = b.scalar("add", b.load("p", i, f32), b.load("q", i, f32))
    b.store("r", i, v)
    c = Builder()
    j = Symbol("j", 0, 15)
    known = c.const(3.0, f32)
    Replay(c, {i: j * 2}, {}, lambda op, at: known if op.buffer == "q" else None).run(b.ops)
    assert body_text(tuple(c.ops)) == "v0 = const 3.0 float32\nv1 = load p[2*j]\nv2 = add v1 v0\nstore r[2*j] = v2"
