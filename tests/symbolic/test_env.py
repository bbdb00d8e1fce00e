"""Guards: what is recorded, what later questions they decide, and integers that flow through torch itself."""

import copy
import math

import pytest
import torch

from framesmith.symbolic.env import ShapeEnv
from framesmith.symbolic.expr import Symbol, and_, eq, ge, gt, le, lt, ne, or_
from framesmith.symbolic.layout import contiguous_strides
from framesmith.symbolic.node import SymNode, env_of, expr_of, hint_of, symbool, symfloat, symint
from framesmith.util.errors import GuardError


class Shell(torch.Tensor):
    """A tensor with sizes and strides and nothing else."""

    @staticmethod
    def __new__(cls, size, strides):
        return torch.Tensor._make_wrapper_subclass(cls, size, strides=strides)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError(str(func))


@pytest.fixture
def env():
    return ShapeEnv()


def sym(env, hint, name="x.size()[0]"):
    return symint(env.new_symbol(hint, name), env)


def texts(env):
    return [str(g.rel) for g in env.guards]


def test_zero_and_one_are_constants(env):
    assert env.new_symbol(1, "a").const == 1
    assert env.new_symbol(0, "a").const == 0
    assert env.new_symbol(5, "a").lo == 2


def test_a_guard_is_recorded_once_and_implies_others(env):
    a, b = env.new_symbol(8, "a"), env.new_symbol(5, "b")
    assert not env.guard(eq(a, 1))
    assert not env.guards
    assert env.guard(gt(a, b))
    assert env.guard(gt(a, b))
    assert env.guard(ge(a, b))
    assert env.guard(ne(a, b - 1))
    assert not env.guard(lt(a, b))
    assert len(env.guards) == 1
    assert env.check({a: 9, b: 4}) is None
    assert env.check({a: 4, b: 9}) is env.guards[0]


