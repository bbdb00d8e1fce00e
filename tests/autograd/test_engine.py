"""What the autograd engine gives its nodes it gives compiled ones: hooks, accumulation, partial and repeated backward,
errors."""

from __future__ import annotations

import contextlib
import copy
import io
import pickle
import threading
import warnings

import pytest
import torch
from torch import nn

import framesmith
from tests.autograd.driver import agree, error_of
from tests.programs import Programs

scenario = Programs(agree)
X = torch.linspace(-1, 1, 12).reshape(3, 4)


def leaf(*shape):
    return torch.randn(shape, requires_grad=True)


def net():
    return nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.GELU(), nn.Linear(5, 2))


@scenario
def hooks_on_tensors(c):
    x, seen = leaf(3, 4), []
    x.register_hook(lambda g: seen.append(g.clone()))
    h = x * 2
    h.register_hook(lambda g: g * 3)
    y = c(lambda h: (h * h).sin())(h)
    y.register_hook(lambda g: seen.append(g.clone()))
    y.retain_grad()
    y.sum().backward()
    return x, y.grad, seen


@scenario
def a_list_of_tensors_of_which_one_is_empty_and_requires_grad(c):
    x = leaf(3, 0)
    y = c(lambda a, b: torch.cat([a, b.flatten(0, 1)], -1))(torch.ones(3, 1, 0), x * 1)
    return y, torch.autograd.grad(y.sum(), x)


@scenario
def zeros_of_a_step_stay_zeros_times_infinity(c):
    x = leaf(1)
    return [torch.autograd.grad(c(fn)(x), x) for fn in (lambda x: x.var(-1).sgn(), lambda x: (x.std(-1) / 2).floor())]


@scenario
def hooks_on_parameters(c):
    m, seen = net(), []
    for p in m.parameters():
        p.register_hook(lambda g: seen.append(g.shape) or g * 0.5)
        p.register_post_accumulate_grad_hook(lambda p: seen.append((tuple(p.grad.shape), p.grad.clone())))
    c(m)(X).sum().backward()
    return m, sorted(map(str, seen))


@scenario
def an_optimiser_in_the_hook(c):
    m = net()
    opts = {p: torch.optim.SGD([p], lr=0.1, momentum=0.9) for p in m.parameters()}

    def step(p):
        opts[p].step()
        opts[p].zero_grad()

    for p in m.parameters():
        p.register_post_accumulate_grad_hook(step)
    f = c(m)
    for _ in range(3):
        f(X).square().sum().backward()
    return m


@scenario(breaks=True)
def hooks_on_modules(c):
    m, seen = net(), []
    m[0].register_forward_pre_hook(lambda mod, args: (args[0] * 2,))
    m[1].register_forward_hook(lambda mod, args, out: out + 1)
    m[2].register_full_backward_hook(lambda mod, gin, gout: seen.append((gin[0].clone(), gout[0].clone())))
    m[3].register_full_backward_pre_hook(lambda mod, gout: (gout[0] * 2,))
    m.register_full_backward_hook(lambda mod, gin, gout: seen.append(gout[0].clone()))
    f = c(m)
    for _ in range(2):
        f(X).sum().backward()
    return m, seen


@scenario
def retain_graph(c):
    m = net()
    y = c(m)(X).sum()
    y.backward(retain_graph=True)
    y.backward()
    return m, error_of(y.backward)


@scenario
def twice_without_retain_graph(c):
    x, w = leaf(3, 4), leaf(4)
    y = c(lambda x, w: (x * w).sin().sum())(x, w)
    y.backward()
    return x, w, error_of(y.backward)


@scenario
def an_output_that_is_not_used(c):
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 2), nn.Linear(4, 2)

        def forward(self, x):
            return self.a(x).tanh(), self.b(x).sigmoid()

    m = M()
    f = c(m)
    f(X)[0].sum().backward()
    first = [p.grad is None for p in m.parameters()]
    f(X)[1].sum().backward()
    a, b = f(X)
    (a * b).sum().backward()
    return m, first


@scenario
def one_branch_steps_before_the_other(c):
    a, b = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1)), nn.Sequential(nn.Linear(4, 3), nn.Tanh(),
                                                                                     nn.Linear(3, 1))
    opt = torch.optim.SGD(a.parameters(), lr=0.1)
    f = c(lambda x: (a(x), b(x)))
    for _ in range(2):
        y, z = f(X)
        y.sum().backward(retain_graph=True)
        opt.step()
        z.sum().backward()
    return a, b


