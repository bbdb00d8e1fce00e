"""`framesmith.export(model, args, kwargs, dynamic_shapes=...)`: a program as one graph, apart from its source.

The module is callable: `framesmith.export(...)` is `export_program`.
"""

from __future__ import annotations

import sys
import types
from typing import Any

from framesmith.export.dims import AUTO, DYNAMIC, STATIC, Dim
from framesmith.export.exporting import export_program
from framesmith.export.file import load, save
from framesmith.export.program import Program

__all__ = ["AUTO", "DYNAMIC", "STATIC", "Dim", "Program", "export_program", "load", "save"]


class _Callable(types.ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return export_program(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
