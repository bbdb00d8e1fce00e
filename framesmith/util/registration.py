"""The entry point by which `torch.compile(backend="framesmith")` finds us, as it finds every package's back end. An
installed package has one in its metadata; this one also works for a checkout, once framesmith is imported."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, DistributionFinder, EntryPoint
from pathlib import Path
from typing import Any

GROUP, NAME, VALUE = "torch_dynamo_backends", "framesmith", "framesmith.dynamo_backend:compile_graph"


class _Announced(Distribution):
    _files = {"METADATA": "Name: framesmith-backend\nVersion: 0\n",
              "entry_points.txt": f"[{GROUP}]\n{NAME} = {VALUE}\n"}

    def read_text(self, filename: str) -> str | None:
        return self._files.get(filename)

    def locate_file(self, path: Any) -> Any:
        return Path(__file__).parents[1] / path


class _Finder(DistributionFinder):
    """A finder of that distribution only."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        return None

    def find_distributions(self, context: Any = DistributionFinder.Context()) -> Iterator[Distribution]:  # noqa: B008
        return iter([_Announced()] if context.name is None else [])


def announce() -> None:
    """Announce the back end to torch.compile, whether it has looked for back ends already or not."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
    known = getattr(sys.modules.get("torch._dynamo.backends.registry"), "_BACKENDS", {})
    known.setdefault(NAME, EntryPoint(NAME, VALUE, GROUP))
