"""Residual code: what runs in place of a captured frame, written as Python text and compiled by CPython.

    def f(x, self, __fs_inputs):
        __fs_o = <graph>(__fs_inputs)
        …values made again, effects replayed…
        return __fs_o[0]
"""

from __future__ import annotations
import __future__

import ast
import functools
import operator
import re
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

from framesmith.util.errors import Unsupported

from . import trackers as t
from .bytecode import localsplus_names
from .bytecode.liveness import liveness
from .effects import replay
from .frame import Frame
from .rebuild import Rebuilder, rest_of
from .resume import cell_names, continuation, origin
from .session import Session
from .steps import STEPS, Branch, call_takes

INPUTS = "__fs_inputs"
OUTPUTS = "__fs_o"
FUTURES = functools.reduce(operator.or_, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names))
_HELD = re.compile(r"__fs_held_(\d+)__")


def argument_names(code: CodeType) -> tuple[str, ...]:
    """The argument locals, in co_varnames order."""
    n = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
    return code.co_varnames[:n]


def parameter_names(code: CodeType) -> dict[str, str]:
    """Argument -> its name in residual text (comprehensions have arguments such as `.0`)."""
    return {n: n if n.isidentifier() else f"__fs_p{i}" for i, n in enumerate(argument_names(code))}


class Rest(str):
    """The name of a list that stands for an iterator over it."""

    __slots__ = ()