def test_ranges_narrow(env):
    a = env.new_symbol(8, "a")
    assert env.guard(le(a, 16))
    assert env.guard(lt(a, 20))
    assert env.guard(gt(a, 4))
    assert env.guard(ne(a, 3))
    assert not env.guard(eq(a // 32, 1))
    assert texts(env) == ["s0 <= 16", "s0 >= 5"]
    assert env.specialise(a) == 8
    assert env.specialise(2 * a) == 16
    assert len(env.guards) == 3


def test_products_of_sizes_are_compared(env):
    a, b, c = (env.new_symbol(h, n) for h, n in ((3, "a"), (4, "b"), (5, "c")))
    assert env.guard(lt(b, a * b)) and env.guard(ge(a * b * c, 2 * a + b)) and not env.guard(eq(a * c, a))
    assert not env.guards


def test_remainders_of_shifted_sizes_say_what_is_divided(env):
    a, b, c = (env.new_symbol(h, n) for h, n in ((8, "a"), (6, "b"), (7, "c")))
    assert env.guard(eq((a + 3) % 4, 3)) and env.guard(eq(96 % b, 0)) and env.guard(eq((c + 1) % 4, 0))
    assert env.known(eq(a // 4 * 4, a)) and env.known(eq(b // 2 * 2, b)) is None
    assert env.known(eq(c // 2 * 2, c)) is None


def test_equal_quotients_are_supposed(env):
    a, b = (env.new_symbol(h, n) for h, n in ((48, "a"), (64, "b")))
    with env.supposing(and_(eq(a // 16, 2 * ((a + 16) // 32)), eq(-(-b // 3) * 3, b))):
        assert env.known(eq(a // 16 * b, 2 * ((a + 16) // 32) * b)) and env.known(eq(b % 3, 0))
    assert env.known(eq(a // 16, 2 * ((a + 16) // 32))) is None and env.known(eq(b % 3, 0)) is None


def test_equality_replaces(env):
    a, b, c = (env.new_symbol(h, n) for h, n in ((8, "a"), (8, "b"), (64, "c")))
    assert env.guard(eq(a, b))
    assert env.canonical(b * 2 + a) is 3 * a
    assert env.guard(eq(a * b, c))
    assert env.guard(eq(c // a, b))
    assert env.canonical(c) is a * a
    assert len(env.guards) == 2


def test_equal_products_are_written_as_one(env):
    a, b, c, d = (env.new_symbol(h, str(h)) for h in (4, 6, 3, 8))
    assert env.guard(eq(a * b, c * d))
    assert env.canonical(2 * c * d + 1) is env.canonical(2 * a * b + 1)
    assert env.guard(eq(a * c, 12))
    assert env.canonical(a * c + b) is b + 12
    assert env.canonical(a) is a and env.canonical(c) is c


def test_data_known_late_are_not_part_of_what_is_known_before(env):
    total, first, second = (env.data_symbol(None, None, None) for _ in range(3))
    for part in (first, second):
        env.expect(ge(part, 0))
    env.expect(eq(total, first + second))
    assert env.canonical(total) is total
    assert env.canonical(second) is total - first


def test_the_index_of_a_dimension_that_may_be_empty_is_no_constant():
    size = Symbol("u", 0, 1)
    assert not (Symbol("i", 0, 16 * size - 1) // 16).is_const
    assert (Symbol("i", 0, 16 * Symbol("n", 1, 1) - 1) // 16).is_const


def test_divisibility(env):
    a = env.new_symbol(24, "a")
    assert env.guard(eq(a % 8, 0))
    assert env.guard(eq(a // 8 * 8, a))
    assert env.guard(eq(a % 4, 0))
    assert env.guard(ge(a, 8))
    assert texts(env) == ["(s0 % 8) == 0"]
    assert env.canonical(a) is a
    assert env.guard(eq(a % 3, 0))
    assert env.guard(eq(a % 24, 0))
    assert env.specialise(a) == 24
    assert texts(env)[-1] == "s0 == 24"


def test_connectives(env):
    a, b = env.new_symbol(8, "a"), env.new_symbol(5, "b")
    assert env.guard(and_(eq(a, 8), ne(b, 7)))
    assert env.specialise(a) == 8
    assert env.guard(or_(eq(b, 7), eq(a, 8)))
    assert len(env.guards) == 1


def test_stack_goes_with_the_guard(env):
    env.where = lambda: (("model.py", 12, "forward"),)
    env.guard(eq(env.new_symbol(8, "a") % 8, 0))
    assert "model.py:12" in str(env.guards[0])


def test_late_questions_are_answered_for_other_values(env):
    s, t = env.new_symbol(3, "x"), env.new_symbol(4, "y")
    env.guard(ge(t, 4))
    env.closed = True
    with pytest.raises(GuardError):
        env.guard(eq(s, t))
    with env.assuming({s: 5, t: 5}) as assumed:
        assert env.guard(eq(s, t))
        assert env.guard(ge(t, 4))
        assert env.hint(s + t) == 10
    assert assumed == [eq(s, t)]
    assert env.hint(s + t) == 7
    assert env.known(eq(s, t)) is None
    with env.assuming({s: 5}), pytest.raises(GuardError):
        env.guard(eq(t, 6))


def test_symint_arithmetic(env):
    n = sym(env, 6)
    assert isinstance(n + 1, torch.SymInt)
    assert n - n == 0
    assert isinstance(n - n, int)
    assert str(2 * n // 2 + n % 1) == "s0"
    assert expr_of((n * 4 + 3) // 4) is expr_of(n)
    assert hint_of(n * n) == 36
    assert hint_of(torch.sym_max(n, 10)) == 10
    assert str(-n) == "(-s0)"
    assert hint_of(n ** 2) == 36
    assert hint_of(7 - n) == 1
    assert hint_of(20 // n) == 3
    assert not env.guards
    assert n > 5
    assert int(n) == 6
    assert texts(env) == ["s0 >= 6", "s0 == 6"]
    assert env_of(3, n) is env
    assert copy.deepcopy(n.node) is n.node


def test_symfloat(env):
    n = sym(env, 7)
    assert expr_of(math.floor(n / 2)) is expr_of(n) // 2
    assert expr_of(math.ceil(n * 0.5)) is (expr_of(n) + 1) // 2
    assert expr_of(torch.sym_int(n / 4)) is expr_of(n) // 4
    assert hint_of(n / 2) == 3.5
    assert not env.guards
    assert n / 2 < 4.0
    assert texts(env) == ["s0 <= 7"]
    assert float(torch.sym_sqrt(n * 1.0)) == pytest.approx(7 ** 0.5)
    assert texts(env)[-1] == "s0 == 7"
    assert symfloat(2.5, env) == 2.5


def test_symbool(env):
    n = sym(env, 7)
    both = (n > 3) & (n < 10)
    assert isinstance(both, torch.SymBool)
    assert not env.guards
    assert bool(both)
    assert bool(torch.sym_not(n < 5))
    assert symbool(eq(expr_of(n), 1), env) is False


def test_flows_through_a_wrapper_subclass(env):
    n, m = sym(env, 6), sym(env, 10)
    t = Shell((n, 3, m), (3 * m, m, 1))
    assert not env.guards
    assert [str(s) for s in t.shape] == ["s0", "3", "s1"]
    assert expr_of(t.numel()) is 3 * expr_of(n) * expr_of(m)
    assert t.is_contiguous()
    assert not t.is_contiguous(memory_format=torch.channels_last)
    assert not env.guards


def test_strides_of_a_transposed_tensor(env):
    n, m = sym(env, 6), sym(env, 10)
    t = Shell((m, n), (1, m))
    assert not t.is_contiguous()
    image = Shell((2, n, m, m), (n * m * m, 1, n * m, n))
    assert image.is_contiguous(memory_format=torch.channels_last)
    assert [str(s) for s in contiguous_strides([2, expr_of(n), 1])] == ["s0", "1", "1"]


def test_node_has_what_torch_calls(env):
    node = sym(env, 6).node
    assert isinstance(node, SymNode)
    assert (node.is_int(), node.is_float(), node.is_bool(), node.has_hint()) == (True, False, False, True)
    assert node.maybe_as_int() is None
    assert node.wrap_int(3).maybe_as_int() == 3
    assert isinstance(node.expr, Symbol)


def test_cut_into_equal_parts_a_size_is_divisible():
    env = ShapeEnv()
    rows, columns = env.data_symbol(0, None, None), env.data_symbol(0, None, None)
    assert env.expect(eq(rows * columns, 2 * (rows // 2) * 3 * (columns // 3)))
    assert env.known(eq(rows % 2, 0)) and env.known(eq(columns, 3 * (columns // 3)))
    assert env.known(ge(rows, 1)) and env.known(ge(columns, 1))
    assert env.known(eq(rows % 3, 0)) is None
    assert [str(rel) for rel in env.assumed] == ["u0*u1 == 6*(u0 // 2)*(u1 // 3)", "u0 >= 1", "u1 >= 1"]
