"""torch.autograd.Function in captured code: its backward is what the program says, in any order of derivative."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

import framesmith
from tests.programs import Programs

from .driver import agree, error_of

scenario = Programs(agree)


test_same_as_eager = scenario.test()


def leaf(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()


def derivatives(f, *leaves):
    """The value, its gradients, and the gradients of the sum of their squares."""
    out = f(*leaves)
    loss = out.square().sum() if isinstance(out, torch.Tensor) else sum(o.square().sum() for o in out)
    first = torch.autograd.grad(loss, leaves, create_graph=True, allow_unused=True)
    told = sum(g.square().sum() for g in first if g is not None and g.requires_grad)
    second = torch.autograd.grad(told, leaves, allow_unused=True) if isinstance(told, torch.Tensor) else None
    return out, first, second


class Twice(Function):
    """Saves an argument, and says a derivative that is not the true one."""

    @staticmethod
    def forward(ctx, x, k):
        ctx.save_for_backward(x)
        ctx.k = k
        return x * x * k

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        return 5 * g * x * ctx.k, None


@scenario
def an_argument_that_is_no_tensor(c):
    return derivatives(c(lambda x: Twice.apply(x.sin(), 3) * 2), leaf(3))


class Tanh(Function):
    """Saves its result."""

    @staticmethod
    def forward(ctx, x):
        y = x.tanh()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        y, = ctx.saved_tensors
        return g * (1 - y * y)


@scenario
def a_saved_result(c):
    return derivatives(c(lambda x: Tanh.apply(x.sin()).exp()), leaf(3))


class Cubed(Function):
    """Saves what is neither argument nor result, so that no second derivative goes through it."""

    @staticmethod
    def forward(ctx, x):
        square = x * x
        ctx.save_for_backward(x, square)
        return square * x

    @staticmethod
    def backward(ctx, g):
        x, square = ctx.saved_tensors
        return 3 * g * square + 0 * x


@scenario
def a_saved_intermediate(c):
    return derivatives(c(lambda x: Cubed.apply(x) + 1), leaf(3))


class Reversed(Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return g.neg() * ctx.factor, None


@scenario
def gradients_turned_round(c):
    return derivatives(c(lambda x: Reversed.apply(x.sin(), 0.5).exp()), leaf(3))


@scenario
def an_argument_given_back(c):
    class Same(Function):
        @staticmethod
        def forward(ctx, x):
            return x

        @staticmethod
        def backward(ctx, g):
            return g * 7

    return derivatives(c(lambda x: Same.apply(x.sin())), leaf(3))


@scenario(breaks=True)
def memory_of_a_view_that_forward_gives(c):
    """Of an input; of what is written later, and so seen through the view; of what leaves, too."""

    def written(x):
        y = x.sin()
        z = Reversed.apply(y, 0.5)
        with torch.no_grad():
            y.mul_(2)
        return z * 2

    def both(x):
        y = x.sin()
        return y, Reversed.apply(y, 0.5)

    x = leaf(3)
    whole, (y, z) = c(lambda x: Reversed.apply(x, 0.5))(x), c(both)(x)
    same = [whole.data_ptr() == x.data_ptr(), y.data_ptr() == z.data_ptr()]
    return same, error_of(lambda: c(written)(x)), torch.autograd.grad((whole * y * z).sum(), x)


class Rounded(Function):
    """The straight-through estimator."""

    @staticmethod
    def forward(ctx, x):
        return torch.round(x)

    @staticmethod
    def backward(ctx, g):
        return g


class Quantised(nn.Linear):
    def forward(self, x):
        return F.linear(x, Rounded.apply(self.weight * 4) / 4, self.bias)


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_a_module_with_rounded_weights(backend):
    def train(c):
        m = nn.Sequential(Quantised(4, 8), nn.ReLU(), Quantised(8, 2))
        f = c(m)
        opt = torch.optim.SGD(m.parameters(), lr=0.1)
        for _ in range(3):
            f(torch.randn(5, 4)).square().mean().backward()
            opt.step()
            opt.zero_grad()
        return m

    agree(train, backend=backend)


class Linear(Function):
    """As in the manual: gradients only where they are asked for."""

    @staticmethod
    def forward(ctx, x, weight, bias=None):
        ctx.save_for_backward(x, weight, bias)
        out = x.mm(weight.t())
        return out if bias is None else out + bias.unsqueeze(0).expand_as(out)

    @staticmethod
    def backward(ctx, g):
        x, weight, bias = ctx.saved_tensors
        dx = dw = db = None
        if ctx.needs_input_grad[0]:
            dx = g.mm(weight)
        if ctx.needs_input_grad[1]:
            dw = g.t().mm(x)
        if bias is not None and ctx.needs_input_grad[2]:
            db = g.sum(0)
        return dx, dw, db


@scenario
def gradients_that_are_asked_for(c):
    f = c(lambda x, w, b: Linear.apply(x, w, b).tanh())
    return [derivatives(f, leaf(2, 3), leaf(4, 3), leaf(4)),
            derivatives(lambda w: f(torch.ones(2, 3).double(), w, None), leaf(4, 3))]


class Sorted(Function):
    @staticmethod
    def forward(ctx, x):
        values, index = x.sort()
        ctx.mark_non_differentiable(index)
        ctx.save_for_backward(index)
        ctx.n = x.shape[0]
        return values, index

    @staticmethod
    def backward(ctx, g, none):
        index, = ctx.saved_tensors
        return torch.zeros(ctx.n, dtype=g.dtype).index_add(0, index, g) + none.sum()


@scenario
def a_result_without_gradient(c):
    def f(x):
        values, index = Sorted.apply(x)
        return values * values.new_tensor([1.0, 2.0, 3.0]), index.double()

    def show(x):
        values, index = c(f)(x)
        return values, index, index.requires_grad, torch.autograd.grad(values.sum(), x)

    return show(leaf(3))


class Parts(Function):
    @staticmethod
    def forward(x, k):
        return x * k, x.exp(), k

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.k = inputs[1]
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx, a, b, none):
        assert none is None
        return a * ctx.k + b * ctx.saved_tensors[0], None


@scenario
def several_results_and_a_context_of_its_own(c):
    f = c(lambda x: Parts.apply(x, 3)[:2])
    x = leaf(3)
    return [derivatives(f, x), torch.autograd.grad(f(x)[1].sum(), x), torch.autograd.grad(f(x)[0].sum(), x)]


class Loose(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, a, b):
        if a is None:
            return b * 30
        if b is None:
            return a * 20
        return a * 2 + b * 3


@scenario
def gradients_that_are_missing(c):
    f, x = c(lambda x: Loose.apply(x)), leaf(3)
    return [torch.autograd.grad(sum(y.sum() for y in take(f(x))), x)
            for take in (lambda y: y, lambda y: y[:1], lambda y: y[1:])]


class Nested(Function):
    """Its backward is a function with a derivative of its own."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return Tanh.apply(x) * 2

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        return Twice.apply(g, 2) * Tanh.apply(x)