@scenario
def gradients_of_chosen_inputs(c):
    m = net()
    f = c(m)
    x = leaf(3, 4)
    f(x).sum().backward(inputs=[x])
    f(x).sum().backward(inputs=[m[0].weight])
    return m, x


@scenario
def grad_of_some(c):
    x, w, v = leaf(3, 4), leaf(4), leaf(3)
    y, z = c(lambda x, w, v: ((x * w).sum(1), v * 2))(x, w, v)
    g = torch.autograd.grad(y.sum(), [w], retain_graph=True)
    h = torch.autograd.grad((y * z).sum(), [x, v])
    u = torch.autograd.grad(c(lambda x: x.exp())(x).sum(), [x, v], allow_unused=True)
    return g, h, u, error_of(lambda: torch.autograd.grad(c(lambda x: x * 2)(x).sum(), [v])), x, w, v


@scenario
def accumulation(c):
    m = net()
    f = c(m)
    for _ in range(3):
        f(X).sum().backward()
    kept = [p.grad for p in m.parameters()]
    m.zero_grad(set_to_none=False)
    f(X * 2).sum().backward()
    same = [p.grad is k for p, k in zip(m.parameters(), kept, strict=True)]
    m.zero_grad(set_to_none=True)
    none = [p.grad is None for p in m.parameters()]
    f(X * 3).sum().backward()
    return m, same, none


@scenario
def gradients_are_the_owners_own(c):
    x, w = leaf(3, 4), leaf(3, 4)
    g = torch.ones(3, 4)
    y = c(lambda x, w: x + w)(x, w)
    y.backward(g)
    x.grad.mul_(5)
    g.mul_(7)
    return x, w, g


@scenario
def anomaly_mode(c):
    x = leaf(3, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.autograd.detect_anomaly():
            y = c(lambda x: (x * 2).sqrt().sum())(x.abs() + 1)
            y.backward()
            bad = c(lambda x: (x * 0).sqrt().mul(0).sum())(x)
            return x.grad.clone(), error_of(bad.backward)


@scenario
def hooks_on_what_is_saved(c):
    x, w = leaf(3, 4), leaf(4)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: t):
        y = c(lambda x, w: (x * w).exp().matmul(w).sum())(x, w)
    y.backward()
    return x, w


@scenario
def saved_on_the_cpu(c):
    m = net()
    with torch.autograd.graph.save_on_cpu():
        y = c(m)(X).sum()
    y.backward()
    return m


@scenario
def backward_in_another_thread(c):
    m = net()
    f = c(m)
    for _ in range(2):
        y = f(X).sum()
        t = threading.Thread(target=y.backward)
        t.start()
        t.join()
    return m


@scenario
def forwards_in_threads(c):
    m = net()
    f = c(m)

    def step():
        f(X).sum().backward()

    for _ in range(2):
        threads = [threading.Thread(target=step) for _ in range(3)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    return m


@scenario
def weights_changed_before_the_backward(c):
    m = net()
    y = c(m)(X).sum()
    with torch.no_grad():
        m[3].weight.mul_(2)
    return error_of(y.backward)


@scenario
def weights_that_no_gradient_needs_change(c):
    x, w, b = leaf(3, 4), leaf(4, 4), leaf(4)
    y = c(lambda x, w, b: torch.addmm(b, x, w).relu().sum())(x, w, b)
    with torch.no_grad():
        b.mul_(2)
    y.backward()
    return x, w, b


@scenario
def an_input_changed_before_the_backward(c):
    x, w = torch.randn(3, 4), leaf(4)
    y = c(lambda x, w: (x * w).sum())(x, w)
    x.add_(1)
    return error_of(y.backward)


@scenario(breaks=True)
def a_complex_gradient_of_a_real_number(c):
    """An error of the engine in the backward, not before."""
    x = torch.randn(3, requires_grad=True)
    y = c(lambda x: torch.logaddexp(x, torch.complex(x, x)))(c(lambda x: x.sin())(x))
    return y.detach(), error_of(lambda: y.sum().abs().backward())


@scenario
def gradients_of_and_by_what_is_not_finite(c):
    """Autograd has other formulas for tensors whose data it may look at than for others."""
    inf, nan = float("inf"), float("nan")
    calls = [
        lambda x: x.max(), lambda x: x.view(2, 2).min(), lambda x: x.median(), lambda x: x.nanmedian(),
        lambda x: x.prod(), lambda x: x.view(2, 2).mT.prod(), lambda x: x.view(2, 2).prod(0), lambda x: x.prod(0, True),
        lambda x: x[1].prod(),
    ]  # fmt: skip
    if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13):  # before, that of cumprod goes by data, too
        calls.append(lambda x: x.cumprod(0))
    each = ([2.0, 1, 2, 3], [inf, 2, 0, 3], [inf, 2, 1, 3], [nan, 2, nan, 3], [0.0, 0, nan, 2], [0.0, 0, 1, 2])
    found = []
    for call in calls:
        f = c(call)
        for values in each:
            for tangent in (1.0, inf, nan):
                x = torch.tensor(values, requires_grad=True)
                y = f(x)
                y.backward(torch.full_like(y, tangent))
                found += [y, x.grad]
    return found


