"""Residual code: what runs in place of a captured frame, written as Python text and compiled by CPython.

    def f(x, self, __fs_inputs):
        __fs_o = <graph>(__fs_inputs)
        …values made again, effects replayed…
        return __fs_o[0]
"""

from __future__ import annotations
import __future__

import builtins
import functools
import operator
import re
from collections.abc import Sequence
from types import CodeType
from typing import Any

from framesmith import _C
from framesmith.fake.dynamic_scalars import Number
from framesmith.util.errors import Unsupported

from . import trackers as t
from .assertions import back, before, checks
from .bridges import Place, bridge, operands
from .bytecode.assemble import line_table
from .eager_fallback import plain_call, plain_call_after, stands
from .effects import replay
from .frame import Frame
from .frame_state import function_text, parts
from .origins import origin
from .overrides import has_function, plain_inputs
from .rebuild import Rebuilder
from .symbolic_arithmetic import number_tensors, sizes_among
from .tracer import Tracer

INPUTS = "__fs_inputs"
OUTPUTS = "__fs_o"
ERROR = "__fs_e"
NUMBERS = "__fs_numbers"
FUTURES = functools.reduce(operator.or_,
                           (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names))
_HELD = re.compile(r"__fs_held_(\d+)__")


def argument_names(code: CodeType) -> tuple[str, ...]:
    """Return the argument locals, in co_varnames order."""
    n = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
    return code.co_varnames[:n]


def parameter_names(code: CodeType, space: dict[str, Any]) -> dict[str, str]:
    """Return the name of each argument in residual text, none of which is a global's or builtin's (comprehensions have
    arguments like `.0`)."""
    taken = [not n.isidentifier() or n in space or hasattr(builtins, n) for n in argument_names(code)]
    return {n: f"__fs_p{i}" if taken[i] else n for i, n in enumerate(argument_names(code))}


