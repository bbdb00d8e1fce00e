"""torch.distributions in one graph: lazy properties, constraints, samples, densities, divergences."""

import pytest
import torch
from torch import distributions as D

import framesmith
from tests.capture.agree import agree, check, one_graph
from tests.programs import Programs


@pytest.fixture(autouse=True)
def validated():
    """Arguments are validated, as PyTorch begins: torch.compile turns that off for the rest of the process."""
    before = D.Distribution._validate_args
    D.Distribution.set_default_validate_args(True)
    yield
    D.Distribution.set_default_validate_args(before)


A, B = torch.tensor([[0.3, -1.2, 0.7], [1.5, 0.1, -0.4]]), torch.tensor([[0.2, 0.4, -0.3], [-1.0, 0.6, 0.5]])
MAKERS = {
    "Normal": lambda a, b: D.Normal(a, b.exp()),
    "Categorical": lambda a, b: D.Categorical(logits=a),
    "Categorical of probs": lambda a, b: D.Categorical(probs=a.softmax(-1)),
    "Bernoulli": lambda a, b: D.Bernoulli(logits=a),
    "Bernoulli of probs": lambda a, b: D.Bernoulli(probs=a.sigmoid()),
    "OneHotCategorical": lambda a, b: D.OneHotCategorical(logits=a),
    "Uniform": lambda a, b: D.Uniform(a, a + b.exp()),
    "Laplace": lambda a, b: D.Laplace(a, b.exp()),
    "Exponential": lambda a, b: D.Exponential(b.exp()),
    "Gamma": lambda a, b: D.Gamma(a.exp(), b.exp()),
    "Beta": lambda a, b: D.Beta(a.exp(), b.exp()),
    "Dirichlet": lambda a, b: D.Dirichlet(a.exp()),
    "Independent": lambda a, b: D.Independent(D.Normal(a, b.exp()), 1),
    "MultivariateNormal": lambda a, b: D.MultivariateNormal(a, torch.eye(3)),
    "Tanh of Normal": lambda a, b: D.TransformedDistribution(D.Normal(a, b.exp()), [D.TanhTransform(cache_size=1)]),
    "Mixture": lambda a, b: D.MixtureSameFamily(D.Categorical(logits=a), D.Normal(a, b.exp())),
    "Binomial": lambda a, b: D.Binomial(5, logits=a),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_samples_and_their_density(make):
    if make is MAKERS["Tanh of Normal"] and tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13):
        pytest.skip("its transform keeps a weak reference to what the frame alone holds: a break")
    def program(a, b):
        d = make(a, b)
        x = d.sample((2,))
        return x, d.log_prob(x), d.rsample() if d.has_rsample else a + 1

    one_graph(program, A.clone().requires_grad_(), B.clone().requires_grad_())


@pytest.mark.parametrize("fn", [
    lambda a, b: [D.Normal(a, b.exp()).entropy(), D.Normal(a, b.exp()).cdf(b), D.Normal(0.0, 1.0).log_prob(a + b)],
    lambda a, b: [D.Categorical(logits=a).entropy(), D.Categorical(logits=a).probs,
                  D.Categorical(probs=b.exp()).logits],
    lambda a, b: [D.Bernoulli(logits=a).entropy(), D.Bernoulli(logits=b).mean, D.Bernoulli(logits=a).variance],
    lambda a, b: D.kl_divergence(D.Normal(a, b.exp()), D.Normal(b, 1.0)),
    lambda a, b: D.kl_divergence(D.Categorical(logits=a), D.Categorical(logits=b)),
    lambda a, b: D.kl_divergence(D.Bernoulli(logits=a), D.Bernoulli(logits=b)),
    lambda a, b: D.Normal(a, b.exp(), validate_args=False).log_prob(b),
    lambda a, b: D.Categorical(logits=a).log_prob(torch.tensor([0, 2])) + b.sum(),
], ids=range(8))
def test_of_the_parameters(fn):
    one_graph(fn, A.clone().requires_grad_(), B.clone().requires_grad_())


program = Programs(check)


test_same_as_eager = program.test()


@program(A, B)
def policy(a, b):
    d = D.Categorical(logits=a)
    action = d.sample()
    return action, d.log_prob(action), d.entropy().mean(), repr(d), isinstance(d, D.Distribution)


@program(A, -torch.ones(2, 3), raises=ValueError)
def a_parameter_that_is_none(a, b):
    return D.Normal(a, b).sample()


def test_where_a_check_does_not_hold_nothing_was_drawn():
    def program(a, scale):
        noise = torch.rand(3)
        return D.Normal(a, scale).sample() + noise

    def caught(fn, scale):
        with pytest.raises(ValueError, match="to satisfy the constraint"):
            fn(A, scale)
        return torch.rand(1)

    for backend in ("eager", "native"):
        fast = framesmith.compile(program, fullgraph=True, backend=backend)
        fast(A, torch.ones(2, 3))
        torch.manual_seed(3)
        want = caught(program, -torch.ones(2, 3))
        torch.manual_seed(3)
        assert torch.equal(caught(fast, -torch.ones(2, 3)), want)


def test_where_a_check_does_not_hold_no_seed_was_set():
    def program(a, scale):
        if not bool((scale > 0).all()):
            raise ValueError
        torch.manual_seed(5)
        return a + 1

    fast = framesmith.compile(program, fullgraph=True, backend="eager")
    fast(A, torch.ones(3))
    torch.manual_seed(3)
    with pytest.raises(ValueError):
        fast(A, -torch.ones(3))
    torch_state = torch.get_rng_state()
    torch.manual_seed(3)
    assert torch.equal(torch_state, torch.get_rng_state())


def test_a_property_of_a_class_of_its_own():
    class Named(property):
        pass

    class Box:
        size = Named(lambda self: self.n * 2, lambda self, n: setattr(self, "n", n))

    def program(x):
        box = Box()
        box.size = 3
        return x * box.size

    agree(program, A)