@scenario
def a_saved_output_is_written(c):
    x = leaf(3, 4)
    y = c(lambda x: x.exp().sigmoid())(x)
    y.mul_(2)
    return error_of(lambda: y.sum().backward())


@scenario(breaks=None)
def a_saved_intermediate_is_written(c):
    x = leaf(3, 4)

    def fn(x):
        y = x.exp()
        z = y[0]
        y.mul_(2)
        return y + z

    c(lambda x: x * 2)(x)
    return error_of(lambda: c(fn)(x).sum().backward())


@scenario(breaks=None)
def a_saved_input_is_written_inside(c):
    x, w = torch.randn(3, 4), leaf(4)

    def fn(x, w):
        y = (x * w).sum()
        x.add_(1)
        return y

    c(lambda x: x * 2)(w)
    return error_of(lambda: c(fn)(x, w).backward()), x


@scenario
def gradients_of_wrong_shape_or_dtype(c):
    x = leaf(3, 4)
    f = c(lambda x: x.sin() * 2)
    errors = [error_of(lambda: f(x).backward(torch.ones(2, 4))), error_of(lambda: f(x).backward()),
              error_of(lambda: f(x).backward(torch.ones(3, 4, dtype=torch.int64))),
              error_of(lambda: f(x).backward(torch.ones(3, 4, dtype=torch.float64)))]
    return errors, x


@scenario
def gradients_in_any_layout(c):
    x = leaf(3, 4)
    f = c(lambda x: x.sin() * 2)
    f(x).backward(torch.randn(4, 3).t())
    f(x).backward(torch.ones(()).expand(3, 4))
    f(x).backward(torch.randn(6, 8)[::2, ::2])
    return x


@scenario
def a_gradient_is_a_zero_tensor(c):
    x = leaf(3)
    y, z = c(lambda x: (x * 2, x.sin()))(x)
    (torch.zeros(3) * y).sum().backward(retain_graph=True)
    z.sum().backward()
    return x


@scenario
def deep_copies_after_a_backward(c):
    f = c(net())
    f(X).sum().backward()
    g = copy.deepcopy(f)
    g(X).square().sum().backward()
    f(X).sum().backward()
    return [*f.parameters()], [*g.parameters()]


@scenario
def a_state_dict_after_a_backward(c):
    m = net()
    f = c(m)
    f(X).sum().backward()
    file = io.BytesIO()
    torch.save(f.state_dict(), file)
    file.seek(0)
    other = net()
    other.load_state_dict(torch.load(file))
    c(other)(X).sum().backward()
    return m, other


@scenario
def a_training_loop(c):
    m = net()
    f = c(m)
    opt = torch.optim.Adam(m.parameters(), lr=0.01)
    losses = []
    for k in range(5):
        opt.zero_grad()
        loss = (f(X * (k + 1)) - 1).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        opt.step()
        losses.append(loss.item())
    return m, [round(v, 4) for v in losses]


@scenario
def an_evaluation_between(c):
    m = net()
    f = c(m)
    out = []
    for _ in range(2):
        f(X).sum().backward()
        with torch.no_grad():
            out.append(f(X))
        with torch.inference_mode():
            out.append(f(X).sum().item())
    return m, out


@scenario
def the_node_of_an_output(c):
    x = leaf(3)
    y, z = c(lambda x: (x * 2, x + 1))(x)
    with contextlib.suppress(AttributeError):
        y.grad_fn.metadata["key"] = 1
    return y.grad_fn is not None, y.is_leaf, z.requires_grad, len(y.grad_fn.next_functions) > 0


@scenario
def an_output_that_dies(c):
    m = net()
    f = c(m)
    f(X)
    y = f(X)
    del y
    f(X).sum().backward()
    return m


@scenario
def the_gradient_edge(c):
    x = leaf(3)
    h = x * 2
    y = c(lambda h: h.sin())(h)
    return torch.autograd.grad(y.sum(), torch.autograd.graph.get_gradient_edge(h))


@scenario
def a_codebook_loss(c):
    def loss(book, x):
        return (book[torch.cdist(x, book).argmin(-1)] * x.detach()).sum()

    f, book, x = c(loss), leaf(6, 4), leaf(5, 4)
    f(book, x).backward()
    return book, x


