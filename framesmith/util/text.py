"""Text with indentation, for printers and code generators."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class Indented:
    """Collects lines; `with out.block("for (…) {", "}"):` indents what is written inside."""

    __slots__ = ("_lines", "_prefix", "_step")

    def __init__(self, step: str = "  ") -> None:
        self._lines: list[str] = []
        self._prefix = ""
        self._step = step

    def line(self, text: str = "") -> None:
        """Append one line at the present depth (an empty one stays empty)."""
        self._lines.append(self._prefix + text if text else "")

    def lines(self, texts: Iterable[str] | str) -> None:
        """Append each line of a string, or each string of an iterable."""
        for text in texts.splitlines() if isinstance(texts, str) else texts:
            self.line(text)

    @contextmanager
    def indent(self) -> Iterator[None]:
        """Indent one step deeper inside the `with`."""
        outer = self._prefix
        self._prefix = outer + self._step
        try:
            yield
        finally:
            self._prefix = outer

    @contextmanager
    def block(self, head: str, tail: str = "") -> Iterator[None]:
        """`head`, the indented inside, then `tail` if there is one."""
        self.line(head)
        with self.indent():
            yield
        if tail:
            self.line(tail)

    def __str__(self) -> str:
        return "\n".join(self._lines) + ("\n" if self._lines else "")
