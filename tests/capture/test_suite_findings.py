"""What CPython's own tests found in residual code: each program, run again from its capture, gives what plain Python
gives."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.capture.suite import agree

PLAIN: dict[str, Any] = {}
# this file has `from __future__ import annotations`; the program below is compiled without
exec(compile("def annotates(space):\n    exec('x: int = 2', {}, space)\n    return space['__annotations__']\n",
             __file__, "exec",
             dont_inherit=True), PLAIN)


def positions(code, n):
    return next(itertools.islice(code.co_positions(), n, None), None)


CASES: dict[str, Any] = {
    "what is executed has the user's future statements": (PLAIN["annotates"], lambda: ({},)),
    "an iterator made by a folded call is new in each call": (positions, lambda: (positions.__code__, 2)),
}


@pytest.mark.parametrize("name", CASES)
def test_program(name):
    agree(*CASES[name])