@scenario
def hooks_in_turn(c):
    m, seen = nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, 3)), []
    for name, p in m.named_parameters():
        p.register_hook(lambda g, name=name: seen.append(name))
        p.register_post_accumulate_grad_hook(lambda p, name=name: seen.append((name, p.grad.norm())))
    f, x = c(m), leaf(3, 4)
    y = x * 2
    y.register_hook(lambda g: seen.append("y"))
    for _ in range(2):
        (f(y) + f(y.sin())).sum().backward(retain_graph=True)
    return seen, m, x


@scenario
def gradients_of_expanded_results(c):
    x, z = leaf(2, 3, 4), torch.randn(3, 4, dtype=torch.complex64, requires_grad=True)
    c(lambda x: x.amin(-1).unsqueeze(0).expand(3, -1, -1))(x).square().sum().backward()
    c(lambda z: (z.sum(0), z.mean(1, keepdim=True)))(z)[0].abs().sum().backward()
    return x, torch.view_as_real(z.grad)


@scenario
def a_view_of_an_expanded_leaf(c):
    x, y = torch.randn(1, 1).expand(1, 4).detach().requires_grad_(), leaf(3)
    v, w = c(lambda x, y: (x.expand(2, *x.shape), y * 2))(x, y)
    (v * torch.arange(8.0).view(2, 1, 4)).sum().backward()
    return x.grad, v, w


@scenario
def equal_results_one_after_the_other(c):
    x, classes = leaf(3, 4), torch.tensor([0, 2, 3])
    y = c(lambda x: (nn.functional.cross_entropy(x, classes), nn.functional.cross_entropy(x, classes), x.exp()))(x)
    return [torch.autograd.grad(y[k], x, torch.full_like(y[k], k + 2.0), retain_graph=k < 2) for k in (1, 0, 2)]


@scenario(breaks=True)
def sparse_gradients(c):
    """A table that is used in one other way has a gradient that is a sum."""
    index, found = torch.tensor([0, 3, 3]), []
    for use in (lambda x, t: x * 2, nn.functional.linear, lambda x, t: x * t[:3],
                lambda x, t: x * nn.functional.embedding(index + 1, t, sparse=True)):
        table = torch.arange(20.0).view(5, 4).sin().requires_grad_()
        y = c(lambda t, use=use: use(nn.functional.embedding(index, t, max_norm=2.0, sparse=True), t))(table)
        y.sum().backward()
        found += [table.grad.is_sparse, table.grad.to_dense(), table.detach()]
    table = torch.ones(3, 2, requires_grad=True)
    c(lambda t: nn.functional.embedding(index[:0], t, sparse=True) * 2)(table).sum().backward()
    found.append(table.grad.is_sparse)
    return found


test_engine = scenario.test()


def test_a_pickle_after_a_backward():
    with torch.enable_grad():
        f = framesmith.compile(net(), backend="eager")
        f(X).sum().backward()
        g = pickle.loads(pickle.dumps(f))
        g(X).sum().backward()
    for p, q in zip(g.parameters(), f.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)


def test_a_result_of_a_result_keeps_its_gradient_inside():
    def fn(x):
        y = x.sin()
        return y, y.exp()

    x = leaf(3)
    y, z = framesmith.compile(fn, backend="eager", fullgraph=True)(x)
    y.retain_grad()
    with pytest.raises(RuntimeError, match="from other results"):
        (y + z).sum().backward()


def test_a_gradient_with_respect_to_a_result_is_whole_or_an_error():
    """The engine hands the gradient of a result to who asks for it before the backward runs, which would add to it what
    comes from later results: without the check it is None, or misses that."""

    def fn(x, b):
        y = x.sin()
        b[1] = y[0]
        return y, y.exp() + b.sum()

    compiled = framesmith.compile(fn, backend="eager", fullgraph=True)
    for of, to in ((1, 0), (1, 2), (0, 2), (0, 0), (1, 3)):
        for both in (False, True):
            found = []
            for call in (fn, compiled):
                x, b = torch.arange(3.0, requires_grad=True), torch.ones(3)
                values = (*call(x, b), b, x)
                loss = values[of].sum() + (values[to] * 2).sum() * both
                try:
                    found.append(torch.autograd.grad(loss, values[to], allow_unused=True))
                except RuntimeError as e:
                    found.append(e)
            if to == 3 or of == to or (of, to) == (0, 2):
                torch.testing.assert_close(*found)
            else:
                assert "gradient with respect to a result" in str(found[1])
