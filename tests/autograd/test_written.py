"""What autograd refuses to use once something was written, or was used up, it refuses in compiled code too, and nothing
else."""

from __future__ import annotations

import pytest
import torch

import framesmith
from tests.autograd.driver import agree, error_of
from tests.programs import Programs

scenario = Programs(agree)


def leaf(*shape):
    return torch.randn(shape, requires_grad=True)


@scenario(breaks=True)
def what_split_gave_views_of(c):
    def fn(x):
        y = x * 2
        a, _ = y.split(2)
        y.diagonal().add_(1)
        return y, a

    y, a = c(fn)(leaf(4, 4))
    return y, error_of(lambda: a.sum().backward())


@scenario(breaks=True)
def what_split_gave_views_of_without_history(c):
    def detached(x):
        y = x * 2
        a, _ = y.split(2)
        y.detach().mul_(2)
        return y + 1, a

    def without_grad(x):
        y = x * 2
        a = y.unbind()[0]
        with torch.no_grad():
            y[0].mul_(2)
        return y + 1, a

    found = []
    for f in (detached, without_grad):
        y, a = c(f)(leaf(4, 4))
        found += [y, error_of(lambda: a.sum().backward())]  # noqa: B023
    return found


@scenario
def complex_slices_are_written(c):
    """The operators that stand for these writes have no derivative for complex numbers in autograd."""

    def fn(x, w):
        out = torch.zeros(2, 5, dtype=torch.complex64)
        out[:, 1:4] = x * w
        y = x * 2
        y[:, 0] = w[0]
        y[1].mul_(1j)
        whole = x * 3
        torch.ops.aten.alias(whole).copy_(w.real)
        return out, y.flip(0) + whole

    x, w = (torch.randn(n, dtype=torch.complex64, requires_grad=True) for n in ((2, 3), (3,)))
    out, y = c(fn)(x, w)
    first = torch.autograd.grad(out.abs().sum() + (y * y).real.sum(), (x, w), create_graph=True)
    return out, y, first, torch.autograd.grad(sum(g.abs().square().sum() for g in first), (x, w))


@scenario
def a_view_is_overwritten_whole(c):
    """It requires grad as its base does."""

    def fn(x):
        y = x * 2
        a = y[1]
        a.zero_()
        return y, a, a + 1

    x = leaf(3, 2)
    y, a, b = c(fn)(x)
    (y.sum() + a.sum() + b.sum()).backward()
    return x, y, a, b


@scenario
def nobody_sees_the_whole_of_what_is_written(c):
    def fn(x):
        y = x.squeeze()
        y.tril_()
        y.mT.pow_(2)
        return y.mT

    x = leaf(3, 0)
    return c(fn)(x * 1)


@scenario
def what_split_gave_is_written_outside(c):
    def fn(x):
        y = x * 2
        return y, *y.split(2), y.unbind()[1], y.view(-1)

    _, a, _, u, v = c(fn)(leaf(4, 4))
    errors = [error_of(lambda: a.add_(1)), error_of(lambda: u.add_(1)), error_of(lambda: v.add_(1))]
    return errors, error_of(lambda: a.sum().backward()), error_of(lambda: v.sum().backward())


@scenario(breaks=None)
def an_operand_is_what_is_written(c):
    def fn(x):
        y = x * 1
        y.mul_(y)
        return y

    def gn(x):
        y = x * 1
        y.mT.addcmul_(y, x)
        return y

    def hn(x):
        y = x * 1
        y.mul_(x).pow_(2).add_(y)
        return y

    def after_a_view(x):
        y = x * 1
        y.view(-1).mul_(2)
        y.div_(y)
        return y

    return [error_of(lambda f=f: c(f)(leaf(1, 1)).sum().backward()) for f in (fn, gn, hn, after_a_view)]


@scenario
def a_result_is_written_of_which_alone_a_gradient_is_asked(c):
    def fn(x):
        return x.max(), x.square()

    errors = []
    for written in (0, 1):
        h = leaf() * 1
        results = c(fn)(h)
        results[written][results[written] > -9] = 0
        errors += [error_of(y.backward) for y in results]
    return errors


