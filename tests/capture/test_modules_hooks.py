"""Hooks of modules: run in captured code, in order, and seen when they come, change or go."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from torch.nn.modules import module as nn_module

from tests.capture.scenarios import check
from tests.programs import Programs

suite = Programs(check)
X = torch.linspace(-1, 1, 8).reshape(2, 4)


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))


@suite(graphs=1)
def forward_hook_changes_the_output(c):
    m = net()
    m[0].register_forward_hook(lambda mod, args, out: out * 2)
    m[2].register_forward_hook(lambda mod, args, out: out + args[0].sum())
    m.register_forward_hook(lambda mod, args, out: (out, type(mod).__name__))
    run = c(m)
    return run(X), run(X)


@suite(graphs=1)
def pre_hook_changes_the_input(c):
    m = net()
    m[0].register_forward_pre_hook(lambda mod, args: args[0] + 1)
    m[2].register_forward_pre_hook(lambda mod, args: (args[0] * 3,))
    return c(m)(X)


@suite(graphs=1)
def hooks_with_keywords(c):
    class Scaled(nn.Module):
        def forward(self, x, *, scale=1.0):
            return x * scale

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = Scaled()

        def forward(self, x):
            return self.part(x, scale=2.0)

    m = Outer()
    m.part.register_forward_pre_hook(lambda mod, args, kwargs: (args, {"scale": kwargs["scale"] + 1}), with_kwargs=True)
    m.part.register_forward_hook(lambda mod, args, kwargs, out: out + kwargs["scale"], with_kwargs=True)
    return c(m)(X)


@suite(graphs=1)
def order_and_prepend(c):
    m = nn.Linear(4, 4)
    seen = []

    def hook(name, mod, args, out=None):
        seen.append(name)

    m.register_forward_hook(partial(hook, "first"))
    m.register_forward_hook(partial(hook, "before"), prepend=True)
    m.register_forward_pre_hook(partial(hook, "pre"))
    m.register_forward_pre_hook(partial(hook, "earlier"), prepend=True)
    return c(m)(X), seen


@suite
def hooks_come_and_go(c):
    m = net()
    run = c(m)
    out = [run(X)]
    one = m[0].register_forward_hook(lambda mod, args, o: o * 5)
    out.append(run(X))
    two = m[0].register_forward_hook(lambda mod, args, o: o - 1)
    out.append(run(X))
    one.remove()
    out.append(run(X))
    two.remove()
    out.append(run(X))
    pre = m.register_forward_pre_hook(lambda mod, args: (args[0] + 7,))
    out.append(run(X))
    pre.remove()
    out.append(run(X))
    with m[2].register_forward_hook(lambda mod, args, o: o.relu()):
        out.append(run(X))
    out.append(run(X))
    return out


@suite
def hook_swapped_for_another_of_the_same_shape(c):
    m = nn.Linear(4, 4)
    run = c(m)

    def scaled(k):
        return lambda mod, args, o: o * k

    out = []
    for k in (1, 2, 3):
        with m.register_forward_hook(scaled(k)):
            out.append(run(X))
    return out


@suite(graphs=1)
def hook_collects_activations(c):
    m = net()
    kept = {}

    def keep(name):
        def hook(mod, args, out):
            kept[name] = out

        return hook

    for name, part in m.named_modules():
        part.register_forward_hook(keep(name))
    y = c(m)(X)
    return y, kept, kept[""] is y


@suite(graphs=1)
def bound_methods_and_objects_as_hooks(c):
    class Recorder:
        def __init__(self):
            self.calls = 0

        def __call__(self, mod, args, out):
            self.calls += 1
            return out + self.calls

        def pre(self, mod, args):
            self.calls += 10

    m = nn.Linear(4, 4)
    rec = Recorder()
    m.register_forward_hook(rec)
    m.register_forward_pre_hook(rec.pre)
    return c(m)(X), rec.calls


@suite
def hook_that_counts_for_ever(c):
    m = nn.Linear(4, 4)
    state = {"n": 0}

    def hook(mod, args, out):
        state["n"] += 1
        mod.calls = state["n"]

    m.register_forward_hook(hook)
    run = c(m)
    return [run(X) for _ in range(3)], state, m.calls


@suite
def hook_removes_itself(c):
    m = nn.Linear(4, 4)
    handles = []

    def once(mod, args, out):
        handles.pop().remove()
        return out * 100

    handles.append(m.register_forward_hook(once))
    run = c(m)
    return [run(X) for _ in range(3)], len(m._forward_hooks)


@suite
def always_called_when_forward_raises(c):
    class Bad(nn.Module):
        def forward(self, x):
            if x.shape[0] == 2:
                raise ValueError("two rows")
            return x * 2

    m = Bad()
    seen = []
    m.register_forward_hook(lambda mod, args, out: seen.append("always"), always_call=True)
    m.register_forward_hook(lambda mod, args, out: seen.append("never"))
    run = c(m)
    try:
        run(X)
    except ValueError as e:
        seen.append(str(e))
    return run(X[:1]), seen


@suite(graphs=1)
def always_called_when_all_is_well(c):
    m = nn.Linear(4, 4)
    m.register_forward_hook(lambda mod, args, out: out + 1, always_call=True)
    return c(m)(X)


@suite
def global_hooks(c):
    m = net()
    run = c(m)
    out = [run(X)]
    names = []
    pre = nn_module.register_module_forward_pre_hook(lambda mod, args: names.append(type(mod).__name__))
    post = nn_module.register_module_forward_hook(lambda mod, args, o: o * 2 if isinstance(mod, nn.Linear) else None)
    try:
        out.append(run(X))
    finally:
        pre.remove()
        post.remove()
    out.append(run(X))
    return out, names


@suite(whole=False)
def backward_hooks_with_gradients(c):
    m = net()
    seen = []
    m[0].register_full_backward_hook(lambda mod, gi,
                                     go: seen.append([None if g is None else g.sum() for g in (*gi, *go)]))
    m[2].register_full_backward_pre_hook(lambda mod, go: seen.append(go[0].sum()))
    run = c(m)
    with torch.enable_grad():
        x = X.clone().requires_grad_()
        run(x).sum().backward()
    return run(X), x.grad, m[0].weight.grad, seen


@suite
def backward_hooks_without_gradients(c):
    m = net()
    m[0].register_full_backward_hook(lambda mod, gi, go: None)
    run = c(m)
    return run(X), run(X)


@suite(whole=False)
def tensor_hooks_on_outputs(c):
    m = nn.Linear(4, 4)
    grads = []
    m.register_forward_hook(lambda mod, args,
                            out: out.register_hook(grads.append) and None if out.requires_grad else None)
    run = c(m)
    with torch.enable_grad():
        run(X).sum().backward()
    return run(X), grads


@suite(graphs=1)
def state_dict_hooks_stay(c):
    m = nn.Linear(4, 4)
    m._register_state_dict_hook(lambda mod, sd, prefix, meta: sd.update(extra=torch.ones(1)))
    m.register_state_dict_pre_hook(lambda mod, prefix, keep: None)
    run = c(m)
    y = run(X)
    return y, list(run.state_dict()), list(m.state_dict())


@suite
def load_state_dict_is_seen(c):
    m, other = net(), net()
    run = c(m)
    out = [run(X)]
    loaded = []
    m.register_load_state_dict_post_hook(lambda mod, keys: loaded.append(len(keys.missing_keys)))
    m.load_state_dict(other.state_dict())
    out.append(run(X))
    m.load_state_dict(net().state_dict(), assign=True)
    out.append(run(X))
    return out, loaded


@suite(graphs=1)
def hook_calls_another_module(c):
    class Adapted(nn.Module):
        def __init__(self):
            super().__init__()
            self.base = nn.Linear(4, 4)
            self.adapter = nn.Linear(4, 4)
            self.base.register_forward_hook(self.adapt)

        def adapt(self, mod, args, out):
            return out + self.adapter(args[0])

        def forward(self, x):
            return self.base(x)

    return c(Adapted())(X)


@suite(whole=False)
def hook_registered_in_forward(c):
    class Registers(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = nn.Linear(4, 4)

        def forward(self, x):
            handle = self.part.register_forward_hook(lambda mod, args, out: out * 2)
            y = self.part(x)
            handle.remove()
            return y + self.part(x)

    m = Registers()
    run = c(m)
    return run(X), run(X), len(m.part._forward_hooks)


@suite
def hooks_of_a_compiled_submodule(c):
    m = net()
    part = m[0]
    m[0] = c(part)
    out = [m(X)]
    with part.register_forward_hook(lambda mod, args, o: o * 3):
        out.append(m(X))
    with m[0].register_forward_pre_hook(lambda mod, args: (args[0] * 3,)):
        out.append(m(X))
    out.append(m(X))
    return out


test_hooks = suite.test()
