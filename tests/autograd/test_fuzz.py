"""Small random programs of writes, views and grad modes: where eager computes gradients, compiled code computes the
same."""

from __future__ import annotations

import random

import pytest
import torch

from tests.autograd.driver import agree

SHAPE = (4, 4)
POINTWISE = ("{x} * {y}", "{x} + {y}", "{x}.sin()", "{x}.clone()", "{x}.sigmoid()",
             "torch.where({x} > 0, {x}, {y} * 2)", "{x} * 2 + 1",
             "torch.zeros({s})", "{x}.detach() * {y}", "{x}.exp()", "{x}.relu()")
VIEWS = {
    (4, 4): (("{x}[2]", (4,)), ("{x}.t()", (4, 4)), ("{x}[:, 1]", (4,)), ("{x}.detach()", (4, 4)), ("{x}[1:3]", (2, 4)),
             ("{x}.diagonal()", (4,)), ("{x}.unsqueeze(0)", (1, 4, 4)), ("{x}.expand(4, 4)", (4, 4))),
    (2, 4): (("{x}[0]", (4,)), ("{x}[1:2]", (1, 4))),
    (4,): (("{x}.detach()", (4,)), ("{x}[2:3]", (1,)), ("{x}[:]", (4,))),
}
WRITES = ("{x}.mul_({y})", "{x}.add_({y}, alpha=2)", "{x}.copy_({y} * 1)", "{x}.relu_()", "{x}.mul_(2)", "{x}.sin_()",
          "{x}.sigmoid_()",
          "{x}.masked_fill_({y} > 0, 0.5)", "{x}.data.mul_(2)", "{x}.sub_(1)")


def program(seed: int) -> tuple[str, list[int]]:
    """A function of an activation `h`, a leaf `g`, data `b` and a parameter `w`, as text; and places of results that
    are written later."""
    draw = random.Random(seed)
    shapes: dict[str, tuple[int, ...]] = {"h": SHAPE, "g": SHAPE, "b": SHAPE, "w": (4,)}
    lines, pad = [], "    "
    for step in range(draw.randint(4, 11)):
        x = draw.choice(list(shapes))
        s = shapes[x]
        y = draw.choice([k for k in shapes if shapes[k] == s])
        kind = draw.random()
        if kind < 0.4:
            lines.append(f"{pad}t{step} = {draw.choice(POINTWISE).format(x=x, y=y, s=s)}")
            shapes[f"t{step}"] = s
        elif kind < 0.6 and s in VIEWS:
            text, shapes[f"t{step}"] = draw.choice(VIEWS[s])
            lines.append(f"{pad}t{step} = {text.format(x=x)}")
        elif kind < 0.88:
            lines.append(pad + draw.choice(WRITES).format(x=x, y=y))
        elif len(pad) == 4:
            lines.append(f"{pad}with torch.{draw.choice(['no_grad', 'enable_grad'])}():\n{pad}    pass")
            pad += "    "
        else:
            pad = "    "
    results = [k for k in shapes if k not in "gw" and draw.random() < 0.5] or ["h"]
    later = [draw.randrange(len(results)) for _ in range(draw.randint(0, 2))]
    return "\n".join(["def fn(h, g, b, w):", *lines, f"    return {', '.join(results)},"]), later


def scenario_of(seed: int):
    text, later = program(seed)
    space = {"torch": torch}
    exec(text, space)

    def scenario(c):
        fn, shown = c(space["fn"]), []
        c(lambda x: x + 1)(torch.ones(2, requires_grad=True))
        for call in range(2):
            torch.manual_seed(seed + call)
            x, g, w = (torch.randn(shape, requires_grad=True) for shape in (SHAPE, SHAPE, (4,)))
            h, b = x * 2, torch.randn(SHAPE)
            results = fn(h, g, b, w)
            for place in later:
                results[place].mul_(2)
            leaving = [(k + 1) * r.sin().sum() for k, r in enumerate([*results, h, b]) if r.grad_fn is not None]
            if leaving:
                sum(leaving).backward()
            shown.append((x, g, w, [r.detach() for r in (*results, h, b)],
                          [r.grad_fn is not None for r in (*results, h, b)]))
        return shown

    return scenario


@pytest.mark.parametrize("start", range(0, 160, 20))
def test_random_programs(start):
    compared = 0
    for seed in range(start, start + 20):
        scenario = scenario_of(seed)
        try:
            with torch.enable_grad():
                scenario(lambda fn: fn)
        except RuntimeError:
            continue  # a program that autograd refuses
        compared += 1
        try:
            agree(scenario, breaks=None)
        except (AssertionError, RuntimeError) as error:
            raise AssertionError(f"seed {seed}:\n{program(seed)[0]}") from error
    assert compared
