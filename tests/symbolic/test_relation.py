"""Relations: normal form, decisions by range, text."""

import pickle

from framesmith.symbolic.expr import FALSE, TRUE, Symbol, and_, eq, ge, gt, le, lt, ne, not_, or_

I = Symbol("i", 0, 15)
S = Symbol("s", 2)
T = Symbol("t", 2)


def test_ranges_decide():
    assert lt(I, 16) is TRUE
    assert ge(S, 3).known is None
    assert eq(S, 1) is FALSE
    assert ne(S, 1) is TRUE
    assert gt(I, 15) is FALSE
    assert eq(2 * S, 7) is FALSE


def test_equal_relations_are_identical():
    assert lt(S, T) is le(S + 1, T)
    assert eq(2 * S, 2 * T) is eq(T, S)
    assert not_(lt(S, T)) is ge(S, T)
    assert not_(not_(eq(S, T))) is eq(S, T)
    assert le(4 * S, 10) is le(S, 2)
    assert and_(eq(S, T), TRUE, eq(S, T)) is eq(S, T)
    assert or_(lt(S, T), ge(S, T)) is TRUE
    assert and_(lt(S, 9), or_()) is FALSE
    assert not_(and_(eq(S, 3), eq(T, 3))) is or_(ne(S, 3), ne(T, 3))


def test_subs_evaluate_and_text():
    rel = and_(le(S, 8), ne(S % 8, 0))
    assert rel.evaluate({S: 7})
    assert not rel.evaluate({"s": 8})
    assert rel.subs({S: 8}) is FALSE
    assert str(le(S, 8)) == "s <= 8"
    assert str(ge(S, 8)) == "s >= 8"
    assert str(eq(S, T + 1)) in ("s == t + 1", "t + 1 == s")
    assert str(eq(S % 8, 0)) == "(s % 8) == 0"
    assert pickle.loads(pickle.dumps(rel)) is rel
