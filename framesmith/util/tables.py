"""Tables that functions register themselves in."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def entry(table: MutableMapping[Any, Any], *keys: Any) -> Callable[[F], F]:
    """Return a decorator that enters a function in `table` under each of `keys`."""

    def enter(function: F) -> F:
        table.update(dict.fromkeys(keys, function))
        return function

    return enter