class Residual:
    """Writes the residual code of one capture."""

    def __init__(self, cx: Session, code: CodeType) -> None:
        self.cx = cx
        self.code = code
        self.params = parameter_names(code)
        self.rb = Rebuilder(cx, self.params)
        self.called: Any = None
        """What calls the graph, if it is not called in the mode in which the frame is."""
        self.settled: list[str] = []
        """What makes the outputs of the graph's."""
        self.tail: list[tuple[int, str]] = []
        """(indent, text) of what follows the effects."""

    # --- the two ends -------------------------------------------------------------------------------------------------
    def returns(self, value: t.Tracker) -> None:
        """The frame was captured to its return."""
        text = self.rb.value(value)
        self.late = replay(self.rb)
        self.tail.append((0, f"return {text}"))

    def breaks(self, frames: list[Frame]) -> None:
        """Capture stops before the present instruction of `frames[-1]`; every frame goes on in a continuation."""
        rb = self.rb
        inner = frames[-1]
        ins = inner.dec.instrs[inner.ip - 1]
        names = [self.operand(v) for v in inner.stack]
        arg = ins.target if ins.target >= 0 else ins.val
        step = STEPS[ins.op](inner, names, arg)
        outer = [self.caller(f) for f in frames[:-1]]
        if isinstance(step, Branch):
            below = names[:-1]
            jump = self.enter(inner, step.target, below if step.pop_on_jump else names)
            fall = self.enter(inner, inner.ip, below if step.pop_on_fall else names)
            self.late = replay(rb)
            self.tail += [(0, f"if {step.test}:"), (1, f"__fs_r = {jump}"), (0, "else:"), (1, f"__fs_r = {fall}")]
        else:
            stack = [*names[:len(names) - step.takes], *step.pushes]
            go_on = self.enter(inner, inner.ip, stack)
            self.late = replay(rb)
            self.tail += [(0, step.text), (0, f"__fs_r = {go_on}")]
        self.tail.extend((0, f"__fs_r = {text}") for text in reversed(outer))
        self.tail.append((0, "return __fs_r"))

    def operand(self, v: t.Tracker) -> str | None:
        """The expression of a stack entry; None for a NULL.  A list iterator that only the stack holds goes on as a list."""
        if v is t.NULL:
            return None
        if isinstance(v, t.Iter) and not any(v is x for f in self.cx.frames for x in f.locals):
            return Rest(self.rb.temp(rest_of(self.rb, v)))
        return self.rb.value(v)

    def caller(self, frame: Frame) -> str:
        """The continuation of a frame whose present instruction is the call of the frame below."""
        ins = frame.dec.instrs[frame.ip - 1]
        takes = call_takes(frame, ins.op, ins.val)
        below = [self.operand(v) for v in frame.stack[:len(frame.stack) - takes]]
        return self.enter(frame, frame.ip, [*below, "__fs_r"])

    def enter(self, frame: Frame, index: int, stack: list[str | None]) -> str:
        """The expression that goes on at instruction `index` of a frame."""
        rb, cx = self.rb, self.cx
        code, at = origin(frame.code, index)
        cells = cell_names(code)
        live = liveness(code, at)
        values: dict[str, str] = {}
        closure: dict[str, str] = {}
        for i, name in enumerate(frame.dec.localsplus):
            v = frame.locals[i]
            if name in cells:
                closure[name] = rb.value(v) if isinstance(v, t.Cell) else rb.value(t.Cell(v))
            elif name in live:
                if v is None and frame is cx.frames[0] and i in cx.pending:
                    values[name] = self.params[name]
                elif v is not None and v is not t.NULL:
                    values[name] = rb.value(v)
        names = tuple(n for n in code.co_varnames if n in values)
        cont = continuation(code, at, tuple(0 if s is None else 2 if isinstance(s, Rest) else 1 for s in stack), names)
        args = [s for s in stack if s is not None] + [values[n] for n in names]
        if cells:
            tup = ", ".join(closure[n] for n in cells)
            space = "globals()" if frame.globals is cx.root_globals and "globals" not in frame.globals else rb.hold(frame.globals)
            fn = f"{rb.hold(FunctionType)}({rb.hold(cont)}, {space}, {code.co_name!r}, None, ({tup},))"
        else:
            fn = rb.hold(self.function(cont, frame.globals))
        return f"{fn}({', '.join(args)})"

    def function(self, cont: CodeType, space: dict[str, Any]) -> Callable[..., Any]:
        return FunctionType(cont, space, cont.co_name)

    # --- text to code -------------------------------------------------------------------------------------------------
    def text(self, graph: bool) -> str:
        """The residual function as Python text."""
        params = ", ".join([*self.params.values(), INPUTS])
        body = []
        if graph:
            called = f"{self.rb.hold(self.called)}({self.rb.hold(GRAPH)}, {INPUTS})" if self.called else f"{self.rb.hold(GRAPH)}({INPUTS})"
            body.append(f"{OUTPUTS} = {called}")
            body += self.settled
        body += self.rb.lines + self.late
        body += ["    " * indent + line for indent, line in self.tail]
        body = [f"__fs_h{i} = '__fs_held_{i}__'" for i in range(len(self.rb.held))] + body
        name = self.code.co_name if self.code.co_name.isidentifier() else "frame"
        inner = "\n".join("        " + line for line in body)
        free = self.code.co_freevars
        # every free variable of the user's code is one of the residual code too
        uses = f"        if 0: {'; '.join(free)}\n" if free else ""
        outer = ", ".join(f"{n}=None" for n in free)
        return f"def __fs_outer({outer}):\n    def {name}({params}):\n{uses}{inner}\n    return {name}\n"

    def compile(self, graph_call: Any) -> tuple[CodeType, str]:
        """(residual code, its text)"""
        text = self.text(graph_call is not None)
        tree = ast.parse(text)
        line = self.cx.frames[-1].line if self.cx.frames else self.code.co_firstlineno
        for node in ast.walk(tree):
            if hasattr(node, "lineno"):
                node.lineno = node.end_lineno = line  # type: ignore[attr-defined]
        # what the code executes (`exec`, `compile`) inherits its future statements: the user's, not ours
        module = compile(tree, self.code.co_filename, "exec", self.code.co_flags & FUTURES, dont_inherit=True)
        outer = next(c for c in module.co_consts if isinstance(c, CodeType))
        code = next(c for c in outer.co_consts if isinstance(c, CodeType))
        held = [graph_call if h is GRAPH else h for h in self.rb.held]
        code = fill(code, held)
        if code.co_freevars != self.code.co_freevars:
            raise Unsupported("free variables of residual code")
        return code.replace(co_firstlineno=self.code.co_firstlineno), text


GRAPH = type("Graph", (), {"__repr__": lambda self: "<graph>"})()
"""Stands for the compiled graph until it exists."""


def fill(code: CodeType, held: list[Any]) -> CodeType:
    """Put the held objects into co_consts, in nested code too."""
    consts = []
    for c in code.co_consts:
        if isinstance(c, str) and (m := _HELD.fullmatch(c)):
            consts.append(held[int(m[1])])
        elif isinstance(c, CodeType):
            consts.append(fill(c, held))
        else:
            consts.append(c)
    return code.replace(co_consts=tuple(consts))


__all__ = ["Residual", "argument_names", "localsplus_names", "parameter_names"]
