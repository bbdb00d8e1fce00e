"""The kernel header. A translation unit begins with those of its declarations that the unit needs: to parse all of them
takes a compiler longer than to compile a small kernel."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

END = "}  // namespace fs\nusing namespace fs;\n"
"""The last lines of the header of any unit."""
_FIRST = "// ---- splat, iota, masks\n"
"""Types and macros, of which each unit has all, stand before this line."""
_DEFINED = re.compile(
    r'^(?:template <.*> )?(?:FN|static|extern "C")\b[^\n(]*?\b(\w+)\('  # a function
    r"|^(?:template <.*> )?(?:struct|constexpr \w+) (\w+)"
    r"|^typedef .*\b(\w+);"
    r"|^#define (\w+)", re.M)  # fmt: skip
_CALL = re.compile(r"(FS_\w+)\(([^()]*)\)\s*")
_IGNORED = re.compile(r"//[^\n]*| ?__attribute__\(\([^\n]*?\)\)(?!\))")


@dataclass(frozen=True, slots=True)
class Declaration:
    """`names`: what it defines; none: each unit has it. `needs`: the words that it uses."""

    text: str
    names: frozenset[str]
    needs: frozenset[str]


@functools.cache
def header_text() -> str:
    """Return the whole header with its includes expanded."""
    folder = Path(__file__).parent
    kernel, contraction = ((folder / name).read_text() for name in ("kernel.h", "contraction.h"))
    expanded = re.sub(r'#include "(.*)"\n', lambda found: (folder / found[1]).read_text(), kernel)
    more = contraction.replace('#include "kernel.h"\nnamespace fs {\n', "")
    return (expanded.replace("}  // namespace fs\n", "") + more.replace("}  // namespace fs\n", "") + END).replace(
        "#pragma once\n", "")


def header_for(unit: str) -> str:
    """Return the header of a translation unit that goes on with this text: what it uses, what that uses, and so on, in
    the header's order. All overloads of a name come together, so that a call finds the same as under the whole
    header."""
    first, declarations, defining = _table()
    taken = {i for i, declaration in enumerate(declarations) if not declaration.names}
    pending = {*_words(unit), *(word for i in taken for word in declarations[i].needs)}
    seen = set(pending)
    while pending:
        new = {*defining.get(pending.pop(), ())} - taken
        taken |= new
        words = {word for i in new for word in declarations[i].needs} - seen
        pending |= words
        seen |= words
    return first + "".join([declarations[i].text for i in sorted(taken)]) + END


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"[A-Za-z_]\w*", _IGNORED.sub("", text)))


@functools.cache
def _table() -> tuple[str, tuple[Declaration, ...], dict[str, list[int]]]:
    """Return the header's first part, its declarations, and the numbers of those that define a name."""
    first, _, rest = header_text().removesuffix(END).partition(_FIRST)
    declarations = tuple(_declarations(rest))
    defining: dict[str, list[int]] = {}
    for i, declaration in enumerate(declarations):
        for name in declaration.names:
            defining.setdefault(name, []).append(i)
    return first, declarations, defining


def _declarations(text: str) -> Iterator[Declaration]:
    """Take a part of the header apart. A conditional is one declaration; so is each call of a macro."""
    macros: dict[str, str] = {}
    for piece in _pieces(text.splitlines(keepends=True)):
        plain = _IGNORED.sub("", piece)
        calls = [*_CALL.finditer(plain)] if _CALL.match(plain) else []
        for call in calls:
            yield Declaration(call[0].rstrip() + "\n", _made_by(macros[call[1]], call[2]), _words(call[0]))
        if plain.strip() and not calls:
            joined = re.sub(r"\\\n", " ", plain)
            names = frozenset(name for found in _DEFINED.findall(joined) for name in found if name)
            for line in re.findall(r"^#define (.*)", joined, re.M):
                macros[re.split(r"\W", line)[0]] = line
            # one of several macros, whose number is pasted
            pasted = {f"{word}{n}" for word in re.findall(r"(\w+)##", plain) for n in (1, 2, 4, 8)}
            yield Declaration(piece, names - {"operator"}, _words(plain) | pasted)


def _pieces(lines: Iterable[str]) -> Iterator[str]:
    """Cut lines where a declaration ends."""
    piece, braces, conditions = "", 0, 0
    for line in lines:
        code = re.sub(r"//.*", "", line).rstrip()
        directive = not piece and code.startswith("#")
        piece += line
        braces += code.count("{") - code.count("}")
        conditions += code.startswith("#if") - code.startswith("#endif")
        ended = not code or directive or code.endswith((";", "}", ")", "#endif"))
        if ended and not braces and not conditions and not code.endswith("\\"):
            yield piece
            piece = ""


def _made_by(macro: str, arguments: str) -> frozenset[str]:
    """Return the names of functions that a call of a macro defines."""
    found = re.match(r"\w+\(([^)]*)\)(.*)", macro)
    assert found is not None
    given = dict(zip(re.split(r",\s*", found[1]), re.split(r",\s*", arguments)))
    made = (given.get(name, name) for name in re.findall(r"\bFN [^(]*?\b(\w+)\(", found[2]))
    return frozenset(filter(str.isidentifier, made))
