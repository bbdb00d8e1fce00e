"""Pure functions: on constants they run for real, unless they print, or call functions of the program's."""

from __future__ import annotations

import builtins
import cmath
import fractions
import inspect
import json
import keyword
import logging
import math
import operator
import os
import re
import string
import struct
import sys
import textwrap
import typing
import unicodedata
from typing import Any

import torch

from framesmith.util.errors import Unsupported

from .. import trackers as t
from ..registry import calls, folds
from ..trackers import Args, Kwargs

folds(builtins.abs, builtins.bin, builtins.chr, builtins.hex, builtins.oct, builtins.ord,
      builtins.pow, builtins.round, bytes, complex, fractions.Fraction)
folds(*[f for n, f in [*vars(math).items(), *vars(cmath).items()] if callable(f) and f is not math.prod])
folds(struct.pack, struct.unpack, struct.unpack_from, struct.calcsize, sys.intern, logging.getLogger,
      logging.getLevelName)
folds(*[getattr(os.path, n) for n in ("join", "basename", "dirname", "splitext", "split", "normpath", "isabs")])
folds(re.escape)
folds(inspect.getfullargspec, inspect.unwrap)
folds(keyword.iskeyword, string.capwords, textwrap.dedent, unicodedata.normalize)
folds(typing.get_type_hints, typing.get_origin, typing.get_args)
folds(torch.finfo, torch.iinfo, torch.device, torch.promote_types, torch.can_cast, torch.Size.numel)
folds(operator.attrgetter, operator.itemgetter, operator.methodcaller)
folds(torch.broadcast_shapes)


def _pattern(fn: Any, flags_at: int) -> None:
    @calls(fn)
    def row(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
        given = dict(enumerate(args)).get(flags_at, kwargs.get("flags", t.NONE)).real(tracer)
        if isinstance(given, int) and given & re.DEBUG:
            raise Unsupported("re.DEBUG, which prints")
        return tracer.fold_call(fn, args, kwargs)


for _fn, _at in {re.compile: 1, re.match: 2, re.search: 2, re.fullmatch: 2, re.findall: 2, re.split: 3}.items():
    _pattern(_fn, _at)


def _json(fn: Any) -> None:
    @calls(fn)
    def row(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
        if any(not k.constant and not isinstance(k, t.Sequence) for k in kwargs.values()):
            raise Unsupported(f"json.{fn.__name__} with a class or a function of its own")
        return tracer.fold_call(fn, args, kwargs)


_json(json.dumps)
_json(json.loads)


@calls(os.fspath)
def _fspath(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    return tracer.fold_call(os.fspath, args, {}) if args[0].constant else tracer.call_special(args[0], "__fspath__", [])
