"""Loops that a tensor's data ends: one node of one graph, in Python and by torch.while_loop; a break where the body is
no pure tensor code."""

import pytest
import torch

import framesmith
from framesmith.capture.bytecode.control_flow import loops
from tests.capture.test_branches import alike


@pytest.fixture(autouse=True)
def no_variants_of_other_tests():
    """Functions of one code object share variants."""
    framesmith.reset()


def until(x):
    while x.sum() < 20:
        x = x + 1
    return x


def newton(x):
    y, n = x.abs() + 1, torch.zeros((), dtype=torch.long)
    while True:
        z = y - (y * y - 2) / (2 * y)
        n = n + 1
        if (z - y).abs().max() < 1e-5:
            break
        y = z
    return z, n


def fibonacci(x):
    n = x.abs().sum().round()
    a, b = torch.zeros(()), torch.ones(())
    while n > 0:
        a, b, n = b, a + b, n - 1
    return a, b


def branching(x):
    n = x.abs().max()
    while n.item() > 0.5:
        n = n / 2
        if n > 3:
            n = n - 1
    return n * x


def nested(x):
    for k in range(2):
        while x.sum() < 10 * (k + 1):
            x = x + 1
            while x[0, 0] > 3:
                x = x * 0.5 + 1.4
        x = x - 2
    return x


def in_a_branch(x):
    if x.mean() > 0:
        while x.mean() < 4:
            x = x * 2
        return x
    return x - 1


def with_parts(x):
    y = x.clone()
    while y.abs().max() > 0.5:
        z = y[:, 1:].exp() * 0
        y = torch.cat([y[:, :1], z], 1) / 2
    return y, x


def counted(x):
    n = 0
    while x.sum() < 20:
        x = x + 1
        n += 1
    return x, n


def scaled(x):
    t = 1.0
    while x.abs().sum().item() > 1:
        t *= 0.5
        x = x * t
    return x, t, x * t


def limited(x):
    n = 0
    while x.sum() < 20 and n < 5:
        x = x + 1
        n += 1
    return x, n


def with_a_break(x):
    x = x.abs() + 1
    change, n = 1.0, 0
    while change > 1e-3:
        y = (x + 2 / x) / 2
        change = (y - x).abs().max().item()
        x = y
        n += 1
        if n == 4:
            x = x * 2
            break
    return x, n


def of_connected_tests(x):
    n = 0
    while not (x.abs().sum() < 1 or n >= 9) and (n < 7 or x.max() > 3):
        x, n = x * 0.7, n + 1
    while 1 < x.abs().sum() < 50 and (change := (x - x.tanh()).abs().max()) < 20:
        x = x * 1.3 + change * 0.01
    return x, n


def with_breaks(x):
    n = 0
    while True:
        if x.abs().sum() < 1:
            break
        x = x * 0.7
        n += 1
        if x.max() < 0.1:
            x = x - 100
            break
        if n > 12:
            return x, -n
    return x, n


def with_a_break_in_some_rounds(x):
    n = 0
    while True:
        n += 1
        if n % 2:
            if x.abs().sum() < 1:
                break
            x = x * 0.7
        else:
            x = x - 0.01
    return x, n


def going_on(x):
    n = 0
    while x.abs().sum() > 1:
        n += 1
        x = x * 0.8
        if x.max() > 2:
            continue
        x = x * 0.9
    return x, n


def of_rounds_or_data(x):
    for i in range(50):  # noqa: B007
        y = x * 0.8
        if (y - x).abs().max() < 0.05:
            break
        x = y
    else:
        x = x * 100
    return x, i


def of_patience(x):
    best, bad = torch.tensor(1e9), 0
    for i in range(40, 0, -2):  # noqa: B007
        x = (x * 1.7).sin()
        error = x.abs().sum()
        if error < best:
            best, bad = error, 0
            if bad:
                continue
        else:
            bad += 1
            if bad > 2:
                break
    return x, best, i


def returning(x):
    for i in range(6):
        for j in range(7):
            x = x * 0.9
            if x.abs().sum() < 3:
                return x, i, j
        if x.max() > 8:
            return x * 2, i, -1
    return x, -1, -1


def of_other_numbers(x):
    n, k, done, last = 1000, -17, False, 0.0
    while not done and n:
        x = x * 0.7
        n //= 2
        k = k % 7 - n % -3
        size = float(x.abs().sum())
        done = abs(size - last) < 0.1
        last = size
    return x, n, k, done


def chosen_numbers(x):
    change, n = True, 0
    while change:
        change, n = False, n + 1
        x = x * (0.8 if x.max() > 1 else 0.7)
        if x.abs().sum() > 1:
            change = True
    return x, n