@scenario(breaks=None)
def what_is_overwritten_whole(c):
    """It has a gradient of zeros, which goes on through what it was: NaN of a logarithm at zero, an error where that
    was kept."""

    def kept(x):
        y = x.exp()
        y.copy_(x)
        return y

    def through_a_view(x):
        y = x.sqrt()
        y.mT.copy_(x.mT)
        return y.cos()

    def not_kept(x):
        y = x.log()
        y.view(-1).copy_(x.view(-1))
        return y.cos()

    def by_a_constant(x):
        y = x.neg()
        y.copy_(torch.ones(2, 2))
        return y * 2

    found = []
    for fn in (kept, through_a_view, not_kept, by_a_constant):
        x = torch.arange(4.0).view(2, 2).requires_grad_()
        y = c(fn)(x)
        found += [error_of(lambda: y.sum().backward()), y, x.grad]  # noqa: B023
    return found


@scenario
def an_input_is_overwritten_whole(c):
    x, w = leaf(2), leaf(2)
    h = x * 2
    y = c(lambda h, w: h.copy_(w.exp()))(h, w)
    y.sum().backward()
    return x.grad, w.grad


@scenario(breaks=True)
def a_part_of_what_is_expanded(c):
    def fn(x, w):
        y = x.cumsum(1).expand(2, 2, 3)
        y[0] = -1
        return w.exp(), y.mT

    x, w = leaf(2, 3), leaf(3)
    results = c(fn)(x, w)
    torch.autograd.backward(results, [torch.ones_like(y) for y in results])
    return x, w


@scenario(breaks=True)
def results_are_written_with_out(c):
    def fn(x, o):
        return torch.add(x, 1, out=o)

    def gn(x, o):
        return torch.gt(x, 0, out=o), x * 2

    def hn(x, o):
        with torch.no_grad():
            return torch.mm(x, x, out=o)

    x = leaf(3, 3)
    f = c(fn)
    return [error_of(lambda: f(x, torch.empty(3, 3))), error_of(lambda: f(torch.ones(3, 3), leaf(3, 3))),
            f(torch.ones(3), torch.empty(3)), c(gn)(x, torch.empty(3, 3, dtype=torch.bool)),
            c(hn)(x, torch.empty(3, 3))]


@scenario
def a_second_backward(c):
    """Allowed where nothing is kept."""
    calls = (lambda x: x + 1, lambda x: x.sum(), lambda x: x.reshape(-1) - x.flip(0),
             lambda x: torch.cat([x, x]).mean(), lambda x: x * 2,
             lambda x: x.sin(), lambda x: x.relu(), lambda x: x * x)
    found = []
    for call in calls:
        x = leaf(3)
        y = c(call)(x)
        tangent = torch.ones_like(y)
        y.backward(tangent, retain_graph=True)
        y.backward(tangent)
        found += [x.grad.clone(), error_of(lambda: y.backward(tangent)), x.grad]  # noqa: B023
    return found


@scenario
def backwards_of_results_in_turn(c):
    def apart(x):
        return x.sin(), x.exp(), x + 1

    def together(x):
        y = x.exp().sin()
        return y.cos(), y.square(), x.square()

    found = []
    for call in (apart, together):
        for order in ((0, 1, 2, 0), (2, 1, 0, 2), (1, 1, 2, 2)):
            x = leaf(3)
            results = c(call)(x)
            found += [error_of(lambda: results[k].sum().backward()) for k in order]  # noqa: B023
            found += [x.grad, error_of(lambda: sum(y.sum() for y in results).backward())]  # noqa: B023
    return found


@scenario(breaks=True)
def a_logical_operator_writes_a_view(c):
    """Autograd knows nothing of it; of comparisons, it has zeros for what was there."""

    def logical(x):
        y = x[:2]
        y.logical_not_()
        x[2:].logical_or_(y[:1])
        return y * 2, x

    def compared(x):
        y = x[:2]
        y.gt_(0.5)
        return y * 2, x

    def without_history(x):
        y = x.detach()
        y.logical_not_()
        return y + x

    found = []
    for f in (logical, compared, without_history):
        x = leaf(3)
        results = c(f)(x * 1)
        sum(y.sum() for y in results).backward()
        found += [x, results]
    return found


@scenario
def data_is_written_of_what_a_gradient_needs(c):
    """No version counts a write through `.data`, or through a view of it; but one through `detach()`, or after it."""

    def through_data(x):
        x.data.add_(1)

    def through_a_view(x):
        x.data[1:].detach().zero_()

    def without_grad(x):
        with torch.no_grad():
            x.data.mul_(2)

    def detached(x):
        x.detach().data.mul_(2)
        x.detach().mul_(2)

    found = []
    for f in (through_data, through_a_view, without_grad, detached):
        for x in (leaf(3) * 1, torch.randn(3)):
            w = leaf(3)
            before = x._version
            y = x.sin() * w
            c(f)(x)
            found += [x._version - before, error_of(lambda: y.sum().backward()), w.grad]  # noqa: B023
    return found


