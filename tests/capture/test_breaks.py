"""Graph breaks: the instruction runs in Python, what stands before and after it is captured."""

from __future__ import annotations

import io
import sys
import warnings
from typing import Any

import pytest
import torch

import framesmith
from framesmith.capture.entry import UserError
from framesmith.util.errors import Unsupported
from tests.capture.driver import Compiled, same

X = torch.linspace(-1, 1, 12).reshape(3, 4)


def check(fn: Any, *args: Any) -> Compiled:
    with torch.no_grad():
        want = fn(*args)
        compiled = Compiled(fn)
        assert same(compiled(*args), want)
    return compiled


def test_branch_on_data_compiles_both_sides() -> None:
    def fn(x):
        y = x * 2
        if y.mean() > 0:
            y = y.relu()
        else:
            y = y.sigmoid()
        return y + 1

    for sign in (1, -1):
        compiled = check(fn, X + sign)
        assert compiled.graphs == 2
        assert [b.reason for b in compiled.breaks] == ["truth of a tensor's data"]


def test_call_in_the_middle() -> None:
    def fn(x):
        y = x + 1
        n = y.tolist()
        return y * 2, n

    compiled = check(fn, X)
    assert compiled.graphs == 2
    assert len(compiled.breaks) == 1


def test_a_loop_with_a_break_makes_one_continuation() -> None:
    def fn(x, ks):
        for k in ks:
            x = x * k
            x = x + x.sum().tolist()
        return x

    compiled = check(fn, X, [1, 1, 1, 1])
    assert len({c.residual_code.co_code for c in compiled.captures[1:4]}) <= 2
    assert len(compiled.breaks) == 4


def test_messages_do_not_break(capsys: Any) -> None:
    def fn(x):
        y = x + 1
        print("hello", y.shape)
        return y * 2

    compiled = check(fn, X)
    assert compiled.breaks == []
    assert capsys.readouterr().out == "hello torch.Size([3, 4])\n" * 2


def inner(x, k):
    y = x * k
    n = y.sum().tolist()
    return y + n


def middle(x):
    z = [x, inner(x + 1, 2)]
    return z[0] * z[1]


def test_break_in_a_callee_resumes_inside_of_it() -> None:
    def fn(x):
        a = x - 1
        b = middle(a)
        return (a, b + 1)

    compiled = check(fn, X)
    assert [(b.function, b.line) for b in compiled.breaks] == [("inner", inner.__code__.co_firstlineno + 2)]
    assert compiled.graphs >= 2


def test_values_on_the_stack_cross_a_break() -> None:
    def fn(x):
        return [x + 1, x.sum().tolist() + 2, {"k": x.sum().tolist()}]

    compiled = check(fn, X)
    assert len(compiled.breaks) == 2


def test_closures_cross_a_break() -> None:
    def fn(x):
        k = 1

        def bump():
            nonlocal k
            k += 1
            return k

        bump()
        y = x + x.sum().tolist()
        bump()
        return y * k, bump()

    check(fn, X)


def test_effects_before_the_break_come_first() -> None:
    out: list[Any] = []

    def fn(x):
        out.append("before")
        print(out)
        out.append("after")
        return x + 1

    keep, sys.stdout = sys.stdout, io.StringIO()
    try:
        with torch.no_grad():
            Compiled(fn)(X)
        text = sys.stdout.getvalue()
    finally:
        sys.stdout = keep
    assert text == "['before']\n"
    assert out == ["before", "after"]


def test_an_instruction_under_a_handler_breaks_there() -> None:
    def fn(x):
        try:
            return x.sum().tolist()
        except ValueError:
            return 0

    compiled = check(fn, X)
    assert [b.line for b in compiled.breaks] == [fn.__code__.co_firstlineno + 2]


def test_fullgraph_raises() -> None:
    from framesmith.config import Config

    with torch.no_grad(), pytest.raises(Unsupported, match="tensor's data"):
        Compiled(lambda x: 1 if x.sum() > 0 else 2, Config(fullgraph=True))(X)


def test_an_error_of_the_program_is_reported_as_such() -> None:
    def fn(x):
        return x @ x

    with torch.no_grad(), pytest.raises(UserError, match="RuntimeError"):
        Compiled(fn)(X)


def test_a_write_to_a_leaf_is_eagers_to_refuse() -> None:
    w = torch.ones(4, requires_grad=True)
    with pytest.raises(Unsupported, match="requires grad"):
        Compiled(lambda x: w.add_(x.sum()))(X)


def test_code_that_raises_where_plain_python_does_not_is_told_of() -> None:
    """The frame then ran in plain Python; an exception of the program's own is no matter for a warning."""
    calls = []

    @torch.library.custom_op("fs_tests::every_second", mutates_args=())
    def every_second(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        if len(calls) % 2:
            raise ValueError("not now")
        return x + 1

    every_second.register_fake(torch.empty_like)
    fn = framesmith.compile(lambda x, i: every_second(x)[i] * 2)
    x, inside = torch.randn(4), torch.tensor([1])
    with pytest.warns(UserWarning, match="raised ValueError, plain Python, which ran instead, did not: not now"):
        assert torch.equal(fn(x, inside), (x[inside] + 1) * 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(IndexError):
            calls.append(1)
            framesmith.compile(lambda x, i: x[i] * 2)(x, torch.tensor([9]))