def fills_rows(x):
    out = torch.zeros(30, x.shape[0])
    last = out[0]
    for i in range(30):
        x = x * 0.8
        out[i] = x.sum(1)
        out[:, 0] += 1
        if out[i].abs().max() < 1:
            break
    return out, x, i, last


def in_a_function(x):
    def solved(y, tolerance):
        for k in range(50):
            z = y * 0.8
            if (z - y).abs().max() < tolerance:
                return z, k
            y = z
        return y, -1

    a, i = solved(x, 0.1)
    b, j = solved(a + 1, 0.01)
    return a, b, i + j


def not_at_first(x):
    before = None
    for i in range(30):  # noqa: B007
        size = x.abs().sum()
        if before is not None and (before - size).abs() < 0.05:
            break
        before, x = size, x * 0.8
    return x, i


done = []


def says_so_behind(x):
    n = 0
    while True:
        x = x * 0.7
        n += 1
        if x.abs().sum() < 1:
            done.append(n)
            break
    return x, n


ONE_GRAPH = [until, newton, fibonacci, branching, nested, in_a_branch, with_parts, counted, scaled, limited,
             with_a_break, of_connected_tests, with_breaks, with_a_break_in_some_rounds, going_on, of_rounds_or_data,
             of_patience, returning, of_other_numbers, chosen_numbers, fills_rows, in_a_function, not_at_first,
             says_so_behind]
INPUTS = [torch.rand(3, 4), -torch.rand(3, 4), torch.ones(3, 4) * 9, torch.randn(3, 4) * 2, torch.zeros(3, 4)]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", ONE_GRAPH)
def test_loops_of_python_are_one_graph(program, dynamic, captures):
    compiled = framesmith.compile(program, fullgraph=True, dynamic=dynamic)
    for x in INPUTS * 2:
        alike(compiled(x.clone()), program(x.clone()))
    assert len(captures) == 1
    if dynamic:
        for x in (torch.rand(5, 6), torch.rand(2, 7) * 2):
            alike(compiled(x), program(x))
        assert len(captures) == 1


def of_varying_rounds(x, n):
    for i in range(n):  # noqa: B007
        y = x * 0.8
        if (y - x).abs().max() < 0.05:
            break
        x = y
    return x, n


def test_rounds_that_vary_or_that_data_end_are_one_graph(captures):
    compiled = framesmith.compile(of_varying_rounds)
    for n in (6, 9, 12, 7, 3):
        for x in INPUTS[:2]:
            alike(compiled(x, n), of_varying_rounds(x, n))
    assert len(captures) == 2


def test_both_copies_of_a_test_are_of_one_loop():
    assert [len(loops(f.__code__)) for f in (going_on, returning, limited)] == [1, 2, 1]


seen = []


def speaks(x):
    while x.sum() < 20:
        x = x + 1
        seen.append(1)
    return x


def grows(x):
    while x.sum() < 20:
        x = torch.cat([x, x + 1])
    return x


def writes_an_input(x):
    while x.sum() < 20:
        x.add_(1)
    return x


def writes_what_it_changes(x):
    y = x * 1
    z = y
    while y.sum() < 20:
        y.add_(1)
        y = y * 2
    return y, z


def keeps_a_part_of_what_it_writes(x):
    out, n = torch.zeros(5, 3), 0
    part = out[0]
    while x.sum() < 20 and n < 4:
        out[n] = x.sum(1)
        part, x, n = out[1], x + 1, n + 1
    out.add_(1)
    return out, part, n


def speaks_in_some_rounds(x):
    for i in range(20):
        x = x + 1
        if x.sum() > 30:
            break
        if x.sum() > 20:
            seen.append(i)
    return x


def raises(x):
    n = 0
    while x.sum() < 20:
        x, n = x + 1, n + 1
        if n > 3:
            raise ValueError("too often")
    return x


def divides(x):
    n, k = 4, 2
    while x.sum() < 20 and n:
        x, n, k = x + 1, 100 // k, k - 1
    return x, n


def sets_a_variable(x):
    while x.sum() < 20:
        x = y = x + 1
    return y


def reads_its_iterator(x):
    it = iter(range(20))
    for i in it:  # noqa: B007
        x = x + 1
        if x.sum() > 20:
            break
    return x, i, list(it)


def becomes_another(x):
    n = 0
    while x.sum() < 20:
        x = (x + 1).double()
        n = "some"
    return x, n


def gives_nothing(x):
    for _ in range(20):
        x = x + 1
        if x.sum() > 20:
            return None
    return x


def collects(x):
    found = []
    while x.sum() < 20:
        x = x + 1
        found.append(x)
    return found


def returns(x):
    while x.sum() < 20:
        x = x + 1
        if x[0, 0] > 1:
            return x * 2
    return x