@scenario(breaks=None)
def what_was_written_without_a_version_is_written_again(c):
    def fn(x):
        x.data.add_(1)
        y = x.log1p()
        x.zero_()
        return y

    def kept(x):
        x.data.add_(1)
        return x.log1p(), x

    x = leaf(3)
    y, z = c(kept)(x)
    with torch.no_grad():
        z.mul_(2)
    return error_of(lambda: c(fn)(leaf(3) * 1).sum().backward()), error_of(lambda: y.sum().backward())


@scenario(breaks=True)
def data_is_written_of_inputs_that_share_memory(c):
    def data(a, b):
        y = b.sin()
        a.data.add_(1)
        return y

    def detached(a, b):
        y = b.sin()
        a.detach().add_(1)
        return y

    def given_detached(a, b):
        y = b.clamp(a)
        b.data.sub_(1)
        return a, y

    a, d, b = leaf(3), leaf(3), leaf(3) * 1
    errors = [error_of(lambda: c(data)(a, a[...]).sum().backward()),
              error_of(lambda: c(detached)(d, d[...]).sum().backward())]
    c(given_detached)(b, b.detach())[1].sum().backward()
    return *errors, a, d, b


@scenario
def an_argument_is_written_that_autograd_does_not_keep(c):
    """A leaf, too, without gradients, and by code that was first called with a leaf."""

    def fn(x):
        return x.masked_fill(x > 0.5, 0.5)

    leaves, errors, called = [leaf(3), leaf(3)], [], c(fn)
    for x in (leaves[0], leaves[1] * 1):
        y = called(x)
        with torch.no_grad():
            x.add_(1)
        errors.append(error_of(lambda: y.sum().backward()))  # noqa: B023
    return leaves, errors


@scenario(breaks=None)
def complex_numbers_without_elements_are_written(c):
    def fn(x):
        y = torch.view_as_real(x)
        y.swapaxes(0, -1)[0].add_(-0.25)
        return y

    x = torch.randn(4, 0, dtype=torch.complex64).t().requires_grad_()
    y = c(fn)(x * 1)
    return y, error_of(lambda: y.sum().backward()), c(fn)(leaf(2, 3).to(torch.complex64))


@scenario
def what_a_gradient_needs_is_written_once_more(c):
    """Although it is computed again, of what was there before."""

    def fn(x):
        x.sigmoid_()
        return x

    x = leaf(3) * 1
    y = c(fn)(x)
    x.logical_not_()
    return error_of(lambda: y.sum().backward())


@scenario(breaks=None)
def inputs_that_share_a_storage_without_elements(c):
    def fn(a, b):
        b.squeeze().neg_()
        return a @ a.mT

    x = leaf(0, 4)
    y = x * 1
    c(fn)(y, y.mT).sum().backward()
    return x, c(fn)(leaf(0, 4) * 1, leaf(4, 0) * 1)


@scenario
def a_detached_tensor_is_viewed_by_as_strided(c):
    def fn(x):
        y, z = x.data, x[1:].detach()
        return y.as_strided((2, 2), (1, 2)), z.as_strided((2,), (1,), 0), y.t().as_strided((3,), (1,)) * x[0]

    x = leaf(3, 3)
    results = c(fn)(x)
    results[-1].sum().backward()
    with torch.no_grad():
        results[0].zero_()
    return results, x


@scenario(breaks=None)
def a_derivative_has_no_kernel(c):
    """The variance has one, but for half precision no sum that the derivative needs."""
    x = leaf(2).half()
    z, y = c(lambda x: x + 1)(x), c(lambda x: torch.complex(x, x).var(-1))(x)
    return z, y, error_of(lambda: y.backward())


@scenario(breaks=True)
def what_views_a_detached_tensor_has_its_history(c):
    def detached(a):
        x = a.detach()
        y, z = x.view(-1), x[1:].detach()
        x.copy_(a * 2)
        return x, y, z

    def data(a):
        x = a.detach().clone().data
        y = x.squeeze()
        x.mul_(a)
        return x, y

    a, b = leaf(2, 3), leaf(1)
    results = [*c(detached)(a), *c(data)(b)]
    sum((x * x).sum() for x in results).backward()
    return results, a, b


