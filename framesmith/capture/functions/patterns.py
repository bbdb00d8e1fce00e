"""Functions of `re` on constants: run for real, unless they print."""

from __future__ import annotations

import re
from typing import Any

from framesmith.util.errors import Unsupported

from .. import trackers as t
from ..registry import calls

_FLAGS_AT = {re.compile: 1, re.match: 2, re.search: 2, re.fullmatch: 2, re.findall: 2, re.split: 3}


def _row(fn: Any, flags_at: int) -> None:
    @calls(fn)
    def row(tracer: Any, args: list[t.Tracker], kwargs: dict[str, t.Tracker]) -> t.Tracker:
        given = dict(enumerate(args)).get(flags_at, kwargs.get("flags", t.NONE)).real(tracer)
        if isinstance(given, int) and given & re.DEBUG:
            raise Unsupported("re.DEBUG, which prints")
        return tracer.fold_call(fn, args, kwargs)


for _fn, _at in _FLAGS_AT.items():
    _row(_fn, _at)