class Residual:
    """Writes the residual code of one capture."""

    def __init__(self, tracer: Tracer, code: CodeType) -> None:
        self.tracer = tracer
        self.code = code
        self.params = parameter_names(code, tracer.root_globals)
        self.rebuilder = Rebuilder(tracer, code, self.params)
        self.called: Any = None
        """The function that calls the graph, if the graph is not called in the frame's own mode."""
        self.numbers: list[str] = []
        """Statements that make `__fs_numbers`, the graph's inputs with the numbers that it takes."""
        self.settled: list[str] = []
        """Statements that make the frame's outputs of the graph's."""
        self.tail: list[tuple[int, str]] = []
        """(indent, text) of what follows the effects."""

    # --- the two ends -------------------------------------------------------------------------------------------------
    def returns(self, value: t.Tracker) -> None:
        """Write the end of a frame that was captured to its return."""
        self.draw()
        text = self.rebuilder.value(value)
        self.late = [*checks(self.rebuilder, lambda: plain_call(self.rebuilder)), *replay(self.rebuilder)]
        self.tail.append((0, f"return {text}"))

    def breaks(self, frames: list[Frame]) -> None:
        """Write the end where capture stops before the present instruction of `frames[-1]`; every frame continues by a
        bridge."""
        self.draw()
        make = self.rebuilder.hold(_C.tail_call)
        call = f"{make}({self.leave(frames[-1])})"
        for frame in reversed(frames[:-1]):
            call = f"{make}({self.leave(frame, call)})"
        self.late = [*checks(self.rebuilder, lambda: plain_call(self.rebuilder)), *replay(self.rebuilder)]
        self.tail.append((0, f"return {call}"))

    def draw(self) -> None:
        """Draw the random numbers of Python's generators, used or not, before any value."""
        for x in self.tracer.draws:
            self.rebuilder.value(x)
        if self.tracer.modes.functions:
            raise Unsupported("captured code ends in a function mode")

    def leave(self, frame: Frame, inner: str | None = None) -> str:
        """Return the call of a frame's bridge, as text; `inner` is the call that the frame waits for."""
        rebuilder = self.rebuilder
        code, at = origin(frame.code, frame.ip - 1)
        if frame.fn.existing is not None and code is frame.code:
            self.tracer.surroundings.functions.setdefault(id(code), frame.fn.existing)
        stack = frame.stack if inner is None else frame.stack[:len(frame.stack) - operands(code, at)]
        p = parts(rebuilder, frame, code, at, stack)
        made = bridge(Place(code, at, p.layout, p.names, frame.kw_names), inner is not None)
        args = p.args if inner is None else [*p.args, inner]
        return ", ".join([function_text(rebuilder, frame, made, p.cells), *args])

    def take(self, numbers: list[tuple[t.SymbolicNumber, Number | None]]) -> None:
        """Pass these numbers to the graph after its inputs; they are computed before it runs, when no name is bound
        yet."""
        rebuilder = self.rebuilder
        later, rebuilder.lines, bound, rebuilder.names = rebuilder.lines, [], rebuilder.names, {}
        of_outputs, rebuilder.data_sizes = rebuilder.data_sizes, {}
        texts = [late.text(rebuilder) for late, _ in numbers]
        divisors = tuple([i for i, (_, number) in enumerate(numbers) if number is not None and number.divides])
        given = ", ".join([INPUTS, repr(divisors), repr(sizes_among(numbers)), *texts])
        self.numbers = [*rebuilder.lines,
                        f"{NUMBERS} = {rebuilder.hold(number_tensors)}({given})"]
        rebuilder.lines, rebuilder.names, rebuilder.data_sizes = later, bound, of_outputs

    # --- text to code -------------------------------------------------------------------------------------------------
    def text(self, graph: bool) -> str:
        """Return the residual function as Python text."""
        params = ", ".join([*self.params.values(), INPUTS])
        body = [*before(self.rebuilder),
                *(f"{self.rebuilder.hold(setter)}({seed})" for setter, seed in self.tracer.seeds.before)]
        only = range(0)
        if graph:
            if self.rebuilder.targets and any(self.tracer.recorder.mutated(x.fake) for x in self.tracer.inputs):
                raise Unsupported("what a weak reference refers to lives across the end of code that writes its inputs")
            given = NUMBERS if self.numbers else INPUTS
            if places := tuple([self.tracer.input_slot(x) for x in self.tracer.inputs if has_function(x.pyclass)]):
                given = f"{self.rebuilder.hold(plain_inputs)}({given}, {places})"
            called = (f"{self.rebuilder.hold(self.called)}({self.rebuilder.hold(GRAPH)}, {given})" if self.called
                      else f"{self.rebuilder.hold(GRAPH)}({given})")
            first = len(self.rebuilder.held)
            failed = [f"if {self.rebuilder.hold(stands)}({ERROR}): raise", *back(self.rebuilder),
                      f"return {plain_call_after(self.rebuilder, ERROR)}"]
            only = range(first, len(self.rebuilder.held))  # held by nothing else, so loaded there
            body += ["try:", *(f"    {line}" for line in [*self.numbers, f"{OUTPUTS} = {called}"]),
                     f"except Exception as {ERROR}:", *(f"    {line}" for line in [*map(_load, only), *failed])]
            body += self.settled
        body += self.rebuilder.lines + self.late + self.rebuilder.after
        body += ["    " * indent + line for indent, line in self.tail]
        body = [_load(i) for i in range(len(self.rebuilder.held)) if i not in only] + body
        inner = "\n".join("        " + line for line in body)
        free = self.code.co_freevars
        # every free variable of the user's code is one of the residual code too
        uses = f"        if 0: {'; '.join(free)}\n" if free else ""
        outer = ", ".join(f"{n}=None" for n in free)
        return f"def __fs_outer({outer}):\n    def __fs_frame({params}):\n{uses}{inner}\n    return __fs_frame\n"

    @property
    def line(self) -> int:
        """The line that errors in residual code show."""
        return self.tracer.frames[-1].line if self.tracer.frames else self.code.co_firstlineno


def assemble(user: CodeType, text: str, line: int) -> CodeType:
    """Return the code object of residual `text`, which stands for `user`, without the objects that it holds."""
    # what the code executes (`exec`, `compile`) inherits its future statements: the user's, not ours
    module = compile(text, user.co_filename, "exec", user.co_flags & FUTURES, dont_inherit=True)
    outer = next(c for c in module.co_consts if isinstance(c, CodeType))
    code = next(c for c in outer.co_consts if isinstance(c, CodeType))
    if code.co_freevars != user.co_freevars:
        raise Unsupported("free variables of residual code")
    # the name comes last: in the text, it would stand between the code and a global of that name
    return _at(code, user.co_firstlineno, line).replace(co_name=user.co_name, co_qualname=user.co_qualname)


def _at(code: CodeType, first: int, line: int) -> CodeType:
    """Return code that begins on line `first`, with all instructions, those of nested code too, on one line."""
    consts = tuple([_at(c, line, line) if isinstance(c, CodeType) else c for c in code.co_consts])
    table = line_table([(line, len(code.co_code) // 2)], first)
    return code.replace(co_firstlineno=first, co_linetable=table, co_consts=consts)


def link(code: CodeType, held: Sequence[Any], graph_call: Any) -> CodeType:
    """Return residual code with the objects that it holds, including the compiled graph."""
    return fill(code, [graph_call if h is GRAPH else h for h in held])


GRAPH = type("Graph", (), {"__repr__": lambda self: "<graph>"})()
"""Stands for the compiled graph until it exists."""


def _load(index: int) -> str:
    """Return the statement that loads a held object."""
    return f"__fs_h{index} = '__fs_held_{index}__'"


def fill(code: CodeType, held: Sequence[Any]) -> CodeType:
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
