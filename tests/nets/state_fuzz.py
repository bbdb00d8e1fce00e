"""The state net: between two calls of a compiled program, change anything that Python can change; the next call is
eager's.

    python -m tests.nets.state_fuzz --count 20000 --seed 0 [--program NAME] [--jobs 2] [--backend eager|native|mixed]

A case is a program, and steps: each changes something at a place of the program's world, or surrounds one call, or
gives another input. The same steps are done in two worlds; in one the program is compiled. Results, errors, output,
gradients and what the world holds afterwards are compared after each step. A case that differs is reduced to the steps
that are needed.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import itertools
import pathlib
import random
import sys
import types
import warnings
from collections import Counter
from typing import Any

import torch
from torch import nn

import framesmith
from tests.fuzz.pool import run_all
from tests.fuzz.runner import Verdict

from .state_places import Place, places, verbs
from .state_surroundings import AROUND, INPUTS

_SOURCE = pathlib.Path(__file__).with_name("state_programs.py")
_CODE = compile(_SOURCE.read_text(), str(_SOURCE), "exec")
_NAMES = itertools.count()
MAX_STEPS = 5
_HALF = 5e-2
SHADOWS = {
    "max": lambda *a: 11,
    "len": lambda x: 5,
    "sorted": list,
    "float": lambda x: 2.0,
    "enumerate": lambda x: zip([3, 4], x),
}
"""Globals that hide builtins."""


@dataclasses.dataclass(frozen=True)
class Step:
    """`where`: a place's path, or "around" or "input". `what`: the verb's name."""

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


@dataclasses.dataclass(frozen=True)
class Case:
    program: str
    steps: tuple[Step, ...]
    backend: str = "eager"
    grad: bool = False

    def __str__(self) -> str:
        return f"{self.program} ({self.backend}{', backward' if self.grad else ''}): " + "; ".join(map(str, self.steps))


@dataclasses.dataclass(frozen=True)
class Drawn:
    """A case that is yet to be drawn."""

    seed: int
    program: str | None = None
    backend: str = "mixed"


class World:
    """A program with globals of its own."""

    def __init__(self, name: str) -> None:
        module = types.ModuleType(f"state_world_{next(_NAMES)}")
        sys.modules[module.__name__] = module  # dataclasses look there
        self.space = vars(module)
        exec(_CODE, self.space)
        torch.manual_seed(0)
        self.root, self.inputs = self.space["PROGRAMS"][name]()
        self.call = self.root

    def close(self) -> None:
        sys.modules.pop(self.space["__name__"], None)

    def places(self) -> dict[str, Place]:
        return places(self.root, self.space)

    def change(self, step: Step) -> Any:
        """Do what the step says; the error that it raises, if any."""
        if step.where == "shadow":
            self.space[step.what] = SHADOWS[step.what]
            return None
        place = self.places().get(step.where)
        verb = None if place is None else verbs(place).get(step.what)
        if verb is None:
            return None
        torch.manual_seed(1)
        try:
            verb(place, random.Random(0))  # type: ignore[arg-type]
        except Exception as error:
            return type(error).__name__
        return None

    def outcome(self, step: Step | None, grad: bool) -> dict[str, Any]:
        """All that can be seen of one call."""
        inputs = [x.clone() for x in self.inputs]
        around: Any = contextlib.nullcontext()
        if step is not None and step.where == "input":
            inputs[0] = INPUTS[step.what](inputs[0])
        if step is not None and step.where == "around":
            around = AROUND[step.what]()
        said = io.StringIO()
        torch.manual_seed(2)
        result, error, grads = None, None, []
        try:
            with contextlib.redirect_stdout(said), torch.set_grad_enabled(grad), around:
                result = self.call(*inputs)
                if grad:
                    grads = self.gradients(result, inputs)
        except Exception as e:
            error = (type(e).__name__, _stable(e))
        drawn = torch.rand(1) if torch.get_default_device().type == "cpu" else None
        return {
            "result": settled(result),
            "error": error,
            "said": said.getvalue(),
            "inputs": settled(inputs),
            "gradients": settled(grads),
            "drawn": settled(drawn),
            "world": self.contents(),
        }

    def gradients(self, result: Any, inputs: list[Any]) -> list[Any]:
        leaves = [x for x in inputs if isinstance(x, torch.Tensor)]
        leaves += list(self.root.parameters()) if isinstance(self.root, nn.Module) else []
        ends = [x for x in tensors(result) if x.requires_grad]
        for leaf in leaves:
            leaf.grad = None
        if ends:
            sum(x.abs().sum() for x in ends).backward()
        return [x.grad if x.is_leaf else None for x in leaves]

    def contents(self) -> dict[str, Any]:
        """Values of the world, by place."""
        return {
            path: settled(p.value)
            for path, p in self.places().items()
            if isinstance(p.value, (int, float, str, torch.Tensor, type(None))) or type(p.value) in (list, tuple, set)
        }


def _stable(error: Exception) -> str:
    text = str(error).split("\n")[0]
    return text if "0x" not in text else text.split("0x")[0]


def tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [x for v in value for x in tensors(v)]
    return []


@dataclasses.dataclass(frozen=True)
class Seen:
    """What is to be equal of a tensor."""

    about: tuple[Any, ...]
    values: Any


def settled(value: Any) -> Any:
    """A copy that stays as it is."""
    if isinstance(value, torch.Tensor):
        about = (
            type(value).__name__,
            value.dtype,
            tuple(value.shape),
            value.layout,
            value.device.type,
            value.requires_grad,
            value.is_inference(),
            value.is_conj(),
            value.is_neg(),
            value.is_leaf,
        )
        if value.layout is torch.strided:
            about += (tuple(s for s, n in zip(value.stride(), value.shape) if n > 1) if value.numel() else (),)
        data = (
            None
            if value.device.type == "meta"
            else value.detach().to_dense().clone()
            if value.layout is not torch.strided
            else (torch.Tensor.clone(value.detach().resolve_conj().resolve_neg()))
        )
        return Seen(about, data)
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, [settled(v) for v in value])
    if isinstance(value, dict):
        return {k: settled(v) for k, v in value.items()}
    if isinstance(value, set):
        return sorted(map(repr, value))
    return (
        value
        if isinstance(value, (int, float, str, bool, type(None), torch.dtype, torch.Size))
        else type(value).__name__
    )


def difference(a: Any, b: Any, tol: float, at: str = "") -> str | None:
    """The first difference of what was settled; None: there is none. `tol`: 0 for bits."""
    if type(a) is not type(b):
        return f"{at}: {a!r} is not {b!r}"
    if isinstance(a, Seen):
        if a.about != b.about:
            return f"{at}: {a.about} is not {b.about}"
        same = a.values is None or _close(a.values, b.values, tol)
        return None if same else f"{at}: {a.values} is not {b.values}"
    if isinstance(a, dict):
        if a.keys() != b.keys():
            return f"{at}: keys {sorted(a.keys() ^ b.keys())}"
        return next((d for k in a if (d := difference(a[k], b[k], tol, f"{at}.{k}"))), None)
    if isinstance(a, (list, tuple)):
        if len(a) != len(b):
            return f"{at}: {len(a)} is not {len(b)} long"
        return next((d for i, (x, y) in enumerate(zip(a, b)) if (d := difference(x, y, tol, f"{at}[{i}]"))), None)
    if isinstance(a, float):
        same = a == b or a != a and b != b or tol and abs(a - b) <= 1e-4 * (abs(a) + 1)
        return None if same else f"{at}: {a!r} is not {b!r}"
    return None if a == b else f"{at}: {a!r} is not {b!r}"


def _close(a: torch.Tensor, b: torch.Tensor, tol: float) -> bool:
    a, b = a.as_subclass(torch.Tensor), b.as_subclass(torch.Tensor)
    if not tol or not a.is_floating_point() and not a.is_complex():
        return (
            torch.equal(a.nan_to_num(nan=123.0), b.nan_to_num(nan=123.0))
            if a.is_floating_point()
            else torch.equal(a, b)
        )
    wide = torch.complex128 if a.is_complex() else torch.float64
    at = _HALF if a.dtype in (torch.bfloat16, torch.half) else tol
    return torch.allclose(a.to(wide), b.to(wide), at, at, equal_nan=True)


def run(case: Case) -> str | None:
    """The first difference between the two worlds; None: they are the same."""
    theirs, mine = World(case.program), World(case.program)
    try:
        mine.call = (
            framesmith.compile(mine.root, backend="eager") if case.backend == "eager" else framesmith.compile(mine.root)
        )
        for number, step in enumerate((None, None, *case.steps)):
            changes = step is not None and step.where not in ("around", "input")
            if changes and (error := theirs.change(step)) != (own := mine.change(step)):
                return f"step {number}, the change itself: {error} is not {own}"
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                want, got = theirs.outcome(step, case.grad), mine.outcome(step, case.grad)
            half = step is not None and ("bfloat16" in step.what or "autocast" in step.what or "half" in step.what)
            # a result of float32 may have been computed of values that eager rounds to bfloat16
            near = _HALF if half and case.backend == "native" else 2e-3
            found = difference(want, got, 0.0 if case.backend == "eager" and not case.grad and not half else near)
            if found is not None:
                return f"step {number} ({step}){found}"
        return None
    finally:
        theirs.close()
        mine.close()


def draw(rng: random.Random, program: str | None = None, backend: str = "mixed") -> Case:
    """A random case."""
    names = _program_names()
    name = program or rng.choice(names)
    world = World(name)
    steps = []
    for _ in range(rng.randint(1, MAX_STEPS)):
        kind = rng.random()
        if kind < 0.02:
            step = Step("shadow", rng.choice(sorted(SHADOWS)))
        elif kind < 0.2:
            step = Step("around", rng.choice(sorted(AROUND)))
        elif kind < 0.3:
            step = Step("input", rng.choice(sorted(INPUTS)))
        else:
            rows = [(path, found) for path, place in world.places().items() if (found := verbs(place))]
            if not rows:
                break
            path, found = rng.choice(rows)
            step = Step(path, rng.choice(sorted(found)))
            world.change(step)
        steps.append(step)
    world.close()
    native = backend == "native" or backend == "mixed" and rng.random() < 0.15
    return Case(name, tuple(steps), "native" if native else "eager", rng.random() < 0.3)


def _program_names() -> list[str]:
    world = types.ModuleType("state_names")
    sys.modules[world.__name__] = world
    exec(_CODE, vars(world))
    return list(vars(world)["PROGRAMS"])


def shrink(case: Case) -> Case:
    """Fewer steps that still differ."""
    smaller = True
    while smaller:
        smaller = False
        for i in range(len(case.steps)):
            less = dataclasses.replace(case, steps=case.steps[:i] + case.steps[i + 1 :])
            if run(less) is not None:
                case, smaller = less, True
                break
    for plainer in (dataclasses.replace(case, grad=False), dataclasses.replace(case, backend="eager")):
        if plainer != case and run(plainer) is not None:
            case = plainer
    return case


def judge(drawn: Drawn) -> Verdict:
    """Draw and run the case of a seed; a difference is reduced."""
    case = draw(random.Random(drawn.seed), drawn.program, drawn.backend)
    found = run(case)
    if found is not None:
        case = shrink(case)
        found = run(case)
    framesmith.reset()
    return Verdict("same", "") if found is None else Verdict("different", f"{case}\n    {found[:600]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--program")
    parser.add_argument("--backend", default="mixed", choices=("eager", "native", "mixed"))
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    kinds: Counter[str] = Counter()
    drawn = [Drawn(options.seed + i, options.program, options.backend) for i in range(options.count)]
    for item, verdict in run_all(judge, drawn, options.jobs):
        kinds[verdict.kind] += 1
        if verdict.kind != "same":
            print(f"seed {item.seed}: {verdict.kind}: {verdict.detail}", flush=True)
    print(f"{options.count} cases: " + ", ".join(f"{n} {kind}" for kind, n in kinds.most_common()))
    return kinds["same"] < options.count


if __name__ == "__main__":
    sys.exit(main())