@pytest.mark.filterwarnings("ignore:framesmith")
@pytest.mark.parametrize("program", [
    speaks, grows, writes_an_input, writes_what_it_changes, keeps_a_part_of_what_it_writes, collects, returns,
    speaks_in_some_rounds, raises, divides, sets_a_variable, reads_its_iterator, becomes_another, gives_nothing])
def test_loops_that_do_more_are_breaks(program):
    compiled = framesmith.compile(program)
    for x in INPUTS[:1] + INPUTS[2:4]:
        found = []
        for run in (compiled, program):
            del seen[:]
            own = x.clone().abs()
            try:
                out = run(own)
            except (ValueError, ZeroDivisionError, UnboundLocalError) as e:
                out = type(e).__name__
            found.append((out, own, list(seen)))
        alike(*found)


U = torch.rand(4, requires_grad=True)


def weighted(x):
    y, n = x * 1, 0
    while y.abs().sum() > 1 and n < 9:
        y = (y * U).tanh() * 0.9
        n += 1
    return y, n


def two_states(x):
    a, b = x * 2, x.exp()
    while a.abs().max() < 9:
        a, b = a * 1.5 + b.cos() + 0.5, b * a.sin()
    return a * b


def doubled(x):
    y = x * 1
    while y.sum() < 20:
        y = y + 1 + y.tanh()
    return y * 2


def drops(x):
    while x.mean() < 1:
        x = torch.nn.functional.dropout(x, 0.5) + 0.6
    return x


def with_a_branch(x):
    y, n = x * 1, 0
    while y.abs().max() > 0.5 and n < 4:
        n += 1
        if y.mean() > 0:
            y = y.sin() - 0.3
        else:
            y = y * 0.5 * U
    return y * 2


def left_by_a_break(x):
    y, n = x * x + 1, 0
    while True:
        z = y - (y * y - 2) / (2 * y)
        n = n + 1
        if (z - y).abs().max() < 1e-3:
            break
        y = z
    return z * y, n


def one_after_the_other(x):
    y, n = x * 1, 0
    for most in (1, 4):
        while y.abs().sum() > most and n < 9:
            y = (y * U).tanh() * 0.9
            n += 1
        y = y - 0.1
    if y.mean() > 0:
        y = y * U
    return y, n


def of_connected_conditions(x):
    y, n = x * 1, 0
    while not (y.abs().sum() < 1 or n >= 9) and (n < 7 or y.max() > 3):
        y = (y * U).tanh() * 0.9
        n += 1
    return y, n


def left_for_another_place(x):
    y, n = x * x + 1, 0
    while True:
        z = y - (y * y - 2) / (2 * y)
        n += 1
        if (z - y).abs().max() < 1e-3:
            y = z * U
            break
        y = z
    return y, n


TRAINED = [newton, weighted, two_states, doubled, left_by_a_break, one_after_the_other, of_connected_conditions,
           left_for_another_place]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", TRAINED)
def test_loops_are_trained(program, dynamic, captures):
    compiled = framesmith.compile(program, fullgraph=True, dynamic=dynamic)
    for x in (*INPUTS[:4], -INPUTS[0] / 99):
        found = []
        for run in (compiled, program):
            leaf = x.double().requires_grad_()
            out = torch.utils._pytree.tree_leaves(run(leaf))
            y = next(o for o in out if isinstance(o, torch.Tensor))
            grads = torch.autograd.grad(y.pow(2).sum(), [leaf, U], allow_unused=True)
            found.append((out, grads))
        (got, mine), (want, theirs) = found
        alike(got, want)
        torch.testing.assert_close(mine, theirs)
        assert [g is None for g in mine] == [g is None for g in theirs]
    assert len(captures) == 1


def test_gradients_of_gradients_of_a_loop(captures):
    compiled = framesmith.compile(two_states, fullgraph=True)
    for x in INPUTS[:2]:
        found = []
        for run in (compiled, two_states):
            leaf = x.double().requires_grad_()
            (grad,) = torch.autograd.grad(run(leaf).sum(), leaf, create_graph=True)
            found.append((grad, *torch.autograd.grad(grad.pow(2).sum(), leaf)))
        torch.testing.assert_close(*found)
    assert len(captures) == 1


def with_inputs_of_their_own(x):
    a, b = x * 1, U * 2
    while a.sum() < 3:
        a, b = a + b.abs().sum(), b * a.mean()
    return a


def begins_without(x):
    total, y = torch.zeros(()), x * 1
    while y.sum() < 3:
        total, y = total + y.sum(), y + 1
    return total, y


