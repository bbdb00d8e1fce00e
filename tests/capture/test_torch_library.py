"""What is built on tensors: autograd.Function, custom operators, transforms, overrides, NumPy, TorchScript, nn.utils,
optimisers, ..."""

from __future__ import annotations

import functools
import math

import numpy as np
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn
from torch.nn.utils import parametrize

import framesmith
from tests.capture.agree import Fresh, check
from tests.programs import Programs

X = torch.linspace(-1, 1, 12).reshape(3, 4)
program = Programs(check)


test_same_as_eager = program.test()


# --- autograd ---------------------------------------------------------------------------------------------------------
class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k):
        ctx.save_for_backward(x)
        ctx.k = k
        ctx.mark_non_differentiable(x)
        ctx.set_materialize_grads(False)
        return x * x * k

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 2 * x * ctx.k, None


class Split(torch.autograd.Function):
    @staticmethod
    def forward(x, k):
        return x * k, x + k

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.k = inputs[1]

    @staticmethod
    def backward(ctx, a, b):
        return a * ctx.k + b, None


class Dirty(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        x.add_(1)
        return x


class Needs(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2 if ctx.needs_input_grad[0] else x * 3


@program(X)
def functions(x):
    return Square.apply(x, 3), Split.apply(x, 2)


@program(X, grad=True)
def functions_in_grad_mode(x):
    f = Square.apply
    return f(x, 3), Split.apply(x, 2)


@program(X.clone())
def function_that_writes(x):
    y = x + 1
    return Dirty.apply(y)


class Same(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x


@program(X)
def function_that_gives_back_its_argument(x):
    y = Same.apply(x)
    return y, y is x


@program(X)
def function_that_asks(x):
    return Needs.apply(x)


def made(k):
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x * k

        @staticmethod
        def backward(ctx, g):
            return g * 2 * ctx.saved_tensors[0] * k

    return Scaled


@program(X.clone().requires_grad_(), grad=True, calls=3)
def function_made_in_the_call(x):
    return made(3).apply(x)


def test_functions_made_in_calls_have_numbers() -> None:
    fn = framesmith.compile(lambda: made(2), fullgraph=True)
    a, b = (fn()._backward_cls for _ in range(2))
    assert a.__name__ == "ScaledBackward" and a._autograd_function_id != b._autograd_function_id


@program(torch.randn(3, requires_grad=True), grad=True, breaks=True)
def gradients(w):
    y = (w * w).sum()
    (g,) = torch.autograd.grad(y, w)
    return g


@program(torch.randn(3), breaks=True)
def gradients_inside(x):
    with torch.enable_grad():
        w = x.clone().requires_grad_()
        (w * w).sum().backward()
    return w.grad, x + 1


def block(x, k=2):
    return F.gelu(x) * k


@program(X)
def checkpoints(x):
    return (torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False),
            torch.utils.checkpoint.checkpoint(block, x, 3,
        use_reentrant=True), torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False, k=5))


@program(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), X)
def checkpointed_sequence(m, x):
    return torch.utils.checkpoint.checkpoint_sequential(m, 2, x, use_reentrant=False)


# --- custom operators -------------------------------------------------------------------------------------------------
@torch.library.custom_op("framesmith_test::scaled", mutates_args=())
def scaled(x: torch.Tensor, k: float) -> torch.Tensor:
    return torch.from_numpy(x.numpy() * k)


@scaled.register_fake
def _(x, k):
    return torch.empty_like(x)


@torch.library.custom_op("framesmith_test::bump", mutates_args={"x"})
def bump(x: torch.Tensor, k: float) -> None:
    x.numpy()[...] += k


@bump.register_fake
def _(x, k):
    return None


