# ruff: noqa: B007, C417, F841, PIE800, RET504, SIM105
"""A break may stand anywhere: in loops, in try and with blocks, in handlers, in callees, with anything on the stack."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import torch

import framesmith
from framesmith import _C
from framesmith.capture.residual import assemble
from framesmith.compiler import FrameCompiler
from framesmith.config import Config
from framesmith.ledger import Ledger
from tests.capture.driver import same

X = torch.linspace(-1, 1, 12).reshape(3, 4)


def outcome(fn: Callable[..., Any], args: Any, traces: bool = True) -> Any:
    """The result or the exception of a call, with the user's lines of its traceback, and what it recorded."""
    record.clear()
    try:
        result = fn(*args)
    except Exception as e:
        lines = [(f.name, f.lineno) for f in traceback.extract_tb(e.__traceback__) if f.filename == __file__][1:]
        result = (type(e), e.args, lines if traces else None, type(e.__context__), type(e.__cause__))
    return result, list(record)


record: list[Any] = []


def check(fn: Callable[..., Any], *args: Any, refused: int = 0, traces: bool = True) -> list[Any]:
    """Two calls as in plain Python; the breaks.  No frame was refused but `refused`, and no compiler's error is
    hidden."""
    ledger = Ledger()
    compiler = FrameCompiler(Config(backend="eager", suppress_errors=False), ledger)
    compiled = _C.CompiledFunction(fn, compiler)
    with torch.no_grad():
        want = outcome(fn, args, traces)
        for _ in range(2):
            got = outcome(compiled, args, traces)
            assert same(got, want), (got, want)
    assert len(ledger.refusals) == refused, ledger.refusals
    return [b for record in ledger.records for b in record.breaks]


@framesmith.disable
def peek(x: torch.Tensor) -> float:
    return x.sum().item()


class Manager:
    def __init__(self, swallow: bool = False) -> None:
        self.swallow = swallow

    def __enter__(self) -> Manager:
        record.append("enter")
        return self

    def __exit__(self, kind: Any, value: Any, tb: Any) -> bool:
        record.append(("exit", kind))
        return self.swallow


@contextmanager
def noted(name: str) -> Any:
    record.append(f"in {name}")
    try:
        yield name
    finally:
        record.append(f"out {name}")


def test_in_a_try_block():
    def fn(x):
        y = x + 1
        try:
            n = peek(y)
            y = y * n
        except ValueError:
            return 0
        return y + 1

    assert len(check(fn, X)) == 1


def test_an_exception_from_the_instruction_finds_its_handler():
    def fn(x, d):
        y = x + 1
        try:
            record.append(peek(y))
            n = d[peek(y) > 100]
        except KeyError as e:
            record.append(e.args)
            y = y * 2
        else:
            y = y * 3
        finally:
            record.append("finally")
        return y - 1

    check(fn, X, {})
    check(fn, X, {False: 2})


def test_the_instruction_itself_raises():
    def fn(x):
        y = x + 1
        try:
            y = y * int("nan" * int(peek(y) < 1e9))
        except ValueError as e:
            record.append(str(e))
            y = y * 2
        return y

    check(fn, X)


def test_an_exception_leaves_with_its_traceback():
    def fn(x):
        y = x + 1
        record.append(peek(y))
        z = [1, 2][int(peek(y)) + 5]
        return y * z

    check(fn, X)


def test_an_exception_in_a_callee():
    def inner(x):
        n = peek(x)
        if n > -1e9:
            raise KeyError(n)
        return x

    def fn(x):
        try:
            return inner(x * 2) + 1
        except KeyError as e:
            record.append(len(e.args))
            return x - 1
        finally:
            record.append("done")

    check(fn, X)


def test_in_a_handler():
    def fn(x, d):
        y = x * 2
        try:
            d["k"]
        except KeyError as e:
            y = y + peek(y)
            record.append(sys.exc_info()[0])
            record.append(e.args)
            try:
                y = y * peek(y)
                raise ValueError("inner")
            except ValueError as v:
                record.append((type(v.__context__), peek(y) < 0))
            record.append(sys.exc_info()[0])
        record.append(sys.exc_info()[0])
        return y

    check(fn, X, {})


