"""One expression in place of two, of which a relation chooses; what an assumption says of remainders and quotients."""

import itertools

import pytest

from framesmith.symbolic.env import ShapeEnv
from framesmith.symbolic.expr import and_, eq, ge, gt, le, lt, ne, not_, or_
from framesmith.symbolic.select import indicator, selected


@pytest.fixture
def env():
    return ShapeEnv()


def test_the_expression_is_the_one_that_is_chosen(env):
    h, w = env.new_symbol(9, None), env.new_symbol(8, None)
    x, y = (h + 3) // 4, (w + 1) // 2
    rows = [(ne(x % 2, 0), 2 - x % 2, 0), (ne(h % 4, 0), 4 - h % 4, 0), (eq(x % 2, 0), 1, 3 - x % 2),
            (eq(x % 3, 0), 2, 5 - x % 3), (gt(h, 5), h, 5), (gt(h, w), h - w, w), (le(-h % 5, 0), h, w * 2),
            (or_(and_(ge(-x % 4, 1), le(-y % 4, 0)), ge(-y % 4, 1)), x, x + -x % 4), (and_(lt(h, w), ne(h, 7)), x, y)]
    for rel, a, b in rows:
        e, one = selected(env, rel, a, b), indicator(rel)
        for values in itertools.product(range(2, 30), repeat=2):
            sizes = dict(zip((h.name, w.name), values))
            chosen = a if rel.evaluate(sizes) else b
            assert e.evaluate(sizes) == (chosen if isinstance(chosen, int) else chosen.evaluate(sizes)), (rel, e)
            assert one.evaluate(sizes) == rel.evaluate(sizes)
    assert not env.guards


def test_the_expression_is_simple_where_one_is(env):
    h = env.new_symbol(9, None)
    assert selected(env, ne(h % 4, 0), 4 - h % 4, 0) is -h % 4
    assert selected(env, eq(h % 2, 1), h % 2, 0) is h % 2
    assert selected(env, ge(-h % 4, 1), h, h + -h % 4) is h
    assert selected(env, eq(h % 2, 0), 1, 3 - h % 2) is h % 2 + 1


def test_what_may_divide_by_zero_is_not_chosen_from(env):
    h, w = env.new_symbol(9, None), env.new_symbol(8, None)
    assert selected(env, gt(h, w), h // (h - w), 0) is None


def test_a_multiple_of_a_quotient_is_known_under_an_assumption(env):
    h, w = env.new_symbol(9, None), env.new_symbol(8, None)
    for x in (h, (h + 3) // 4, h * w):
        for c, holds in (2, eq(x % 2, 0)), (7, le(-x % 7, 0)):
            with env.supposing(holds):
                assert env.known(eq(-x % c, 0))
                assert env.known(eq(x + -x % c, x))
            assert env.known(eq(-x % c, 0)) is None
    with env.supposing(not_(or_(ge(h % 3, 1), ge(w % 5, 1)))):
        assert env.known(eq(h % 3 + w % 5, 0))
    with env.supposing(ne(h % 3, 0)):
        assert env.known(ge(h % 3, 1))
    assert env.known(eq(h % 3, 0)) is None


def test_quotients_are_compared_by_what_they_divide(env):
    x = (env.new_symbol(9, None) + 3) // 4
    assert env.known(le(x, 7 * ((x + 6) // 7))) is True
    assert env.known(lt(7 * ((x + 6) // 7), x)) is False
    assert env.known(lt(x, 7 * (x // 7) + 7)) is True
    assert env.known(gt(x, 7 * (x // 7))) is None