@torch.library.custom_op("framesmith_test::bump_and_tell", mutates_args={"x"})
def bump_and_tell(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x.sum()


@bump_and_tell.register_fake
def _(x):
    return x.new_empty(())


@torch.library.custom_op("framesmith_test::fakeless", mutates_args=())
def fakeless(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.sort(x.numpy()))


@torch.library.custom_op("framesmith_test::several", mutates_args=())
def several(xs: list[torch.Tensor], flag: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    return xs[0] + xs[1], xs[0].sum(0)


@several.register_fake
def _(xs, flag=True):
    return torch.empty_like(xs[0]), xs[0].new_empty(xs[0].shape[1:])


LIB = torch.library.Library("framesmith_lib", "FRAGMENT")
LIB.define("twice(Tensor x) -> Tensor")
LIB.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
LIB.define("composed(Tensor x, int k=3) -> Tensor")
LIB.impl("composed", lambda x, k=3: x.relu() * k, "CompositeImplicitAutograd")
LIB.define("faked(Tensor x) -> Tensor")
LIB.impl("faked", lambda x: torch.from_numpy(x.numpy() + 1), "CPU")
torch.library.register_fake("framesmith_lib::faked", lambda x: torch.empty_like(x))
LIB.define("fakeless(Tensor x) -> Tensor")
LIB.impl("fakeless", lambda x: torch.from_numpy(x.numpy() + 1), "CPU")


@program(X)
def custom_operator(x):
    return scaled(x, 2.0) + 1, torch.ops.framesmith_test.scaled(x + 1, 3.0), torch.ops.framesmith_test.scaled.default(
        x, 0.5)


@program(X.clone())
def custom_operator_that_writes(x):
    y = x * 2
    bump(y, 1.0)
    bump(x, 2.0)
    return y, x


@program(X.clone())
def custom_operator_that_writes_a_view(x):
    y = x * 2
    s = bump_and_tell(y[0])
    return y, s + 1


@program(X)
def custom_operator_of_lists(x):
    a, b = several([x, x + 1])
    return a, b * 2


@program(X, breaks=True)
def custom_operator_without_fake(x):
    return fakeless(x) + 1


@program(X)
def library_operators(x):
    return torch.ops.framesmith_lib.twice(x), torch.ops.framesmith_lib.composed(x, 2), torch.ops.framesmith_lib.faked(
        x) + 1


@program(X, breaks=True)
def library_operator_without_fake(x):
    return torch.ops.framesmith_lib.fakeless(x) + 1


@program(X)
def aten_operators(x):
    return (torch.ops.aten.add(x, 1), torch.ops.aten.relu.default(x), torch.ops.aten.sum.dim_IntList(x, [0]),
            torch._C._nn.gelu(x),
        torch._VF.tanh(x) if hasattr(torch._VF, "tanh") else 0)


# --- transforms -------------------------------------------------------------------------------------------------------
def loss(w, x):
    return (w * x).sin().sum()


@program(X)
def mapped(x):
    return torch.vmap(lambda r: r * r.sum())(x + 1), torch.func.vmap(torch.dot, in_dims=(0, None))(x, x[0])


@program(X)
def differentiated(x):
    y = x + 1
    return (torch.func.grad(loss)(x[0], y[0]), torch.func.jvp(torch.sin, (x,), (y,)), torch.func.vjp(torch.sin, x)[0],
        torch.func.jacrev(torch.sin)(x[0]), torch.func.hessian(loss)(x[0], x[1]))


@program(nn.Linear(4, 2), X)
def called_functionally(m, x):
    return torch.func.functional_call(m, {"weight": torch.ones(2, 4)}, (x,))


# --- overrides --------------------------------------------------------------------------------------------------------
class Tagged(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})


class Unit:
    """Duck-typed: no tensor itself."""

    def __init__(self, data, unit):
        self.data = data
        self.unit = unit

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        unit = next(a.unit for a in args if isinstance(a, Unit))
        return Unit(func(*[a.data if isinstance(a, Unit) else a for a in args], **(kwargs or {})), unit)


@program(X)
def duck_typed(x):
    u = Unit(x, "m")
    v = torch.add(u, 1)
    return v.data, v.unit, torch.sum(v).data


@program(Fresh(lambda: X.clone().as_subclass(Tagged)))
def subclass_argument(x):
    return x + 1, type(x * 2)


@program(X)
def subclass_in_the_frame(x):
    return (x + 1).as_subclass(Tagged), x * 2


class Logged(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {})) + 1 if func is torch.sin else func(*args, **(kwargs or {}))


