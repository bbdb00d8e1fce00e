"""State of modules that forward reads, writes or makes: buffers, attributes, parameters, submodules."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from tests.capture.scenarios import check
from tests.programs import Programs

suite = Programs(check)
X = torch.linspace(-1, 1, 8).reshape(2, 4)


def state(m: nn.Module) -> dict[str, Any]:
    return {k: v.clone() for k, v in m.state_dict().items()}


@suite
def batch_norm_in_both_modes(c):
    m = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.BatchNorm1d(4, momentum=0.5), nn.Dropout(0.0))
    run = c(m)
    out = [run(X), state(m), run(X), state(m)]
    m.eval()
    out += [run(X), run(X)]
    m.train()
    out += [run(X), state(m)]
    m[1].eval()
    out += [run(X), state(m), m[1].num_batches_tracked.item()]
    return out


@suite(whole=False)
def batch_norm_with_cumulative_statistics(c):
    m = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=None))
    run = c(m)
    out = [run(X), run(X * 2), state(m)]
    return out, run.eval()(X)


@suite(graphs=1)
def batch_norm_twice_and_without_statistics(c):
    norm = nn.BatchNorm2d(3)
    m = nn.Sequential(norm, nn.Conv2d(3, 3, 1), norm, nn.BatchNorm2d(3, track_running_stats=False),
                      nn.InstanceNorm2d(3, affine=True))
    x = torch.linspace(-1, 1, 48).reshape(1, 3, 4, 4)
    run = c(m)
    return run(x), run(x), state(m)


@suite(graphs=1)
def buffers_written_in_place(c):
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("n", torch.zeros((), dtype=torch.long))
            self.register_buffer("mean", torch.zeros(4))
            self.register_buffer("table", torch.zeros(3, 4), persistent=False)

        def forward(self, x):
            self.n += 1
            self.n.add_(1)
            self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
            self.table[1] = x[0]
            self.table[2].copy_(x[1])
            return x - self.mean, self.n * 2

    m = Counts()
    run = c(m)
    before = m.mean
    out = [run(X), run(X + 1), run(X)]
    return out, state(m), m.table, before is m.mean, m.n


@suite
def buffers_replaced(c):
    class Replaces(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("n", torch.zeros(()))
            self.register_buffer("late", None)

        def forward(self, x):
            self.n = self.n + 1
            if self.late is None:
                self.late = x * 0
            self.late = self.late + x
            return x * self.n + self.late

    m = Replaces()
    run = c(m)
    old = m.n
    out = [run(X) for _ in range(3)]
    return out, state(m), old, m.late, sorted(m._buffers), "n" in m.__dict__


@suite
def buffers_and_parameters_registered_in_forward(c):
    class Registers(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = None

        def forward(self, x):
            if not hasattr(self, "cache"):
                self.register_buffer("cache", x * 2, persistent=False)
            return x + self.cache

    m = Registers()
    run = c(m)
    return run(X), run(X + 1), state(m), [n for n, _ in m.named_buffers()], m.cache


@suite
def parameters_made_in_forward(c):
    class Makes(nn.Module):
        def forward(self, x):
            if not hasattr(self, "w"):
                self.w = nn.Parameter(torch.full((4,), 2.0))
            return x * self.w

    m = Makes()
    run = c(m)
    return run(X), run(X), [n for n, _ in m.named_parameters()], type(m.w) is nn.Parameter, m.w.requires_grad


@suite
def parameter_registered_in_forward(c):
    class Makes(nn.Module):
        def forward(self, x):
            if "w" not in self._parameters:
                self.register_parameter("w", nn.Parameter(x.sum(0)))
            return x * self.w

    m = Makes()
    run = c(m)
    return run(X), run(X + 1), [n for n, _ in m.named_parameters()]


@suite
def attributes_of_all_kinds(c):
    class Keeps(nn.Module):
        def __init__(self):
            super().__init__()
            self.count = 0
            self.log = []
            self.seen = {}
            self.last = None

        def forward(self, x):
            self.count += 1
            self.log.append(self.count)
            self.seen[x.shape[0]] = x
            y = x if self.last is None else x + self.last
            self.last = y * 2
            self.pair = (y, self.count)
            return y

    m = Keeps()
    run = c(m)
    out = [run(X), run(X), run(X[:1]), m.last is not None]
    return out, m.count, m.log, m.seen, m.pair, m.last


@suite
def attributes_deleted_and_flags(c):
    class Flags(nn.Module):
        def __init__(self):
            super().__init__()
            self.flag = True
            self.temp = 3

        def forward(self, x):
            if self.flag:
                self.flag = False
                del self.temp
                return x + 1
            return x * 2, hasattr(self, "temp")

    m = Flags()
    run = c(m)
    out = [run(X), run(X)]
    m.flag = True
    m.temp = 1
    return out, run(X), run(X), vars(m).keys() == {*vars(nn.Module()), "flag"}


@suite
def error_half_way_keeps_the_effects(c):
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.n = 0

        def forward(self, x):
            self.n += 1
            if self.n == 2:
                raise RuntimeError(f"call {self.n}")
            return x * self.n

    m = Half()
    run = c(m)
    out = [run(X)]
    try:
        run(X)
    except RuntimeError as e:
        out.append(str(e))
    out.append(run(X))
    return out, m.n


@suite
def modules_made_in_forward(c):
    class Makes(nn.Module):
        def forward(self, x):
            act = nn.ReLU()
            seq = nn.Sequential(act, nn.Tanh(), nn.Dropout(0.5).eval(), nn.Flatten(0), nn.Identity())
            return seq(x), len(seq), nn.Softmax(dim=-1)(x), nn.LayerNorm(4, elementwise_affine=False)(x), nn.MSELoss()(
                x, x * 2)

    return c(Makes())(X)


@suite
def modules_with_parameters_made_in_forward(c):
    class Makes(nn.Module):
        def forward(self, x):
            part = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Conv1d(1, 1, 1))
            for p in part.parameters():
                nn.init.constant_(p, 0.5)
            y = part[1](part[0](x))
            return y, [(n, p.requires_grad, p.is_leaf, type(p).__name__) for n,
                       p in part.named_parameters()], part[0].weight

    run = c(Makes())
    y, names, w = run(X)
    return y, names, w, type(w), w.requires_grad, run(X)


@suite(whole=False)
def modules_made_with_random_weights(c):
    class Makes(nn.Module):
        def forward(self, x):
            return nn.Linear(4, 3)(x)

    run = c(Makes())
    return run(X), run(X)


@suite
def parameters_of_tensors_from_outside(c):
    class Holds(nn.Module):
        def forward(self, x):
            self.w = nn.Parameter(x[0], requires_grad=False)
            self.v = nn.Parameter(x)
            self.w.mul_(2)
            return self.w + x, self.v * 1, self.v.requires_grad, self.w.requires_grad

    m = Holds()
    run = c(m)
    x = X.clone()
    return run(x), x, m.w, m.v, m.v.requires_grad, m.w.requires_grad, m.v.data_ptr() == x.data_ptr()


@suite(whole=False)
def parameters_made_in_grad_mode(c):
    def make(x):
        with torch.no_grad():
            w = nn.Parameter(torch.ones(4))
        with torch.enable_grad():
            y = x * w
        return y.detach(), y.requires_grad, w.requires_grad

    run = c(make)
    with torch.enable_grad():
        return run(X), run(X)


@suite
def module_made_in_forward_and_kept(c):
    class Keeps(nn.Module):
        def __init__(self):
            super().__init__()
            self.act = None

        def forward(self, x):
            if self.act is None:
                self.act = nn.LeakyReLU(0.2)
                self.extra = nn.ModuleDict({"a": nn.Tanh()})
            return self.extra["a"](self.act(x))

    m = Keeps()
    run = c(m)
    return run(X), run(X), [n for n, _ in m.named_modules()], type(m.act), m.act.negative_slope, m.act.training


@suite(whole=False)
def lazy_modules(c):
    m = nn.Sequential(nn.LazyLinear(3), nn.ReLU(), nn.LazyLinear(2), nn.LazyBatchNorm1d())
    run = c(m)
    torch.manual_seed(1)
    out = [run(X), run(X)]
    return out, [type(p).__name__ for p in m], state(m), m[0].in_features


@suite
def train_and_eval_flips(c):
    class Mode(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop = nn.Dropout(1.0)
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x):
            x = self.drop(x) + 1
            if not self.training:
                return self.norm(x), "eval"
            return x, "train"

        def train(self, mode=True):
            super().train(mode)
            self.norm.eval()
            return self

    m = Mode()
    run = c(m)
    out = [run(X)]
    m.eval()
    out.append(run(X))
    run.train()
    out.append(run(X))
    run.eval()
    out.append(run(X))
    return out, m.training, run.training


@suite
def train_flip_inside_forward(c):
    class Flips(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop = nn.Dropout(1.0)

        def forward(self, x):
            was = self.drop.training
            self.drop.eval()
            y = self.drop(x)
            self.drop.train(was)
            return y + self.drop(x)

    m = Flips()
    run = c(m)
    return run(X), run(X), m.drop.training


@suite(whole=False)
def requires_grad_flips(c):
    m = nn.Linear(4, 4)
    run = c(m)
    out = [run(X)]
    m.requires_grad_(False)
    with torch.enable_grad():
        y = run(X)
        out += [y, y.requires_grad]
        m.weight.requires_grad_(True)
        y = run(X)
        out += [y.detach(), y.requires_grad]
        m.weight.requires_grad = False
        y = run(X)
        out += [y, y.requires_grad]
    return out


@suite
def weights_changed_between_calls(c):
    m = nn.Linear(4, 4)
    run = c(m)
    out = [run(X)]
    m.weight.mul_(2)
    out.append(run(X))
    m.weight = nn.Parameter(torch.eye(4))
    out.append(run(X))
    m.bias = None
    out.append(run(X))
    m.weight.data = torch.ones(4, 4)
    out.append(run(X))
    m.to(torch.float64)
    out.append(run(X.double()))
    m.half()
    m.float()
    out.append(run(X))
    nn.init.constant_(m.weight, 0.5)
    out.append(run(X))
    return out


@suite
def module_changes_dtype_and_shape(c):
    m = nn.Conv1d(4, 4, 1)
    run = c(m)
    x = torch.ones(2, 4, 3)
    out = [run(x)]
    m.weight = nn.Parameter(torch.ones(5, 4, 1))
    m.bias = nn.Parameter(torch.ones(5))
    out.append(run(x))
    m.stride = (2,)
    out.append(run(x))
    return out


@dataclass
class Output:
    hidden: torch.Tensor
    all_hidden: list = field(default_factory=list)
    extra: Any = None


class Cache:
    def __init__(self) -> None:
        self.keys: list[torch.Tensor] = []

    def update(self, x):
        self.keys.append(x)
        return torch.cat(self.keys)

    @property
    def length(self):
        return sum(k.shape[0] for k in self.keys)


@suite
def caches_and_outputs_in_plain_objects(c):
    class Cached(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(4, 4)

        def forward(self, x, cache=None):
            cache = Cache() if cache is None else cache
            x = self.lin(x)
            y = cache.update(x)
            return Output(y.sum(0), [x, y], extra=cache)

    run = c(Cached())
    first = run(X)
    second = run(X + 1, first.extra)
    third = run(X, cache=second.extra)
    return [(o.hidden, o.all_hidden, type(o))
            for o in (first, second, third)], third.extra is first.extra, third.extra.length


@suite
def cache_in_the_module(c):
    class Rotary(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = {}
            self.longest = 0

        def forward(self, x):
            n = x.shape[0]
            if n > self.longest:
                self.longest = n
                self.cos = torch.arange(n).float().cos()[:, None]
            if n not in self.table:
                self.table[n] = torch.full((n, 1), float(n))
            return x * self.cos[:n] + self.table[n]

    m = Rotary()
    run = c(m)
    return [run(x) for x in (X, X[:1], X, X[:1], torch.ones(3, 4), X)], m.longest, sorted(m.table), m.cos


@suite
def deep_copied_models(c):
    m = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    run = c(m)
    out = [run(X)]
    twin = copy.deepcopy(m)
    other = copy.deepcopy(run)
    with torch.no_grad():
        twin[0].weight.zero_()
        other[0].weight.fill_(1)
    out += [c(twin)(X), other(X), run(X)]
    return out, state(m), state(twin), state(other)


@suite
def functional_calls(c):
    m = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))

    def run(params, x):
        return torch.func.functional_call(m, params, (x,))

    ones = {k: torch.ones_like(v) for k, v in m.state_dict().items()}
    call = c(run)
    out = [call(ones, X), call({"0.weight": torch.eye(4)}, X), call({}, X)]
    return out, state(m), {k: v.clone() for k, v in ones.items()}


@suite
def functional_call_outside(c):
    m = nn.Linear(4, 4)
    run = c(m)
    out = [run(X)]
    out.append(torch.func.functional_call(run, {"weight": torch.eye(4)}, (X,)))
    out.append(run(X))
    return out


@suite
def swapped_parameters_in_a_with_block(c):
    class Swap:
        def __init__(self, m, w):
            self.m, self.w = m, w

        def __enter__(self):
            self.old = self.m.weight
            self.m.weight = self.w

        def __exit__(self, *exc):
            self.m.weight = self.old

    class Swaps(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(4, 4)
            self.spare = nn.Parameter(torch.eye(4))

        def forward(self, x):
            with Swap(self.lin, self.spare):
                y = self.lin(x)
            return y, self.lin(x)

    m = Swaps()
    run = c(m)
    w = m.lin.weight
    return run(X), run(X), m.lin.weight is w


test_state = suite.test()