@scenario
def functions_within_functions(c):
    return derivatives(c(lambda x: Nested.apply(x * 2)), leaf(3))


class Once(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return g * ctx.saved_tensors[0].cos()


@scenario
def a_derivative_that_has_none(c):
    f, x = c(lambda x: Once.apply(x * 2)), leaf(3)
    first = torch.autograd.grad(f(x).sum(), x, create_graph=True)
    again, = torch.autograd.grad(f(x).square().sum(), x, create_graph=True)
    return first, again, error_of(lambda: again.sum().backward())


@scenario
def attributes_that_are_tensors(c):
    class Held(Function):
        @staticmethod
        def forward(ctx, x, scale):
            ctx.x, ctx.scale = x, scale
            ctx.y = x * scale
            return ctx.y

        @staticmethod
        def backward(ctx, g):
            return g * ctx.scale + 0 * ctx.x, (g * ctx.x + ctx.y * 0).sum(0)

    return derivatives(c(lambda x, s: Held.apply(x, s).sin()), leaf(2, 3), leaf(3))


@scenario
def a_gradient_that_is_not_contiguous(c):
    class Flat(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return (g.contiguous().view(-1) * 2).view(g.shape)

    x, f = leaf(2, 3), c(lambda x: Flat.apply(x))
    f(x).sum().backward()
    f(x).t().square().sum().backward()
    return x


@scenario
def a_masked_gradient(c):
    class Clamped(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.clamp(min=0)

        @staticmethod
        def backward(ctx, g):
            x, = ctx.saved_tensors
            out = g.clone()
            out[x < 0] = 0
            return out

    return derivatives(c(lambda x: Clamped.apply(x) * x), leaf(5))


@scenario(breaks=True)
def a_written_argument(c):
    class Grown(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_dirty(x)
            return x.add_(1)

        @staticmethod
        def backward(ctx, g):
            return g * 3

    return derivatives(c(lambda x: Grown.apply(x * 2).sin()), leaf(3))


@scenario(breaks=True)
def a_backward_that_notes_what_it_does(c):
    seen = []

    class Noting(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            seen.append("backward")
            return g * 2

    out = c(lambda x: Noting.apply(x.sin()).cos())(leaf(3))
    before = len(seen)
    out.sum().backward()
    return before, seen


@scenario(breaks=True)
def too_few_gradients(c):
    class Wrong(Function):
        @staticmethod
        def forward(ctx, x, y):
            return x * y

        @staticmethod
        def backward(ctx, g):
            return g

    out = c(lambda x: Wrong.apply(x.sin(), 2.0))(leaf(3))
    return error_of(lambda: out.sum().backward())


@pytest.mark.filterwarnings("error:.*internal fault")
def test_a_gradient_of_another_shape_breaks():
    class Wrong(Function):
        @staticmethod
        def forward(ctx, x):
            return x.sin()

        @staticmethod
        def backward(ctx, g):
            return g[0]

    out = framesmith.compile(lambda x: Wrong.apply(x).cos(), backend="eager")(leaf(3, 4))
    with pytest.raises(RuntimeError, match="WrongBackward returned an invalid gradient at index 0"):
        out.sum().backward()


@scenario
def a_gradient_of_a_shape_that_the_input_expands_to(c):
    class Wider(Function):
        @staticmethod
        def forward(ctx, x):
            return x.sin()

        @staticmethod
        def backward(ctx, g):
            return g.expand(2, 3, 4) * 2

    return derivatives(c(lambda x: Wider.apply(x).cos()), leaf(3, 4))


@scenario
def a_result_that_is_written_and_was_not_saved(c):
    return derivatives(c(lambda x: Twice.apply(x, 3).mul_(2)), leaf(3))


@scenario(breaks=True)
def a_saved_tensor_that_is_written(c):
    def f(x):
        h = x.sin()
        y = Twice.apply(h, 3)
        h.mul_(2)
        return y + h

    out = c(f)(leaf(3))
    return error_of(lambda: out.sum().backward())


@scenario
def random_values_of_a_forward(c):
    class Drop(Function):
        @staticmethod
        def forward(ctx, x):
            mask = (torch.rand_like(x) > 0.5).to(x.dtype)
            ctx.save_for_backward(mask)
            return x * mask

        @staticmethod
        def backward(ctx, g):
            return g * ctx.saved_tensors[0]

    return derivatives(c(lambda x: Drop.apply(x.sin()).exp()), leaf(8))


@scenario(breaks=True)
def a_tensor_that_passes_by_a_graph_of_its_own(c):
    """What a graph gives back, and does not depend on, is no part of its backward."""

    def f(x):
        h = x.sin()
        y = h.detach().requires_grad_()
        return h, y, (y * y).sum()

    x = leaf(3)
    h, y, z = c(f)(x)
    z.backward()
    h.sum().backward()
    return x, y


class Gated(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return F.silu(a) * b

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        gate = torch.sigmoid(a)
        return g * (a * gate * (1 - gate) + gate) * b, g * F.silu(a)


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_within_a_region_of_checkpointing(backend):
    def train(c):
        m, x = nn.Linear(4, 8), torch.randn(3, 4).requires_grad_()
        c(lambda x: checkpoint(lambda x: Gated.apply(*m(x).chunk(2, -1)), x, use_reentrant=False).sum())(x).backward()
        return m, x

    agree(train, backend=backend)


class Cast(Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x.mm(w)

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g.mm(w.t()), x.t().mm(g)


@scenario
def autocast_of_its_own(c):
    m, w = nn.Linear(4, 4), nn.Parameter(torch.eye(4))

    def f(x):
        with torch.autocast("cpu", torch.bfloat16):
            return Cast.apply(m(x), w).sum()

    c(f)(torch.randn(3, 4)).backward()
    return m, w


class CrossEntropy(Function):
    """Gradients are computed in the forward, a few rows at a time."""

    @staticmethod
    def forward(ctx, x, w, target):
        loss, dx, dw = 0.0, torch.empty_like(x), torch.zeros_like(w)
        for i in range(0, x.shape[0], 2):
            rows = x[i:i + 2]
            p = (rows @ w.t()).softmax(-1)
            hot = F.one_hot(target[i:i + 2], w.shape[0]).to(x.dtype)
            loss = loss - (p.log() * hot).sum()
            dx[i:i + 2] = (p - hot) @ w
            dw += (p - hot).t() @ rows
        ctx.save_for_backward(dx, dw)
        return loss

    @staticmethod
    def backward(ctx, g):
        dx, dw = ctx.saved_tensors
        return g * dx, g * dw, None


@scenario
def gradients_computed_in_the_forward(c):
    x, w = leaf(4, 4), leaf(5, 4)
    c(lambda x, w: CrossEntropy.apply(x * 2, w, torch.tensor([0, 1, 2, 3])))(x, w).backward()
    return x, w


class Joined(Function):
    @staticmethod
    def forward(ctx, scale, *parts):
        ctx.scale, ctx.lengths = scale, [p.shape[0] for p in parts]
        return torch.cat(parts) * scale

    @staticmethod
    def backward(ctx, g):
        grads, start = [], 0
        for length in ctx.lengths:
            grads.append(g[start:start + length] * ctx.scale)
            start += length
        return None, *grads


@scenario
def any_number_of_arguments(c):
    return derivatives(c(lambda x, y: Joined.apply(2, x.sin(), y, x)), leaf(3), leaf(2))


@scenario(breaks=True)
def a_backward_within_a_backward(c):
    class Again(Function):
        @staticmethod
        def forward(ctx, fn, x):
            ctx.fn = fn
            ctx.save_for_backward(x)
            return fn(x)

        @staticmethod
        def backward(ctx, g):
            with torch.enable_grad():
                x = ctx.saved_tensors[0].detach().requires_grad_()
                y = ctx.fn(x)
            return None, torch.autograd.grad(y, x, g)[0]

    x = leaf(3)
    c(lambda x: Again.apply(lambda h: h.sin() * 2, x * 3).sum())(x).backward()
    return x


@scenario
def instances(c):
    """Deprecated, and still in use."""
    class Scaled(Twice):
        def __init__(self, factor):
            super().__init__()
            self.factor = factor

        def run(self, x):
            return self.apply(x, 2) * self.factor

    return derivatives(c(lambda x: Scaled(3).run(x) + Twice().apply(x, 1)), leaf(4))
