"""Writes a random program by filling templates: text with holes in angle brackets.

`<int>` an expression of that kind; `<int!>` a variable of that kind; `<int=>` one that may be assigned; `<^int>` an
expression that does not see the names that the template itself binds; `<bind:int>` a name bound inside of the template;
`<new:int>` a variable that exists after the statement; `<1..4>` an integer literal; `<key>` a dict key; `<word>` a
string literal.

A row of a table is `weight template`. A weight may be preceded by `b` (the row breaks the graph), `r` (it may well
raise: rare outside of `try`) and `y` (only in a generator).
"""

from __future__ import annotations

import contextlib
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

HOLE = re.compile(r"<(\^?)((?:bind|new):)?([A-Za-z]\w*|-?\d+\.\.\d+)([!=]?)>")
ROW = re.compile(r"([bry]*)(\d+) (.*)")
KEYS = ("a", "b", "c", "d")
WORDS = ("", "x", "ab", "Hello", "a b c", "zz9")


@dataclass(frozen=True)
class Row:
    """One template of a table."""

    weight: int
    text: str
    breaks: bool = False
    yields: bool = False
    raises: bool = False


def rows(text: str) -> list[Row]:
    """The rows of a table's text."""
    found = [ROW.fullmatch(line.strip()) for line in text.strip().splitlines()]
    return [Row(int(m[2]), m[3], "b" in m[1], "y" in m[1], "r" in m[1]) for m in found if m]


@dataclass
class Function:
    """A function that is being written."""

    result: str
    generator: bool = False
    loops: int = 0
    protected: int = 0
    """How many `try` and `with` blocks surround the present statement."""


@dataclass
class Scope:
    """The names that one block defines, and the block around it."""

    function: Function
    outer: Scope | None = None
    names: dict[str, str] = field(default_factory=dict)
    shared: set[str] = field(default_factory=set)
    """Names of functions around that are declared nonlocal or global here."""

    def chain(self) -> Iterator[Scope]:
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.outer

    def find(self, kind: str, own: bool = False) -> list[str]:
        """The visible variables of a kind; `own`: those that may be assigned."""
        out = []
        shared = {n for s in self.chain() if s.function is self.function for n in s.shared}
        for scope in self.chain():
            for name, k in scope.names.items():
                if k == kind and (not own or scope.function is self.function or name in shared):
                    out.append(name)
        return out


class NoTemplate(Exception):
    """A hole that nothing fits."""


@dataclass(frozen=True)
class Options:
    """`breaks`: "none", "open" (not inside of try, with and generators) or "any"; `wide`: with the tables of `wide`;
    `data`: with those of `data`, and with gradients."""

    breaks: str = "any"
    wide: bool = False
    data: bool = False


class Writer:
    """The text so far, the names in scope, and the random choices."""

    def __init__(self, seed: int, options: Options, tables: dict[str, list[Row]], simple: list[Row]) -> None:
        self.random = random.Random(seed)
        self.options = options
        self.tables = {kind: list(table) for kind, table in tables.items()}
        self.simple = list(simple)
        self.kinds: tuple[str, ...] = ()
        """Of variables that statements make."""
        self.blocks: list[tuple[int, Callable[[Writer, int], None]]] = []
        """Writers of compound statements, with their weights."""
        self.methods: tuple[Any, ...] = ()
        self.lines: list[str] = []
        self.indent = 0
        self.counter = 0
        self.scope = Scope(Function("none"))

    # --- text ---------------------------------------------------------------------------------------------------------
    def emit(self, line: str) -> None:
        self.lines.append("    " * self.indent + line)

    def name(self, stem: str) -> str:
        self.counter += 1
        return f"{stem}{self.counter}"

    def chance(self, percent: int) -> bool:
        return self.random.randrange(100) < percent

    @property
    def breaking(self) -> bool:
        """Whether the graph may break at the present place."""
        f = self.scope.function
        return self.options.breaks == "any" or self.options.breaks == "open" and not (f.protected or f.generator)

    @property
    def risky(self) -> bool:
        """Whether the next row may be one that is likely to raise."""
        return self.chance(60 if self.scope.function.protected else 6)

    @contextlib.contextmanager
    def block(self, head: str | None = None, function: Function | None = None) -> Iterator[Scope]:
        """An indented block with names of its own."""
        if head is not None:
            self.emit(head)
            self.indent += 1
        before = self.scope
        self.scope = Scope(function or before.function, before)
        size = len(self.lines)
        try:
            yield self.scope
        finally:
            if head is not None:
                if len(self.lines) == size:
                    self.emit("pass")
                self.indent -= 1
            self.scope = before

    # --- choices ------------------------------------------------------------------------------------------------------
    def choose(self, table: list[Row], depth: int) -> str:
        """A filled template of a table."""
        risky = self.risky
        fit = [r for r in table if (not r.breaks or self.breaking) and (not r.yields or self.scope.function.generator)
               and (not r.raises or risky)]
        while fit:
            row = self.random.choices(fit, [r.weight for r in fit])[0]
            try:
                return self.fill(row.text, depth)
            except NoTemplate:
                fit.remove(row)
        raise NoTemplate

    def expr(self, kind: str, depth: int = 2) -> str:
        """An expression of a kind."""
        names = self.scope.find(kind)
        if names and self.chance(80 if depth <= 0 else 45):
            return self.near(names)
        if depth <= 0:
            return self.choose(self.tables["leaf " + kind], 0)
        try:
            return self.choose(self.tables[kind], depth - 1)
        except NoTemplate:
            return self.choose(self.tables["leaf " + kind], 0)

    def variable(self, kind: str, own: bool) -> str:
        names = self.scope.find(kind, own)
        if not names:
            raise NoTemplate
        return self.near(names)

    def near(self, names: list[str]) -> str:
        """One of the names, rather one of the inner blocks'."""
        return self.random.choice(names[:4] if self.chance(60) else names)

    def fill(self, template: str, depth: int) -> str:
        """The template with its holes filled; `<new:kind>` become variables afterwards."""
        parts = HOLE.split(template)
        out = {}
        made: list[tuple[str, str]] = []
        holes = [(i, *parts[i:i + 4]) for i in range(1, len(parts), 5)]
        inner = Scope(self.scope.function, self.scope)
        for i, _, role, kind, _ in holes:
            if role == "bind:":
                out[i] = self.name("c")
                inner.names[out[i]] = kind
            elif role == "new:":
                out[i] = self.name("v")
                made.append((out[i], kind))
        outer = self.scope
        for i, up, role, kind, mark in holes:
            if role:
                continue
            self.scope = outer if up else inner
            try:
                out[i] = self.hole(kind, mark, depth)
            finally:
                self.scope = outer
        for name, kind in made:
            self.scope.names[name] = kind
        return "".join(out.get(i, text) for i, text in enumerate(parts) if i in out or i % 5 == 0)

    def hole(self, kind: str, mark: str, depth: int) -> str:
        if mark:
            return self.variable(kind, mark == "=")
        if ".." in kind:
            low, high = kind.split("..")
            return str(self.random.randint(int(low), int(high)))
        if kind == "key":
            return repr(self.random.choice(KEYS))
        if kind == "word":
            return repr(self.random.choice(WORDS))
        return self.expr(kind, depth)