@scenario(breaks=None)
def integers_are_filled_with_a_number_that_requires_grad(c):
    """Eager lets them require grad, too."""

    def fn(x, k):
        k.mT[0] = x[0]
        return x + 1

    def then(x, k):
        k.fill_(x[0])
        return x * 2

    found = []
    for f in (fn, then):
        x, k = leaf(2), torch.arange(6).view(2, 3)
        y = c(f)(x, k)
        found += [y, k.detach(), k.requires_grad, k.is_leaf]
    return found


@scenario(breaks=None)
def a_draw_by_the_shape_of_a_tensor_that_requires_grad(c):
    """Eager's result requires grad, and has no derivative."""
    torch.manual_seed(0)
    x = leaf(4)
    y = c(lambda x: torch.bernoulli(x, 0.5) * x)(x)
    return y, error_of(lambda: y.sum().backward())


@scenario(breaks=None)
def unique_elements_of_a_tensor_that_requires_grad(c):
    """Eager's result requires grad, and has no derivative."""
    x = torch.tensor([2.0, 1.0, 2.0], requires_grad=True)
    found = []
    for call in (torch.unique, torch.unique_consecutive, lambda x: torch.unique(x, dim=0)):
        y = c(lambda x, call=call: call(x * 2) + 1)(x)
        found += [y, y.requires_grad, error_of(lambda y=y: y.sum().backward())]
    return found


@scenario
def only_the_gradients_of_another_result_read_what_is_written(c):
    def fn(x):
        return x.asinh(), x.view(-1).expm1(), (x + 1).sin().exp()

    a = leaf(3, 2)
    first, second, third = c(fn)(a * 1)
    x = a * 1
    results = c(fn)(x)
    with torch.no_grad():
        x.zero_()
    refused = [error_of(lambda y=y: torch.autograd.grad(y.sum(), a, retain_graph=True)) for y in results]
    (first.sum() + third.sum()).backward(retain_graph=True)
    (results[1] * second).sum().backward()
    return a, results, refused


@scenario(breaks=None)
def autograd_makes_a_written_view_again(c):
    def fn(x):
        y = x.select(0, -1).real
        z = torch.stack([y, y])
        y.logical_not_()
        return y, z * y

    x = torch.randn(2, 3, dtype=torch.complex64, requires_grad=True)
    results = c(fn)(x)
    results[1].sum().backward()
    return x, results


@scenario(breaks=None)
def a_value_kept_in_a_part_is_written(c):
    def then(write):
        def fn(x):
            part = x[:, 1:]
            part.sigmoid_()
            write(x, part)
            return x

        y = c(fn)(leaf(3, 4) * 1)
        return y, error_of(lambda: y.sum().backward())

    return [then(lambda x, part: part[..., 0].add_(1)), then(lambda x, part: x.add_(1)),
            then(lambda x, part: part.add_(1)), then(lambda x, part: part.sin())]


@scenario(breaks=True)
def as_strided_beyond_a_part_that_has_as_many_elements(c):
    x = leaf(3, 4)
    y = c(lambda x: x.expand(2, 3, 4).chunk(2, -1)[0].as_strided((2, 2), (1, 2)) * 2)(x * 1)
    y.sum().backward()
    return x, y


@scenario(breaks=True)
def the_only_one_of_several_views_is_written(c):
    def fn(x):
        y = (x * 1).chunk(2, 1)[0]
        z = y.sum()
        y.logical_not_()
        return y, z

    y, z = c(fn)(leaf(4, 1))
    return z, error_of(lambda: y.grad_fn), error_of(lambda: y.sum().backward())


@scenario
def a_view_that_is_written_keeps_its_strides(c):
    """Whatever strides the operator has without writing."""

    def fn(x):
        y = [(x * n).mT for n in range(1, 5)]
        y[0].masked_fill_(y[0] > 0, 1.0)
        y[1].cumsum_(-1)
        y[2].scatter_(-1, y[2].argsort(-1), 0)
        y[3].tril_()
        return [z.exp() for z in y]

    made = c(fn)(leaf(2, 3, 4))
    return made, [z.stride() for z in made]


@scenario
def a_gradient_of_a_copy_is_cast_before_it_is_summed(c):
    def fn(x, y):
        x = x.clone()
        x.copy_(y)
        return x

    x, y = torch.zeros(65, dtype=torch.bfloat16), leaf(1)
    made = c(fn)(x, y)
    made.backward(torch.full_like(made, 1.0078125))  # the sum needs more bits than bfloat16 has
    return y


@scenario
def an_expansion_to_no_elements_is_written(c):
    def fn(x):
        y = x * 1
        y.expand(0).add_(1)
        return y.exp()

    x = leaf(1)
    c(fn)(x).sum().backward()
    return x


