"""Faults made on purpose, one a row, in every stage of the way to code for a CPU: what is broken, a program that shows
it, and what `minify` and `check` are to find."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from framesmith import pipeline
from framesmith.autograd import repeated
from framesmith.codegen.cpp import emit, loops, reductions
from framesmith.lower.table import PRIM_ROWS
from framesmith.prims.registry import rules
from framesmith.prims.scalars import SCALAR_OPS
from framesmith.schedule import schedule

aten = torch.ops.aten


@dataclass(frozen=True)
class Fault:
    """`breaks`: changes the compiler, by pytest's `monkeypatch`. `operators`: any of which `check` may name; none where
    the result is no wrong one."""

    name: str
    breaks: Callable[[Any], None]
    program: Callable[[], tuple[Any, ...]]
    kind: str = "wrong result"
    operators: tuple[str, ...] = ()
    train: bool = False


FAULTS: list[Fault] = []


def fault(program, *operators, kind="wrong result", train=False):
    def register(breaks):
        name = breaks.__name__
        FAULTS.append(Fault(name, breaks, program, kind, operators, train))
        return breaks

    return register


def break_compiler(name):
    """Make a fault for good, in a process that the program of the fault was not forked from."""
    next(f for f in FAULTS if f.name == name).breaks(pytest.MonkeyPatch())


def rule(patch, target, change):
    """Put `change(real)` in the place of a decomposition."""
    patch.setitem(rules, target, change(rules[target]))


def scalar(patch, name, text):
    patch.setitem(SCALAR_OPS, name, replace(SCALAR_OPS[name], cpp=text, cpp_bool=""))


def pass_(patch, name, before):
    """Let `before(graph)` run first in a pass."""
    def broken(one):
        def run(graph, context):
            before(graph)
            return one.run(graph, context)

        return replace(one, run=run)

    patch.setattr(pipeline, "PASSES", tuple([broken(p) if p.name == name else p for p in pipeline.PASSES]))


def calls(graph, target):
    return [n for n in graph.nodes if n.target is target]


def x(*sizes):
    torch.manual_seed(1)
    return torch.randn(*sizes)


# ------------------------------------------------------------------------------------------------------------ programs


def chain(f):
    """An operator in the midst of others."""
    return lambda: (lambda a: f(a * 2 + 1).neg() * 0.5, x(5, 12))


def trained(f):
    return lambda: (lambda a: f(a * 2 + 1) * 0.5, x(5, 12).requires_grad_())


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = nn.Linear(12, 16), nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, a):
        return self.last(F.relu(self.norm(self.first(a))))


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.norm.running_mean.fill_(0.5)

    def forward(self, a):
        return self.norm(self.conv(a)).relu()


# ------------------------------------------------------------------------------------------------------- decompositions


@fault(chain(torch.tanh), "aten.tanh")
def sign_of_a_decomposition(patch):
    rule(patch, aten.tanh.default, lambda real: lambda b, x: -real(b, x))


@fault(chain(lambda a: torch.addcmul(a, a, a.cos())), "aten.addcmul")
def dropped_term(patch):
    rule(patch, aten.addcmul.default, lambda real: lambda b, x, y, z, **_: x)


@fault(lambda: (lambda a: F.softmax(a + 1, -1) * 3, x(6, 6)), "aten.softmax.int", "aten._softmax")
def wrong_axis(patch):
    for target in (aten._softmax.default, aten.softmax.int):
        if target in rules:
            rule(patch, target, lambda real: lambda b, x, dim, *rest, **kw: real(b, x, 0, *rest, **kw))


@fault(chain(F.gelu), "aten.gelu")
def rounded_to_bfloat16(patch):
    def rounded(real):
        def run(b, x, **kwargs):
            return b.convert(b.convert(real(b, x, **kwargs), torch.bfloat16), torch.float32)

        return run

    rule(patch, aten.gelu.default, rounded)


# ------------------------------------------------------------------------------------------------------------- lowering


@fault(lambda: (lambda a: (a * 2).amax(1) + a.sum(1), x(6, 10)), "aten.amax")
def wrong_reduction(patch):
    patch.setitem(PRIM_ROWS, "amax", PRIM_ROWS["amin"])


@fault(lambda: (lambda a: torch.roll(a * 2, 2, 1) + 1, x(4, 10)), "aten.roll")
def off_by_one_index(patch):
    real = PRIM_ROWS["roll"]
    patch.setitem(PRIM_ROWS, "roll",
                  lambda ctx, spec, x, shifts, dims: real(ctx, spec, x, [s + 1 for s in shifts], dims))


@fault(chain(lambda a: a.cumsum(1)), kind="error")
def raise_in_a_lowering(patch):
    def broken(*args):
        raise KeyError("no such axis")

    patch.setitem(PRIM_ROWS, "cumsum", broken)


# --------------------------------------------------------------------------------------------------------------- passes


@fault(chain(lambda a: a.exp() - a), "aten.sub.Tensor")
def swapped_operands_in_a_pass(patch):
    def swap(graph):
        for node in calls(graph, aten.sub.Tensor):
            node.args = node.args[1], node.args[0]

    pass_(patch, "cse", swap)


@fault(lambda: (Net().eval(), x(3, 12)), "aten.linear")
def bias_dropped_in_a_pass(patch):
    def drop(graph):
        for node in calls(graph, aten.linear.default):
            node.args = node.args[:2]

    pass_(patch, "choose_contractions", drop)


@fault(lambda: (Normed().eval(), x(2, 3, 8, 8)), "aten.batch_norm")
def batch_norm_folded_without_its_mean(patch):
    def forget(graph):
        for node in calls(graph, aten.batch_norm.default):
            args = list(node.args)
            args[3] = args[2]
            node.args = tuple(args)

    pass_(patch, "fold_batch_norm", forget)


@fault(chain(torch.sigmoid), kind="error")
def raise_in_a_pass(patch):
    def broken(graph):
        if calls(graph, aten.sigmoid.default):
            raise AssertionError("a node without a user")

    pass_(patch, "dce", broken)


# ------------------------------------------------------------------------------------------------------------- schedule


@fault(lambda: (lambda a: (a.cumsum(1).sum(0) + a.cumsum(0).sum(1)).cumsum(0), x(8, 8)), "aten.cumsum", "aten.sum",
       "aten.sum.dim_IntList", "aten.add.Tensor")
def overlapping_memory(patch):
    real = schedule.plan

    def broken(*args):
        steps, arena = real(*args)
        arena.offset = dict.fromkeys(arena.offset, 0)
        return steps, arena

    patch.setattr(schedule, "plan", broken)


# ---------------------------------------------------------------------------------------------------------- kernel text


@fault(lambda: (lambda a: (a.sum(1), a.amax(1)), x(6, 10)), "aten.sum.dim_IntList")
def wrong_where_two_reductions_are_fused(patch):
    real = emit.emit_kernel
    right, wrong = reductions.FOLDS["sum"], replace(reductions.FOLDS["sum"], neutral=lambda t: f"{t.scalar}(1)")

    def broken(kernel, *args):
        fused = len([p for p in kernel.params if "w" in p.mode]) > 1
        reductions.FOLDS["sum"] = wrong if fused else right
        try:
            return real(kernel, *args)
        finally:
            reductions.FOLDS["sum"] = right

    patch.setattr(emit, "emit_kernel", broken)


@fault(chain(torch.sigmoid), "aten.sigmoid")
def wrong_scalar_text(patch):
    scalar(patch, "sigmoid", "(sigmoid({}) * sigmoid({}))".replace("{}", "{0}"))


@fault(lambda: (lambda a: (a * 2).sum(1) + a.amax(1), x(6, 10)), "aten.sum.dim_IntList")
def wrong_start_of_a_sum(patch):
    patch.setitem(reductions.FOLDS, "sum", replace(reductions.FOLDS["sum"], neutral=lambda t: f"{t.scalar}(1)"))


@fault(lambda: (lambda a: (a * 2).sum(1).cos(), x(6, 40)), "aten.sum.dim_IntList", "aten.mul.Tensor")
def off_by_one_mask(patch):
    real = loops._body
    patch.setattr(loops, "_body", lambda s, loop, first, live: real(s, loop, first, f"({live} - 1)"))


@fault(chain(lambda a: a.log()), kind="error")
def text_that_does_not_compile(patch):
    scalar(patch, "log", "no_such_function({})")


@fault(lambda: (lambda a: a.sin() + 1, x(64, 64)), kind="slow")
def slow_kernel(patch):
    many = "({{ auto v = {0}; for (int i = 0; i < 4000; ++i) v = sin(v); sin({0}) + v * 0; }})"
    scalar(patch, "sin", many)


# -------------------------------------------------------------------------------------------------- crashes and hangs


@fault(chain(torch.atan), kind="crash")
def process_abort(patch):
    rule(patch, aten.atan.default, lambda real: lambda b, x: os.abort())


@fault(lambda: (lambda a: a.erf(), x(3)), kind="hang")
def hang(patch):
    rule(patch, aten.erf.default, lambda real: lambda b, x: time.sleep(1000))


# ------------------------------------------------------------------------------------------------------------- backward


@fault(trained(F.gelu), "aten.gelu_backward", train=True)
def sign_of_a_gradient(patch):
    rule(patch, aten.gelu_backward.default, lambda real: lambda b, *args, **kwargs: -real(b, *args, **kwargs))


@fault(lambda: (Net(), x(3, 12)), "aten.native_layer_norm_backward", train=True)
def dropped_term_of_a_gradient(patch):
    def broken(real):
        def run(b, grad, x, shape, mean, rstd, weight, bias, mask):
            return (grad * weight * rstd, *real(b, grad, x, shape, mean, rstd, weight, bias, mask)[1:])

        return run

    rule(patch, aten.native_layer_norm_backward.default, broken)


@fault(trained(torch.tanh), train=True)
def swapped_operands_in_the_partition(patch):
    real = repeated.partition

    def broken(*args):
        parts = real(*args)
        for node in calls(parts.backward, aten.tanh_backward.default):
            node.args = node.args[1], node.args[0]
        return parts

    patch.setattr(repeated, "partition", broken)


@fault(trained(F.silu), kind="error", train=True)
def raise_in_the_joint_graph(patch):
    real = repeated.trace_joint

    def broken(graph, *args):
        if calls(graph, aten.silu.default):
            raise IndexError("tuple index out of range")
        return real(graph, *args)

    patch.setattr(repeated, "trace_joint", broken)
