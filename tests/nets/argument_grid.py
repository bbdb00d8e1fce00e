"""Forms of arguments and sizes with zeros, for convolutions, pooling, norms, reductions and their kin, each in a child
process.

    python -m tests.nets.argument_grid [--sample N] [--seed S] [--op NAME] [--part K/N] [--forward] [--backward]

A case is an expression over tensors. Compiled code must give what eager gives: values, dtypes, strides, gradients, what
is left in the inputs, or an error of the same type; and the process must live. Cases that eager accepts are compiled
several to a graph; those of a graph that disagrees, and those that eager refuses, one by one.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F

import framesmith
from tests.nets.argument_cases import Case, all_cases

TOGETHER = 12
"""Cases of one graph."""
SPACE = {"torch": torch, "F": F, "nn": torch.nn}


def inputs_of(case: Case, grad: bool) -> list[torch.Tensor]:
    """The case's tensors, always the same ones."""
    generator = torch.Generator().manual_seed(0)
    out = []
    for name, made in case.tensors.items():
        if name[0] in "ij":  # indices
            out.append(
                torch.zeros(made, dtype=torch.int64)
                if isinstance(made, tuple)
                else torch.tensor(made, dtype=torch.int64)
            )
            continue
        x = torch.randn(made, generator=generator)
        out.append(x.abs() if name[0] == "v" else x.requires_grad_(grad and name[0] != "m"))
    return out


def function_of(cases: Sequence[Case]) -> Any:
    """A function of all cases' tensors that gives their results in a list."""
    names = [f"{name}_{k}" for k, case in enumerate(cases) for name in case.tensors]
    lines = [f"def cases({', '.join(names)}):", "    results = []"]
    for k, case in enumerate(cases):
        lines += [f"    {name} = {name}_{k}" for name in case.tensors] + [f"    results.append({case.text})"]
    space: dict[str, Any] = dict(SPACE)
    exec("\n".join([*lines, "    return results"]), space)
    return space["cases"]


