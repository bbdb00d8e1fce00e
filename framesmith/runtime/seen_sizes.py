"""Sizes that have varied, by function, kept in the cache: another process makes them symbols in its first compile."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, MutableMapping
from types import CodeType

from framesmith.config import Config
from framesmith.runtime.cache import Cache, key_of

Sizes = dict[str, frozenset[int]]
"""Dimensions by the source of their tensor as text; none of an int."""


class SeenSizes:
    """The sizes seen in calls of all functions, for one configuration."""

    def __init__(self, config: Config) -> None:
        self._kept = config.cache and config.keep_sizes and config.dynamic is None
        self._folder = config.cache_dir
        self._read: MutableMapping[str, str] | None = None

    def _memory(self) -> MutableMapping[str, str]:
        """Return the file's texts, or none where nothing is kept. It is read when it is first asked for."""
        if self._read is None:
            self._read = Cache(self._folder).memory("sizes") if self._kept else {}
        return self._read

    def of(self, code: CodeType) -> Sizes:
        """Return the sizes seen in calls of a function. Damaged text is ignored."""
        if not self._kept or (text := self._memory().get(_key(code))) is None:
            return {}
        try:
            return {str(path): frozenset(map(int, dims)) for path, dims in json.loads(text).items()}
        except (AttributeError, TypeError, ValueError):
            return {}

    def note(self, code: CodeType, sizes: Mapping[str, frozenset[int]]) -> None:
        """Keep what was seen of arguments; sources of other kinds may name an object of this process."""
        mine = {path: sorted(dims) for path, dims in sorted(sizes.items()) if path.startswith("L[")}
        if self._kept and mine:
            self._memory()[_key(code)] = json.dumps(mine)


def _key(code: CodeType) -> str:
    """Return a key of the function's code without constants: a collision only causes needless symbols."""
    return key_of(os.path.basename(code.co_filename), code.co_qualname, code.co_firstlineno, code.co_code,
                  code.co_names, code.co_varnames)