@program(X, breaks=True)
def function_mode_inside(x):
    with Logged():
        y = torch.sin(x)
    return y, torch.sin(x)


@program(X)
def asked_for_overrides(x):
    if torch.overrides.has_torch_function((x,)) or torch.overrides.has_torch_function_unary(x):
        return x
    return x + 1, torch.overrides.is_tensor_like(x)


# --- NumPy ------------------------------------------------------------------------------------------------------------
@program(X)
def through_numpy(x):
    a = x.numpy() * 2
    return torch.from_numpy(np.sin(a)), x + 1


@program(np.arange(6.0).reshape(2, 3))
def of_arrays(a):
    return np.sin(a) + a.sum(), a.T @ a


@program(X)
def numpy_numbers(x):
    k = np.float32(2.0)
    n = np.int64(3)
    return x * float(k), x + int(n), np.sqrt(4.0), x * np.pi, math.sqrt(2), x * k


@program(X)
def constant_arrays(x):
    w = torch.tensor(np.array([1.0, 2.0, 3.0, 4.0]), dtype=torch.float32)
    return x * w, x + torch.from_numpy(np.ones(4, dtype=np.float32))


# --- TorchScript ------------------------------------------------------------------------------------------------------
@torch.jit.script
def scripted(x: torch.Tensor, k: int) -> torch.Tensor:
    if k > 1:
        return x * k
    return x + k


@torch.jit.ignore
def ignored(x):
    return x + 1


@torch.jit.unused
def unused(x):
    return x + 2


@torch.jit.export
def exported(x):
    return x + 3


@program(X)
def marked_for_script(x):
    if torch.jit.is_scripting():
        return x
    return ignored(x), unused(x), exported(x), torch.jit.annotate(int, 3), torch.jit.isinstance(x, torch.Tensor)


@program(X)
def script_called(x):
    return scripted(x, 2), scripted(x + 1, 1)


@program(torch.jit.script(nn.Linear(4, 2)), X, breaks=True)
def script_module_called(m, x):
    return m(x + 1)


@program(torch.jit.trace(nn.Linear(4, 2), X), X, breaks=True)
def traced_module_called(m, x):
    return m(x + 1)


# --- nn.utils ---------------------------------------------------------------------------------------------------------
class Doubled(nn.Module):
    def forward(self, w):
        return w * 2


def parametrized():
    m = nn.Linear(4, 3)
    parametrize.register_parametrization(m, "weight", Doubled())
    return m


@program(parametrized(), X)
def parametrized_module(m, x):
    return m(x), m.weight


@program(parametrized(), X)
def cached_parametrization(m, x):
    with parametrize.cached():
        return m(x) + m(x)


@program(torch.nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), X)
def weight_norm(m, x):
    return m(x)


@program(Fresh(lambda: torch.nn.utils.weight_norm(nn.Linear(4, 3))), X)
def weight_norm_by_hook(m, x):
    return m(x)


@program(torch.nn.utils.spectral_norm(nn.Linear(4, 3)).eval(), X)
def spectral_norm_by_hook(m, x):
    return m(x)


@program(torch.nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)).eval(), X)
def spectral_norm(m, x):
    return m(x)


@program(torch.nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)).train(), X)
def spectral_norm_training(m, x):
    return m(x), m.parametrizations.weight[0]._u


@program(torch.nn.utils.parametrizations.orthogonal(nn.Linear(3, 3)), X[:, :3])
def orthogonal(m, x):
    return m(x)


@program(nn.Linear(4, 3), X)
def vectors_of_parameters(m, x):
    return torch.nn.utils.parameters_to_vector(m.parameters()), m(x)


@program(nn.Linear(4, 3))
def clip_of_gradients(m):
    for p in m.parameters():
        p.grad = torch.ones_like(p)
    return torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)


