"""Random expressions: the simplified form has Python's value, its range holds it, and SymPy expands to the same
polynomial."""

import sympy
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from framesmith.symbolic.expr import Symbol, eq, le, lt, ne, not_
from tests.nets.algebra import OURS, PLAIN

BOUNDS = {"a": (0, 7), "b": (-5, 5), "c": (0, 31), "d": (1, 4), "s": (2, 40)}
SYMBOLS = {name: Symbol(name, *bounds) for name, bounds in BOUNDS.items()}
UNBOUNDED = {name: Symbol("w" + name, None, None) for name in BOUNDS}

leaves = st.one_of(st.sampled_from(sorted(BOUNDS)), st.integers(-40, 40), st.sampled_from([2, 4, 8, 16, 32]))
divisors = st.one_of(st.sampled_from([1, 2, 3, 4, 6, 8, 16, 24, 32, -3, -4]), st.just("d"), st.just("s"))


def grow(inner):
    return st.one_of(
        st.tuples(st.sampled_from(["+", "-", "*", "min", "max", "+"]), inner, inner),
        st.tuples(st.sampled_from(["//", "%"]), inner, divisors),
        st.tuples(st.just("scaled"), inner, inner, st.sampled_from([2, 4, 8, 32])),
        st.tuples(st.just("joined"), inner, st.sampled_from([2, 4, 8, 32]), st.sampled_from([2, 3, 8])),
    )


trees = st.recursive(leaves, grow, max_leaves=12)
values = st.fixed_dictionaries({name: st.integers(*bounds) for name, bounds in BOUNDS.items()})


def build(tree, leaf, symbolic):
    if not isinstance(tree, tuple):
        return leaf[tree] if isinstance(tree, str) else tree
    head, *rest = tree
    args = [build(part, leaf, symbolic) if isinstance(part, (tuple, str)) else part for part in rest]
    return (OURS if symbolic else PLAIN)[head](*args)


@settings(max_examples=1500, deadline=None)
@given(trees, st.lists(values, min_size=4, max_size=4))
def test_value_and_range(tree, points):
    for symbols in (SYMBOLS, UNBOUNDED):
        expr = build(tree, symbols, True)
        assume(not isinstance(expr, int))
        for point in points:
            env = {symbols[name]: value for name, value in point.items()}
            want = build(tree, point, False)
            assert expr.evaluate(env) == want
            assert eval(str(expr), {symbols[name].name: value for name, value in point.items()}) == want
            assert expr.lo is None or expr.lo <= want
            assert expr.hi is None or want <= expr.hi
            assert expr.subs(env).const == want


polynomials = st.recursive(leaves, lambda x: st.tuples(st.sampled_from(["+", "-", "*"]), x, x), max_leaves=8)


@settings(max_examples=300, deadline=None)
@given(polynomials, polynomials)
def test_polynomials_agree_with_sympy(left, right):
    names = {name: sympy.Symbol(name, integer=True) for name in BOUNDS}
    ours = [build(t, UNBOUNDED, True) for t in (left, right)]
    theirs = [sympy.expand(build(t, names, True)) for t in (left, right)]
    assert ((ours[0] - ours[1] + UNBOUNDED["a"]) is UNBOUNDED["a"]) == (theirs[0] == theirs[1])


@settings(max_examples=300, deadline=None)
@given(trees, trees, values)
def test_relations(left, right, point):
    x, y = build(left, SYMBOLS, True), build(right, SYMBOLS, True)
    a, b = build(left, point, False), build(right, point, False)
    env = {SYMBOLS[name]: value for name, value in point.items()}
    for make, want in ((lt, a < b), (le, a <= b), (eq, a == b), (ne, a != b)):
        rel = make(x, y)
        assert rel.evaluate(env) is want
        assert not_(rel).evaluate(env) is not want
        assert rel.known in (None, want)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(2, 6), min_size=2, max_size=5), st.data())
def test_flatten_then_split_gives_the_indices_back(sizes, data):
    """The index arithmetic of any reshape by whole dimensions vanishes."""
    index = [Symbol(f"x{n}", 0, size - 1) for n, size in enumerate(sizes)]
    cut = data.draw(st.integers(1, len(sizes)))
    flat = 0
    for i, size in zip(index, sizes, strict=True):
        flat = flat * size + i
    inner = 1
    for size in sizes[cut:]:
        inner *= size
    outer, rest = flat // inner, flat % inner
    for i, size in reversed(list(zip(index[cut:], sizes[cut:], strict=True))):
        assert rest % size is i
        rest = rest // size
    for i, size in reversed(list(zip(index[:cut], sizes[:cut], strict=True))):
        assert outer % size is i
        outer = outer // size
