"""`framesmith.export(model, args, kwargs, dynamic_shapes=...)`: a program as one graph, apart from its source.

The module is callable: `framesmith.export(...)` is `export_program`.
"""

from __future__ import annotations

import sys
import types
from typing import Any

from framesmith.export.dims import AUTO, DYNAMIC, STATIC, Dim
from framesmith.export.drafting import Draft
from framesmith.export.exported import Program, load
from framesmith.export.exporter import export_program

__all__ = ["AUTO", "DYNAMIC", "STATIC", "Dim", "Draft", "Program", "export_program", "load"]


class _Callable(types.ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return export_program(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
