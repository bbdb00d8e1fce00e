"""Index expressions as text have the value of the expression, in both target languages."""

import itertools

import pytest

from framesmith.codegen.cpp import index as cpp
from framesmith.codegen.triton import index as triton
from framesmith.symbolic.expr import Symbol, max_, min_

A, B, X, Y = Symbol("a", 1), Symbol("b", 1), Symbol("x", 0), Symbol("y")
SCOPE = {"i64": int, "floordiv": int.__floordiv__, "mod": int.__mod__, "min": min, "max": max,
         "floor_divide": int.__floordiv__, "remainder": int.__mod__, "minimum": min, "maximum": max}
EXPRESSIONS = [make(n, d) for n, d in itertools.product(
    (X, X * 3 + 1, X * A, X + B, X // A, X % B, Y, Y - X * 2), (A, A * B, A * B * 2, A + B, min_(A, B), A // 2 + 1)
) for make in (lambda n, d: n // d, lambda n, d: n % d, lambda n, d: n // d * d + n % d % A, lambda n, d: d - n // d,
               lambda n, d: max_(n // d, n % d) * B)]


@pytest.mark.parametrize("printer", [cpp, triton], ids=["cpp", "triton"])
def test_text_has_the_value_of_the_expression(printer):
    for e in EXPRESSIONS:
        text = printer.expr_text(e, {}).replace("tl.", "")
        text = text if printer is triton else text.replace("/", "//")
        for a, b, x, y in ((1, 1, 0, -3), (2, 3, 17, 5), (5, 4, 99, -40), (3, 7, 20, 41)):
            env = {A: a, B: b, X: x, Y: y}
            assert eval(text, SCOPE, {s.name: v for s, v in env.items()}) == e.evaluate(env), (text, e)


def test_what_expressions_share_is_written_once():
    depths = [max_(A * 3 + 1, B)]
    for _ in range(12):  # each holds the one before twice
        depths.append(max_(depths[-1] * A + 5, (depths[-1] + B) // 7))
    names, scope = {}, SCOPE | {"a": 3, "b": 11}
    for e in [*cpp.shared(depths), *depths]:
        text = cpp.expr_text(e, names)
        assert len(text) < 100
        names.setdefault(e, f"z{len(names)}")
        scope.setdefault(names[e], eval(text.replace("/", "//"), scope))
    assert [scope[names[e]] for e in depths] == [e.evaluate({"a": 3, "b": 11}) for e in depths]