@program([torch.ones(3, 2), torch.ones(2, 2)], nn.GRU(2, 3, batch_first=True), breaks=True)
def packed_sequences(xs, m):
    padded = torch.nn.utils.rnn.pad_sequence(xs, batch_first=True)
    packed = torch.nn.utils.rnn.pack_padded_sequence(padded, torch.tensor([3, 2]), batch_first=True)
    out, h = m(packed)
    return torch.nn.utils.rnn.pad_packed_sequence(out, batch_first=True), h


# --- optimisers -------------------------------------------------------------------------------------------------------
def optimised(cls, **options):
    m = nn.Linear(2, 2)
    for p in m.parameters():
        p.grad = torch.ones_like(p)
    return m, cls(m.parameters(), lr=0.1, **options)


def step(m, o):
    o.step()
    return m.weight * 1


def step_and_zero(m, o):
    o.step()
    o.zero_grad()
    return m.weight * 1, m.weight.grad is None


for _cls, _options in ((torch.optim.SGD, {}), (torch.optim.SGD, {"momentum": 0.9}), (torch.optim.Adam, {}),
                       (torch.optim.AdamW,
    {"foreach": False}), (torch.optim.RMSprop, {}),
                       (torch.optim.Adagrad, {})):
    program(*optimised(_cls, **_options), calls=3)(step)
    program(*optimised(_cls, **_options), calls=3)(step_and_zero)


# --- distributions ----------------------------------------------------------------------------------------------------
@program(X)
def distributions(x):
    d = torch.distributions.Normal(x, x.abs() + 0.5, validate_args=False)
    c = torch.distributions.Categorical(logits=x, validate_args=False)
    b = torch.distributions.Bernoulli(logits=x, validate_args=False)
    return (d.log_prob(x + 1), d.mean, d.entropy(), d.sample(), d.rsample((2,)), d.cdf(x),
            c.log_prob(torch.tensor([0, 1, 2])),
        c.entropy(), c.sample(), c.probs, b.mean, b.log_prob(torch.ones(4)), torch.distributions.kl_divergence(d,
        torch.distributions.Normal(0.0, 1.0)))


@program(X)
def validated_distribution(x):
    return torch.distributions.Normal(x, x.abs() + 0.5).log_prob(x + 1)


# --- marks ------------------------------------------------------------------------------------------------------------
@torch.compiler.disable
def disabled(x):
    return x + 1


@torch._dynamo.disable
def disabled_by_dynamo(x):
    return x + 2


@torch.compiler.allow_in_graph
def allowed(x):
    return x + 3


@torch.compiler.assume_constant_result
def constant():
    return 5


@torch.compile
def compiled_by_torch(x):
    return x + 6


@program(X, breaks=True)
def marks(x):
    y = disabled(x)
    torch._dynamo.graph_break()
    return disabled_by_dynamo(y) * 2


@program(X)
def marks_without_a_break(x):
    y = x + 1
    torch._dynamo.mark_dynamic(y, 0)
    torch._dynamo.mark_static(y, 1)
    torch._dynamo.maybe_mark_dynamic(y, 0)
    x = y * 2
    if torch._dynamo.is_compiling() != torch.compiler.is_compiling():
        return x
    torch.compiler.cudagraph_mark_step_begin()
    return allowed(x), constant() + x


@program(X, breaks=True)
def compiled_inside(x):
    return compiled_by_torch(x + 1)


# --- cached functions -------------------------------------------------------------------------------------------------
@functools.lru_cache(maxsize=4)
def doubled(x, by=2):
    return x * by


@functools.lru_cache(maxsize=4)
def table(sizes):
    return torch.ones(sizes)


@program(X, breaks=True)
def cached_by_a_tensor(x):
    y = x + 1
    first, again = doubled(x), doubled(x)
    return first is again, doubled(y) is doubled(y), doubled(y, 3) * 2, doubled.cache_info().hits >= 2


@program(X)
def cached_by_a_tuple(x):
    return table((3, 4)) + x, table((3, 4)) is table((3, 4))
