"""The programs of a test file: functions that a decorator collects, and one test that runs each."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any

import pytest


class Programs(list[Any]):
    """An instance decorates them: `@program`, or `@program(value, ..., option=...)`. `check(fn, value, ...,
    option=...)` runs one."""

    def __init__(self, check: Callable[..., Any]) -> None:
        super().__init__()
        self.check = check

    def __call__(self, *args: Any, **how: Any) -> Any:
        if len(args) == 1 and isinstance(args[0], FunctionType):
            self.append(pytest.param(functools.partial(self.check, args[0], **how), id=args[0].__name__))
            return args[0]

        def add(fn: FunctionType) -> FunctionType:
            self.append(pytest.param(functools.partial(self.check, fn, *args, **how), id=fn.__name__))
            return fn

        return add

    def each(self) -> Any:
        """The decorator of a test that takes `run` of each program."""
        return pytest.mark.parametrize("run", self)

    def test(self) -> Callable[[Callable[[], Any]], None]:
        """The test that runs each program."""

        @self.each()
        def test_program(run: Callable[[], Any]) -> None:
            run()

        return test_program