@scenario(breaks=None)
def a_refused_write_comes_after_the_draws(c):
    """Plain Python runs where the write is refused, with the numbers that it draws by itself, and none written twice.
    """

    def fn(done, x):
        done.mul_(x.sum() + 3)
        x.add_(torch.rand(4))

    def unbound(x):
        return x.expand(2, 4).clone().unbind()[0]

    def without_grad(x):
        with torch.no_grad():
            return x.view(4)

    found = []
    for make in (torch.Tensor.clone, leaf, unbound, without_grad):
        done, x = torch.ones(2), make(4) if make is leaf else make(leaf(4))
        found += [error_of(lambda: c(fn)(done, x)), done, torch.rand(1)]  # noqa: B023
    return found


@scenario(breaks=None)
def a_view_that_autograd_lets_nobody_write_is_given_an_input_as_it_is(c):
    def one_of_several(p):
        a, _ = torch.zeros(4).split(2)
        a[0] = p
        return a

    def the_only_one(p):
        a, = torch.zeros(1, 3).unbind()
        a[0] = p
        return a

    def made_without_grad(p):
        with torch.no_grad():
            a = torch.zeros(4)[1:]
        a[0] = p
        return a

    def without_gradient(p):
        a, _ = torch.zeros(4).split(2)
        a[0] = p.detach()
        return a * p

    return [error_of(lambda: c(fn)(leaf())) for fn in  # noqa: B023
            (one_of_several, the_only_one, made_without_grad, without_gradient)]


@scenario(breaks=True)
def one_of_several_views_is_used_after_an_input_as_it_is_was_written(c):
    def fn(p):
        x = torch.zeros(4)
        a, _ = x.chunk(2)
        x[0] = p
        return x, a.sum()

    return error_of(lambda: c(fn)(leaf()))


@scenario(breaks=True)
def a_view_is_written_after_a_break(c):
    """It was made by the graph before, which runs with grad mode off."""

    def fn(p, x):
        view = x.tanh().t()
        if p > 5:
            return view
        view[0] = p
        return view

    p = leaf()
    y = c(fn)(p, torch.randn(2, 3))
    y.sum().backward()
    return p, y


test_written = scenario.test()


@scenario(breaks=True)
def a_mask_without_dimensions_writes_a_view(c):
    def fn(b):
        t = b.real
        t[t > 0] = 2  # Python reads the mask, and plain Python writes
        return t

    found = []
    for value in (1 + 1j, -1 + 1j):
        x = torch.tensor(value, requires_grad=True)
        y = c(fn)(x * 1)
        y.backward()
        found += [y, y.is_leaf, x.grad]
    return found


def whole_row(x):
    y = x.clone()
    y[0] = x[1]
    return y, x + 1


def row_then_the_rest(x):
    y = x.clone()
    rest = y[1]
    y[0].neg_()
    return rest, y


def the_view_itself(x):
    y = x.clone()
    row = y[0]
    row.neg_()
    return row, y


def other_value_whole(x):
    y, z = x.clone(), x.neg()
    y.view_as(y).copy_(z)
    return y, z


def zeros_with_a_row(x):
    y = torch.zeros(3, 3)
    y[0] = x[1]
    return y, torch.select_scatter(x, x[1], 0, 0)


def before_and_after(x):
    y = x.clone()
    before = y.neg()
    y.t()[0] = x[0]
    return y, before


def of_another_shape(x):
    y, z = x.clone(), x.clone()
    y.t_().neg_()  # no view
    z.t_()[0].neg_()
    return y, z


WRITES = (whole_row, row_then_the_rest, the_view_itself, other_value_whole, zeros_with_a_row, before_and_after,
          of_another_shape)


@pytest.mark.parametrize("order", [(0, 0), (0, 1), (1, 0), (1, 1)], ids=str)
@pytest.mark.parametrize("fn", WRITES, ids=lambda fn: fn.__name__)
def test_gradients_go_through_a_write_of_a_view_in_one_backward_only(fn, order):
    def found(fn):
        x = torch.arange(9.0).view(3, 3).requires_grad_()
        results, out = fn(x), []
        for k in order:
            try:
                out.append(torch.autograd.grad(results[k].sum(), x)[0].tolist())
            except RuntimeError as error:
                out.append("second time" in str(error))
        return out

    assert found(framesmith.compile(fn, backend="eager", fullgraph=True)) == found(fn)
