"""Facts about its process that a capture depends on: most cannot change within the process, so that no guard compares
them. Another process must check them, or capture again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any


@dataclass(frozen=True, slots=True)
class Answer:
    """The `result` of `function`, which caches its results or may run only once, for these arguments."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    result: Any


@dataclass(slots=True)
class Surroundings:
    """`answers`: results of functions that another process can check by calling them. `bound`: other facts seen, in
    words, which tie the capture to this process. `functions`: by the identity of its code, a function that has it,
    where guards compare the code alone."""

    answers: list[Answer] = field(default_factory=list)
    bound: str = ""
    functions: dict[int, FunctionType] = field(default_factory=dict)

    def bind(self, what: str) -> None:
        """Note that the capture has seen `what`."""
        self.bound = self.bound or what

    def note_order(self, elements: Iterable[Any]) -> None:
        """Note that the capture has seen the order of elements of a set: the hash of a text is of this process."""
        found = list(elements)
        if len(found) > 1 and not all(type(x) is int or type(x) is float for x in found):
            self.bind("the order of a set")

    def note_text(self, text: Any) -> None:
        """Note that the capture has made a text, which may show an address."""
        if type(text) is str and " at 0x" in text:
            self.bind("the address of an object, in a text")