def test_a_bare_raise_after_a_break():
    def fn(x, d):
        try:
            return x * d["k"]
        except KeyError:
            record.append(peek(x))
            raise

    check(fn, X, {}, traces=False)


def test_raise_from_after_a_break():
    def fn(x, d):
        try:
            return x * d["k"]
        except KeyError as e:
            record.append(peek(x))
            raise ValueError(peek(x)) from e

    check(fn, X, {})


def test_finally_with_return_and_loop():
    def fn(x):
        for i in range(3):
            try:
                x = x + peek(x)
                if i == 1:
                    continue
                if i == 2:
                    return x
            finally:
                record.append((i, peek(x)))
        return None

    check(fn, X)


@pytest.mark.parametrize("swallow", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_in_a_with_block(swallow, fails):
    def fn(x):
        with Manager(swallow) as m:
            y = x + peek(x)
            record.append(m.swallow)
            if fails:
                raise ValueError(1)
            y = y * 2
        return y if not fails else x

    check(fn, X)


def test_nested_with_blocks_of_generators():
    def fn(x):
        with noted("a") as a, noted("b"):
            y = x + peek(x)
            with suppress(KeyError):
                y = y * peek(y)
                {}[a]
            y = y + 1
        return y

    check(fn, X)


def test_grad_mode_across_a_break():
    def fn(x):
        with torch.enable_grad():
            n = peek(x)
            on = torch.is_grad_enabled()
        with torch.no_grad():
            m = peek(x)
            off = torch.is_grad_enabled()
        return x * n + m, on, off, torch.is_grad_enabled()

    check(fn, X)
    with torch.enable_grad():
        assert torch.is_grad_enabled()
        check(fn, X)
        assert torch.is_grad_enabled()


def test_an_exception_leaves_grad_mode_as_it_was():
    def fn(x):
        with torch.inference_mode(False), torch.enable_grad():
            raise ValueError(peek(x))

    check(fn, X)
    assert torch.is_grad_enabled()


def test_in_comprehensions():
    def fn(x):
        a = [x * peek(x) + i for i in range(3) if i != 1]
        b = {i: x + peek(x) for i in range(2)}
        return a, b, sum(peek(x + k) for k in range(2))

    check(fn, X)


def test_with_a_deep_stack():
    def fn(x, f):
        return f(x, [x + 1, f(x, (1, peek(x)), k=2)], k={"a": peek(x), **{"b": x * 2}})

    def f(x, parts, k):
        return x, parts, k

    check(fn, X, f)


def test_loops_do_not_nest():
    def fn(x, n):
        for _ in range(n):
            x = x + peek(x) * 0
        return x

    with torch.no_grad():
        compiled = framesmith.compile(fn, backend="eager")
        assert same(compiled(X, 3000), X)


def test_while_loops_with_breaks_do_not_nest():
    def fn(x, n):
        while n:
            n = n - 1
            if peek(x) > 1e9:
                break
            framesmith.graph_break()
        return x + 1

    with torch.no_grad():
        compiled = framesmith.compile(fn, backend="eager")
        assert same(compiled(X, 2000), X + 1)


def test_a_list_that_grows_while_it_is_iterated():
    def fn(x):
        work = [3]
        for k in work:
            if peek(x) < 1e9 and k:
                work.append(k - 1)
        return x, work

    check(fn, X)


def test_iterators_live_across_a_break():
    def fn(x, xs, d):
        it = iter(xs)
        first = next(it)
        pairs = zip(it, [7, 8, 9])
        n = peek(x)
        second = next(it)
        rest = list(pairs)
        keys = iter(d.items())
        k = next(keys)
        m = peek(x)
        return first, second, rest, k, list(keys), n, m, list(it)

    check(fn, X, [1, 2, 3, 4], {"a": 1, "b": 2})


def test_an_enumeration_lives_across_a_break():
    def fn(x, xs):
        out = []
        for i, (a, b) in enumerate(zip(xs, reversed(xs)), start=5):
            out.append((i, a, b, peek(x)))
        for m in map(lambda v: record.append(v), xs):
            out.append(peek(x))
        for f in filter(None, [0, 1, 0, 2]):
            out.append((f, peek(x)))
        return out

    check(fn, X, [1, 2, 3])


def test_generators_live_across_a_break():
    def count(n):
        record.append("start")
        try:
            for i in range(n):
                got = yield i
                record.append(got)
        finally:
            record.append("end")
        return "result"

    def fn(x):
        g = count(5)
        a = next(g)
        b = g.send("one")
        n = peek(x)
        c = g.send("two")
        rest = list(g)
        late = count(2)
        m = peek(x)
        return a, b, c, rest, n, m, list(late)

    check(fn, X)


def test_a_break_inside_a_generator():
    def values(x):
        for i in range(3):
            yield x * i + peek(x)

    def fn(x):
        out = []
        for v in values(x):
            out.append(v + 1)
        return out

    check(fn, X)


def test_generators_delegate_across_a_break():
    def inner(x):
        try:
            got = yield 1
            record.append(got)
            yield 2
        except KeyError:
            record.append("thrown")
            yield 3
        return 4

    def outer(x):
        r = yield from inner(x)
        record.append(r)
        yield 5

    def fn(x, throw):
        g = outer(x)
        out = [next(g)]
        n = peek(x)
        out.append(g.throw(KeyError()) if throw else g.send("sent"))
        return out, list(g), n

    check(fn, X, False)
    check(fn, X, True)


def test_cells_live_across_breaks():
    def fn(x):
        total = 0

        def add(k):
            nonlocal total
            total += k
            return peek(x) * 0 + k

        a = [add(i) for i in range(3)]
        n = peek(x)
        add(10)
        return a, n, total

    check(fn, X)


def test_one_break_costs_one_break():
    def fn(x):
        y = x + 1
        try:
            with Manager():
                y = y * peek(y)
                y = y + 2
        finally:
            y = y * 3
        return y

    assert len(check(fn, X)) == 1


def test_an_evaluation_loop_settles():
    def fn(x, batches, log):
        total, losses = 0, []
        for step, b in enumerate(batches):
            loss = (x * b).mean()
            losses.append(loss.item())
            total += b
            if step % 4 == 0:
                log(f"step {step} loss {losses[-1]:.3f}")
        return total, losses

    ledger = Ledger()
    compiled = _C.CompiledFunction(fn, FrameCompiler(Config(backend="eager", suppress_errors=False), ledger))
    with torch.no_grad():
        for n in (24, 40):
            seen: list[str] = []
            said: list[str] = []
            want = fn(X, map(float, range(n)), seen.append)
            assert same(compiled(X, map(float, range(n)), said.append), want)
            assert said == seen
            records = len(ledger.records)
        compiled(X, map(float, range(60)), said.append)
    assert ledger.refusals == []
    assert len(ledger.records) == records, "a third run finds all that it needs"


def test_numbers_that_vary():
    def fn(x, n):
        k = n * 2 + 1
        text = f"{k:03d} {-k}"
        return x + 1, k, text, k % 3, k / 2, [k - n], k == 5

    ledger = Ledger()
    compiled = _C.CompiledFunction(fn, FrameCompiler(Config(backend="eager", suppress_errors=False), ledger))
    with torch.no_grad():
        for n in range(20):
            assert same(compiled(X, n), fn(X, n))
    assert len(ledger.records) == 4


def test_residual_code_is_on_the_line_of_the_place():
    def user(x):
        return x

    text = "def __fs_outer():\n    def __fs_frame(x):\n        y = x\n        return lambda: y\n    return __fs_frame\n"
    first = user.__code__.co_firstlineno
    code = assemble(user.__code__, text, first + 7)
    inner = next(c for c in code.co_consts if isinstance(c, type(code)))
    assert code.co_firstlineno == first and {line for _, _, line in code.co_lines()} == {first + 7}
    assert {line for _, _, line in inner.co_lines()} == {first + 7}
