"""Logging of each stage's readable form, switched on by name: `FRAMESMITH_LOG=graph,loops,schedule,code,guards`."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

CHANNELS = ("graph", "loops", "schedule", "code", "guards", "recompiles", "breaks", "timing", "cache", "tuning",
            "background")

_OWN = str(Path(__file__).parents[1]) + "/"
_on: frozenset[str] = frozenset()
_warned: set[str] = set()


def configure(names: str | None = None) -> None:
    """Switch on the channels of a comma-separated list (default: the environment's). `all` means each of them."""
    global _on
    text = os.environ.get("FRAMESMITH_LOG", "") if names is None else names
    wanted = {part.strip() for part in text.split(",") if part.strip()}
    unknown = wanted - {*CHANNELS, "all"}
    if unknown:
        warn_once("log:" + ",".join(sorted(unknown)),
                  f"FRAMESMITH_LOG names unknown channels {sorted(unknown)}; known: {', '.join(CHANNELS)}, all")
    _on = frozenset(CHANNELS) if "all" in wanted else frozenset(wanted & set(CHANNELS))


def enabled(channel: str) -> bool:
    """Return whether text of this channel is wanted: ask before printing an IR."""
    return channel in _on


def emit(channel: str, text: str) -> None:
    """Write `text` to stderr, each line under the channel's name, if the channel is on."""
    if channel in _on:
        prefix = f"[{channel}] "
        sys.stderr.write("".join(f"{prefix}{line}\n" for line in text.splitlines()))


def warn_once(key: str, text: str) -> None:
    """Warn the user once per process for each key."""
    if key not in _warned:
        _warned.add(key)
        warnings.warn(text, UserWarning, stacklevel=_users_level())


def _users_level() -> int:
    """Return the `stacklevel` at which a warning of our caller's points at the user's line."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OWN):
        level, frame = level + 1, frame.f_back
    return level


def forget_warnings() -> None:
    """Let every `warn_once` speak again (for `reset` and for tests)."""
    _warned.clear()


configure()
