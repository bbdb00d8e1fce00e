"""The instruction at which capture broke, as a statement of residual code.

A row takes the names of the operands on top of the stack and gives the statement, how many entries it takes, and what it pushes
(expressions; None is a NULL).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from .frame import Frame
from .registry import Handler


class Step(NamedTuple):
    """`takes` entries are popped, `text` runs, `pushes` are pushed."""

    takes: int
    text: str
    pushes: tuple[str | None, ...]


class Branch(NamedTuple):
    """A conditional jump on data: by `test`, go on at `target` or at the next instruction."""

    test: str
    target: int
    pop_on_jump: bool
    pop_on_fall: bool


STEPS: dict[str, Handler] = {}
R = "__fs_r"


def step(*names: str) -> Callable[[Handler], Handler]:
    """Register the row of opcodes: row(frame, operand names, argument) -> Step or Branch."""

    def register(fn: Handler) -> Handler:
        for n in names:
            STEPS[n] = fn
        return fn

    return register


_BINARY = {"add": "+", "and_": "&", "floordiv": "//", "lshift": "<<", "matmul": "@", "mul": "*", "mod": "%", "or_": "|", "pow": "**",
           "rshift": ">>", "sub": "-", "truediv": "/", "xor": "^"}
_UNARY = {"UNARY_NEGATIVE": "-", "UNARY_POSITIVE": "+", "UNARY_INVERT": "~", "UNARY_NOT": "not "}


def call_takes(frame: Frame, op: str, arg: int) -> int:
    """Stack entries that a call instruction takes."""
    return arg + 2 if op == "CALL" else 3 + (arg & 1)


@step("CALL")
def _call(f: Frame, names: list[str | None], n: int) -> Step:
    ops = names[-n - 2:]
    fn, args = (ops[1], ops[2:]) if ops[0] is None else (ops[0], ops[1:])
    kw = f.kw_names
    split = len(args) - len(kw)
    parts = [str(a) for a in args[:split]] + [f"{k}={v}" for k, v in zip(kw, args[split:])]
    return Step(n + 2, f"{R} = {fn}({', '.join(parts)})", (R,))


@step("CALL_FUNCTION_EX")
def _call_ex(f: Frame, names: list[str | None], flags: int) -> Step:
    if flags & 1:
        return Step(4, f"{R} = {names[-3]}(*{names[-2]}, **{names[-1]})", (R,))
    return Step(3, f"{R} = {names[-2]}(*{names[-1]})", (R,))


@step("LOAD_ATTR")
def _attr(f: Frame, names: list[str | None], name: str) -> Step:
    return Step(1, f"{R} = {names[-1]}.{name}", (R,))


@step("LOAD_METHOD")
def _method(f: Frame, names: list[str | None], name: str) -> Step:
    return Step(1, f"{R} = {names[-1]}.{name}", (None, R))


@step("STORE_ATTR")
def _store_attr(f: Frame, names: list[str | None], name: str) -> Step:
    return Step(2, f"{names[-1]}.{name} = {names[-2]}", ())


@step("DELETE_ATTR")
def _delete_attr(f: Frame, names: list[str | None], name: str) -> Step:
    return Step(1, f"del {names[-1]}.{name}", ())


@step("BINARY_OP")
def _binary(f: Frame, names: list[str | None], name: str) -> Step:
    return Step(2, f"{R} = {names[-2]} {_BINARY[name]} {names[-1]}", (R,))


@step("INPLACE_OP")
def _inplace(f: Frame, names: list[str | None], name: str) -> Step:
    base = name[1:]
    symbol = _BINARY[base + "_" if base in ("and", "or") else base]
    return Step(2, f"{R} = {names[-2]}; {R} {symbol}= {names[-1]}", (R,))


def _unary_row(symbol: str) -> Handler:
    return lambda f, names, arg: Step(1, f"{R} = {symbol}{names[-1]}", (R,))


for _name, _symbol in _UNARY.items():
    step(_name)(_unary_row(_symbol))


@step("COMPARE_OP")
def _compare(f: Frame, names: list[str | None], symbol: str) -> Step:
    return Step(2, f"{R} = {names[-2]} {symbol} {names[-1]}", (R,))


@step("CONTAINS_OP")
def _contains(f: Frame, names: list[str | None], invert: int) -> Step:
    return Step(2, f"{R} = {names[-2]} {'not in' if invert else 'in'} {names[-1]}", (R,))


@step("BINARY_SUBSCR")
def _subscr(f: Frame, names: list[str | None], arg: Any) -> Step:
    return Step(2, f"{R} = {names[-2]}[{names[-1]}]", (R,))


@step("STORE_SUBSCR")
def _store_subscr(f: Frame, names: list[str | None], arg: Any) -> Step:
    return Step(3, f"{names[-2]}[{names[-1]}] = {names[-3]}", ())


@step("DELETE_SUBSCR")
def _delete_subscr(f: Frame, names: list[str | None], arg: Any) -> Step:
    return Step(2, f"del {names[-2]}[{names[-1]}]", ())


@step("BINARY_SLICE")
def _slice(f: Frame, names: list[str | None], arg: Any) -> Step:
    return Step(3, f"{R} = {names[-3]}[{names[-2]}:{names[-1]}]", (R,))


@step("STORE_SLICE")
def _store_slice(f: Frame, names: list[str | None], arg: Any) -> Step:
    return Step(4, f"{names[-3]}[{names[-2]}:{names[-1]}] = {names[-4]}", ())


@step("GET_ITER")
def _iter(f: Frame, names: list[str | None], arg: Any) -> Step:
    return Step(1, f"{R} = iter({names[-1]})", (R,))


@step("GET_LEN")
def _len(f: Frame, names: list[str | None], arg: Any) -> Step:
    return Step(0, f"{R} = len({names[-1]})", (R,))


@step("UNPACK_SEQUENCE")
def _unpack(f: Frame, names: list[str | None], n: int) -> Step:
    targets = [f"{R}{i}" for i in range(n)]
    return Step(1, f"[{', '.join(targets)}] = {names[-1]}", tuple(reversed(targets)))


@step("FORMAT_VALUE")
def _format(f: Frame, names: list[str | None], flags: int) -> Step:
    conversion = ("", "!s", "!r", "!a")[flags & 3]
    spec = f", {names[-1]}" if flags & 4 else ""
    value = names[-2] if flags & 4 else names[-1]
    inner = {"": value, "!s": f"str({value})", "!r": f"repr({value})", "!a": f"ascii({value})"}[conversion]
    return Step(2 if flags & 4 else 1, f"{R} = format({inner}{spec})", (R,))


@step("LOAD_GLOBAL")
def _global(f: Frame, names: list[str | None], name: str) -> Step:
    return Step(0, f"{R} = {name}", (R,))


@step("LIST_EXTEND")
def _extend(f: Frame, names: list[str | None], n: int) -> Step:
    return Step(1, f"{names[-1 - n]}.extend({names[-1]})", ())


@step("POP_JUMP_IF_FALSE")
def _jump_false(f: Frame, names: list[str | None], target: int) -> Branch:
    return Branch(f"not {names[-1]}", target, True, True)


@step("POP_JUMP_IF_TRUE")
def _jump_true(f: Frame, names: list[str | None], target: int) -> Branch:
    return Branch(f"{names[-1]}", target, True, True)


@step("JUMP_IF_FALSE_OR_POP")
def _false_or_pop(f: Frame, names: list[str | None], target: int) -> Branch:
    return Branch(f"not {names[-1]}", target, False, True)


@step("JUMP_IF_TRUE_OR_POP")
def _true_or_pop(f: Frame, names: list[str | None], target: int) -> Branch:
    return Branch(f"{names[-1]}", target, False, True)