def flat(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from flat(item)
    else:
        yield value


def outcome(fn: Any, cases: Sequence[Case], grad: bool) -> list[Any]:
    """What the call gives and leaves: tensors and other values; or the error."""
    inputs = [inputs_of(case, grad) for case in cases]
    try:
        torch.manual_seed(0)
        results = list(flat(fn(*[x for row in inputs for x in row])))
        asked = [r for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
        wanted = [x for row in inputs for x in row if x.requires_grad]
        if grad and asked:
            generator = torch.Generator().manual_seed(1)
            tangents = [torch.randn(r.shape, generator=generator).to(r.dtype) for r in asked]
            results += torch.autograd.grad(asked, wanted, tangents, allow_unused=True)
        return [*results, *[x for row in inputs for x in row]]
    except Exception as error:
        return [error]


def difference(want: Sequence[Any], got: Sequence[Any]) -> str:
    """What is not the same; empty if all is."""
    if len(want) != len(got):
        return f"{_short(want)} in eager, {_short(got)} here"
    for x, y in zip(want, got):
        if isinstance(x, Exception) or isinstance(y, Exception):
            if type(x) is not type(y):
                return f"{_short([x])} in eager, {_short([y])} here"
        elif not isinstance(x, torch.Tensor) or not isinstance(y, torch.Tensor):
            if type(x) is not type(y) or x != y:
                return f"{_short([x])} in eager, {_short([y])} here"
        else:
            metadata = [(t.dtype, tuple(t.shape), _steps(t), t.requires_grad) for t in (x, y)]
            if metadata[0] != metadata[1]:
                return f"{metadata[0]} in eager, {metadata[1]} here"
            if not torch.allclose(x.detach(), y.detach(), rtol=1e-4, atol=1e-4, equal_nan=True):
                return f"values differ by {(x.detach() - y.detach()).abs().max().item()}"
    return ""


def _steps(x: torch.Tensor) -> list[int]:
    """The strides that say where elements are."""
    return [step for size, step in zip(x.shape, x.stride()) if size > 1] if x.numel() else []


def _short(values: Sequence[Any]) -> str:
    return ", ".join(
        f"{type(v).__name__}: {str(v).splitlines()[0][:100]}" if isinstance(v, Exception) else f"{type(v).__name__}"
        for v in values[:2]
    )


def compiled_outcome(cases: Sequence[Case], grad: bool, whole: bool) -> list[Any]:
    compiled = framesmith.compile(function_of(cases), fullgraph=whole)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return outcome(compiled, cases, grad)


def work(numbered: Sequence[tuple[int, Case]], grad: bool, say: Any) -> None:
    """In the child: for each case a line with what came of it."""
    accepted = []
    for number, case in numbered:
        say(f"eager {number}")
        want = outcome(function_of([case]), [case], grad)
        if isinstance(want[-1], Exception):
            say(f"one {number}")
            found = difference(want, compiled_outcome([case], grad, False))
            say(f"wrong {number} {found}" if found else f"refused {number}")
        else:
            accepted.append((number, case))
    for start in range(0, len(accepted), TOGETHER):
        group = accepted[start : start + TOGETHER]
        cases = [case for _, case in group]
        say(f"group {' '.join(str(number) for number, _ in group)}")
        want = outcome(function_of(cases), cases, grad)
        if len(group) > 1 and not difference(want, compiled_outcome(cases, grad, True)):
            say("right " + " ".join(str(number) for number, _ in group))
            continue
        for number, case in group:
            say(f"one {number}")
            want = outcome(function_of([case]), [case], grad)
            found = difference(want, compiled_outcome([case], grad, False))
            say(f"wrong {number} {found}" if found else f"right {number}")


def child(numbered: Sequence[tuple[int, Case]], grad: bool, limit: int) -> tuple[list[str], int]:
    """Runs `work` in a process of its own: the lines that it said and its wait status."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    process = os.fork()
    if not process:
        os.close(reading)
        signal.alarm(limit)
        code = 1
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            work(numbered, grad, lambda line: os.write(writing, (line.replace("\n", " ") + "\n").encode()))
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as lines:
        said = lines.read().splitlines()
    return said, os.waitpid(process, 0)[1]


class Tally:
    """Counts, and the cases that went wrong."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []

    def fault(self, kind: str, case: Case, grad: bool, what: str) -> None:
        self.counts[kind] += 1
        self.faults.append(f"{kind}{' (backward)' if grad else ''}: {case.text} {case.tensors}: {what}")
        print(self.faults[-1], flush=True)

    def line(self, seconds: float) -> str:
        total = sum(self.counts.values())
        named = ", ".join(f"{self.counts[k]} {k}" for k in ("right", "refused", "wrong", "crashed", "eager crashes"))
        return f"argument grid: {total} cases, {named}, in {seconds:.0f} s"


def run(cases: Sequence[Case], grad: bool, tally: Tally, batch: int = 4 * TOGETHER) -> None:
    """All cases, in children of `batch` cases; what a child leaves undone goes on in another."""
    todo = list(enumerate(cases))
    while todo:
        now, todo = todo[:batch], todo[batch:]
        said, status = child(now, grad, 60 + 5 * len(now))
        known: set[int] = set()
        for line in said:
            word, _, rest = line.partition(" ")
            if word in ("right", "refused"):
                numbers = [int(n) for n in rest.split()]
                tally.counts[word] += len(numbers)
                known.update(numbers)
            elif word == "wrong":
                number, _, what = rest.partition(" ")
                known.add(int(number))
                tally.fault("wrong", cases[int(number)], grad, what)
        left = [row for row in now if row[0] not in known]
        if not left:
            continue
        word, _, rest = said[-1].partition(" ") if said else ("eager", "", str(left[0][0]))
        killers = (
            [row for row in left if row[0] in {int(n) for n in rest.split()}]
            if word in ("one", "eager", "group")
            else left[:1]
        )
        others = [row for row in left if row not in killers]
        if len(killers) > 1:  # which one of them?
            for row in killers:
                run_one(row[1], grad, tally)
        else:
            tally.fault("eager crashes" if word == "eager" else "crashed", killers[0][1], grad, f"status {status}")
        todo = others + todo


def run_one(case: Case, grad: bool, tally: Tally) -> None:
    run([case], grad, tally, 1)


def chosen(sample: int, seed: int, only: str = "") -> list[Case]:
    """`sample` cases (0: all), as many of each operator as there are."""
    by_operator: dict[str, list[Case]] = {}
    for case in all_cases():
        if only in case.operator:
            by_operator.setdefault(case.operator, []).append(case)
    if not sample:
        return [case for rows in by_operator.values() for case in rows]
    chance = random.Random(seed)
    for rows in by_operator.values():
        chance.shuffle(rows)
    out: list[Case] = []
    for k in range(max(map(len, by_operator.values()))):
        out += [rows[k] for rows in by_operator.values() if k < len(rows)]
    return sorted(out[:sample], key=lambda case: case.operator)


def main() -> int:
    import time

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, default=0, help="how many cases, spread over all operators; 0: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--op", default="", help="operators whose name contains this")
    parser.add_argument("--forward", action="store_true", help="without gradients alone")
    parser.add_argument("--backward", action="store_true", help="with gradients alone")
    parser.add_argument("--part", default="1/1", help="the cases of one of N runs, which may go on at once")
    options = parser.parse_args()
    torch.set_num_threads(1)
    began = time.time()
    part, parts = map(int, options.part.split("/"))
    cases = chosen(options.sample, options.seed, options.op)[part - 1 :: parts]
    tally = Tally()
    for grad in (False, True):
        if not (options.backward, options.forward)[grad]:
            run(cases, grad, tally)
    print(tally.line(time.time() - began))
    return bool(tally.counts["wrong"] or tally.counts["crashed"])


if __name__ == "__main__":
    sys.exit(main())
