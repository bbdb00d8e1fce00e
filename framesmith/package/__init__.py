"""`framesmith.package(model, args, path=...)`: a model as one file that runs without PyTorch (docs/package.md).

The module is callable: `framesmith.package(...)` is `packaging.package`.
"""

from __future__ import annotations

import sys
import types
from typing import Any

from framesmith.package.loading import Packaged, load
from framesmith.package.packaging import package

__all__ = ["Packaged", "load", "package"]


class _Callable(types.ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> None:
        package(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
