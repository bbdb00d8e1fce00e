"""The primitive set: `table` maps a prim's name to its row; every prim is also an attribute of this package."""

from __future__ import annotations

from framesmith.prims import elementwise, reducing, structural
from framesmith.prims.core import Prim, Spec, table


def __getattr__(name: str) -> Prim:
    try:
        return table[name]
    except KeyError:
        raise AttributeError(f"no prim named {name!r}") from None
