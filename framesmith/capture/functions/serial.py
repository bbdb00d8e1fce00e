"""json: text to values and back, of constants; paths."""

from __future__ import annotations

import json
import os
from typing import Any

from framesmith.util.errors import Unsupported

from .. import trackers as t
from ..registry import calls
from ..trackers import Args, Kwargs


def _pure(fn: Any) -> None:
    @calls(fn)
    def row(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
        if any(not k.constant and not isinstance(k, t.Sequence) for k in kwargs.values()):
            raise Unsupported(f"json.{fn.__name__} with a class or a function of its own")
        return tracer.fold_call(fn, args, kwargs)


_pure(json.dumps)
_pure(json.loads)


@calls(os.fspath)
def _fspath(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    return tracer.fold_call(os.fspath, args, {}) if args[0].constant else tracer.call_special(args[0], "__fspath__", [])