def trained_in_rounds_or_until(x):
    y = x * 1
    for i in range(7):
        z = (y * U).tanh() * 0.9
        if (z - y).abs().max() < 0.3:
            y = z + i
            break
        y = z
    return y


def trained_in_a_branch(x):
    if x.sum() > 0:
        while x.sum() < 20:
            x = x * 2
    return x * 3


def trained_in_a_loop(x):
    n = 0
    while x.abs().sum() < 30 and n < 9:
        y = x.abs() * U + 1
        while y.sum() < 20:
            y = y * 2 + U
        x, n = x + y, n + 1
    return x


def trained_in_a_branch_of_a_loop(x):
    n = 0
    while x.abs().sum() < 30 and n < 9:
        n += 1
        if x.sum() > 2:
            while x.abs().sum() < 12:
                x = x * 2 * (U + 1)
            x = x + U
        else:
            x = x.abs() * 1.5 + 0.1
    return x


@pytest.mark.filterwarnings("ignore:framesmith")
@pytest.mark.parametrize("program", [with_inputs_of_their_own, begins_without, trained_in_a_branch, with_a_branch,
                                     trained_in_rounds_or_until, trained_in_a_loop, trained_in_a_branch_of_a_loop])
def test_loops_whose_gradients_depend_on_a_round_are_breaks(program):
    compiled = framesmith.compile(program)
    for x in INPUTS[:4]:
        found = []
        for run in (compiled, program):
            leaf = x.clone().requires_grad_()
            out = run(leaf * 1)
            out = out if isinstance(out, tuple) else (out,)
            loss = sum(o.pow(2).sum() for o in out if o.requires_grad)
            found.append((out, torch.autograd.grad(loss, [leaf, U], allow_unused=True)))
        (got, mine), (want, theirs) = found
        alike(got, want)
        assert [g is None for g in mine] == [g is None for g in theirs]
        torch.testing.assert_close(mine, theirs)


@pytest.mark.filterwarnings("ignore:framesmith")
def test_a_trained_loop_that_draws_runs():
    torch.manual_seed(0)
    x = torch.rand(3, 4, requires_grad=True)
    framesmith.compile(drops)(x * 1).sum().backward()
    assert x.grad is not None


W = torch.rand(4)
WHILES = {
    "tensors": lambda x: torch.while_loop(lambda i, x: i.sum() < 3, lambda i, x: (i + 1, x * 2 + W),
                                          (torch.zeros(1), x)),
    "integers": lambda x: torch.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2 + i), (0, x)),
    "none": lambda x: torch.while_loop(lambda i, x: i.sum() < -3, lambda i, x: (i + 1, x * 2), (torch.zeros(1), x)),
    "by keywords": lambda x: torch.while_loop(cond_fn=lambda x: x.sum() < 9, body_fn=lambda x: (x.abs() + 1,),
                                              carried_inputs=(x,)),
    "trees": lambda x: torch.while_loop(
        lambda i, d: d["a"].sum() < 30, lambda i, d: (i + 1, {"a": d["a"] + 1, "b": d["b"] * d["a"]}),
        (torch.zeros(1), {"a": x.abs(), "b": x})),
}


@pytest.mark.parametrize("backend", ["native", "eager"])
@pytest.mark.parametrize("name", WHILES)
def test_while_loop(name, backend, captures):
    program = WHILES[name]
    compiled = framesmith.compile(program, fullgraph=True, backend=backend)
    for x in (torch.rand(4), -torch.rand(4), torch.ones(4) * 8):
        alike(compiled(x), program(x))
    assert len(captures) == 1


@pytest.mark.parametrize("name", ["tensors", "by keywords"])
def test_while_loop_is_trained(name):
    program = WHILES[name]
    compiled = framesmith.compile(program, fullgraph=True)
    for x in (torch.rand(4), torch.ones(4) * 8):
        found = []
        for run in (compiled, program):
            leaf = x.clone().requires_grad_()
            with torch.enable_grad():
                leaves = [y for y in torch.utils._pytree.tree_leaves(run(leaf)) if isinstance(y, torch.Tensor)]
            loss = sum(y.pow(2).sum() for y in leaves if y.requires_grad)
            found.append(torch.autograd.grad(loss, leaf)[0])
        torch.testing.assert_close(*found)


@pytest.mark.filterwarnings("ignore:framesmith")
def test_variables_that_a_round_makes_one_are_one():
    def program(x):
        a, b = x * 1, x * 2
        while a.sum() < 20:
            a = a + 1
            b = a
        return a, b, a is b

    compiled = framesmith.compile(program)
    for x in (torch.ones(3), torch.ones(3) * 9):
        got, want = compiled(x), program(x)
        assert got[2] is want[2]
        torch.testing.assert_close(got, want)
