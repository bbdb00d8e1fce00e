"""Replacement of torch.compile by framesmith for a whole program: `install`, `uninstall`, and both around a `with`
block."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from framesmith.drop_in import FUNCTIONS


@dataclass(slots=True)
class Switch:
    """The state of one `install`: whether its functions forward to ours, wherever a program keeps them."""

    on: bool = True


@dataclass(frozen=True, slots=True)
class Replaced:
    """A replaced function of torch's."""

    module: Any
    name: str
    original: Callable[..., Any]
    ours: Callable[..., Any]


_lock = threading.Lock()
_replaced: list[Replaced] = []
_switches: list[Switch] = []


def install() -> None:
    """Let `torch.compile`, `nn.Module.compile`, the functions of `torch.compiler` and `backend="inductor"` mean
    framesmith from now on. Once is enough: a second call does nothing."""
    _install()


def _install() -> bool:
    """Install, and return whether it was not installed before."""
    with _lock:
        if _switches:
            return False
        switch = Switch()
        for path, functions in FUNCTIONS.items():
            module = sys.modules[path]
            for name, meaning in functions.items():
                if (original := getattr(module, name, None)) is not None:
                    ours = _forwarding(original, meaning, switch)
                    _replaced.append(Replaced(module, name, original, ours))
                    setattr(module, name, ours)
        _switches.append(switch)
        return True


def uninstall() -> None:
    """Restore the functions that `install` has replaced. What was compiled meanwhile stays compiled. A function that
    the program has wrapped meanwhile stays wrapped, and calls the original."""
    with _lock:
        for switch in _switches:
            switch.on = False
        for was in _replaced:
            if getattr(was.module, was.name) is was.ours:
                setattr(was.module, was.name, was.original)
        _switches.clear()
        _replaced.clear()


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """`install` for a `with` block (or, as a decorator, for calls of a function)."""
    mine = _install()
    try:
        yield
    finally:
        if mine:
            uninstall()


def _forwarding(original: Callable[..., Any], meaning: Callable[..., Any], switch: Switch) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return (meaning if switch.on else original)(*args, **kwargs)

    return call
