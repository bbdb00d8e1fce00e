"""Pure functions: on constants they run for real."""

from __future__ import annotations

import builtins
import cmath
import fractions
import inspect
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

import torch

from ..registry import folds

folds(builtins.abs, builtins.bin, builtins.chr, builtins.hex, builtins.oct, builtins.ord,
      builtins.pow, builtins.round, bytes, complex, fractions.Fraction)
folds(*[f for n, f in [*vars(math).items(), *vars(cmath).items()] if callable(f)])
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
