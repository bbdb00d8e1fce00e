"""`Program`: an exported program with all that can be done with it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from torch import fx, nn

from framesmith.export import file, rebuilding, text
from framesmith.export.modules import ExportedModule, unflattened
from framesmith.export.operators import SETS
from framesmith.export.program import Runnable
from framesmith.util.errors import ExportError


class Program(Runnable):
    """An exported program. It is called as the model was; printed, it is Python that runs."""

    @staticmethod
    def of(program: Runnable) -> Program:
        """Return the same program, with this class's methods."""
        return Program(**{f.name: getattr(program, f.name) for f in fields(Runnable) if not f.name.startswith("_")})

    def __str__(self) -> str:
        return text.python_text(self)

    def __repr__(self) -> str:
        calls = sum(n.op == "call_function" for n in self.graph.nodes)
        return f"<Program {self.name}: {calls} {self.operators} operators, {len(self.state)} tensors of state>"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the program to one file, which `framesmith.load` reads."""
        file.save(self, path)

    def verify(self) -> Program:
        """Return the program, if it is well formed. Raises `VerifyError`."""
        rebuilding.check(self)
        return self

    def diff(self, other: Runnable) -> text.Difference:
        """Return the difference from another program: lines that print as a diff, none if there is no difference."""
        return text.difference(self, other)

    def apply(self, *passes: Callable[[fx.Graph], Any]) -> Program:
        """Return the program after passes: each gets a copy of the FX graph, and changes it or returns another. Inputs
        and outputs are unchanged; metadata are recomputed, and operators converted to the program's set."""
        made: Runnable = self
        for change in passes:
            made = rebuilding.apply(made, change)
        return Program.of(made)

    def to(self, operators: str) -> Program:
        """Return the program in another operator set: "core", "prims" or "aten"."""
        if operators not in SETS:
            raise ExportError(f"operators is one of {', '.join(SETS)}, not {operators!r}")
        return Program.of(rebuilding.rebuilt(self, operators=operators))

    def module(self) -> nn.Module:
        """Return the program as a module with its parameters and buffers; `framesmith.compile` takes it."""
        return ExportedModule(self)

    def unflatten(self) -> nn.Module:
        """Return the program as a tree of modules with the original's paths, each with a graph of its own."""
        return unflattened(self)


def load(path: str | os.PathLike[str]) -> Program:
    """Load the program in a file. Raises `ExportError` for a file that is damaged, of another kind, or of a newer
    format."""
    return Program.of(file.load(path))
