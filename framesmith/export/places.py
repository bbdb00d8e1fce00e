"""The user's stack with the modules that it goes through."""

from __future__ import annotations

from framesmith.util.stack import Place


class Stack(tuple[Place, ...]):
    """`modules`: the modules whose methods are in the stack, by their paths, and which call of a module each is."""

    modules: tuple[tuple[str, int], ...] = ()

    @staticmethod
    def of(stack: tuple[Place, ...], modules: tuple[tuple[str, int], ...]) -> Stack:
        """Return the stack with these modules."""
        made = Stack(stack)
        made.modules = modules
        return made
