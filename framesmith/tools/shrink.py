"""Delta debugging: shrink a failing program to one that fails in the same way.

First the operators: the shortest beginning of the graph that fails, of this the shortest end; then results, inputs,
gradients, sizes, and what is left of the operators one by one. Each step keeps what fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from framesmith.tools.programs import (
    Input,
    Program,
    as_function,
    fills,
    first,
    of_results,
    rest,
    sizes_of,
    values,
    with_sizes,
    without,
)

Fails = Callable[[Program], bool]
_SMALL = 3
"""A size that need not be smaller."""


def shrink(program: Program, fails: Fails, result: int | None = None) -> Program:
    """Return a smaller program for which `fails` holds, as it does for `program`. `result`: the one that is known to be
    wrong."""
    program = _one_result(program, fails, result)
    program = _shortest_beginning(program, fails)
    if (found := _last_alone(program, fails)) is not None:
        return found
    program = _shortest_end(program, fails)
    program = _one_result(program, fails, None)
    for reduce in (_untrained, _inputs, _sizes):
        program = reduce(program, fails)
    while (smaller := _steps(program, fails)) is not program:
        program = smaller
    return program


def _first_that_fails(candidates: Iterator[Program | None], fails: Fails, program: Program) -> Program:
    return next((c for c in candidates if c is not None and as_function(c) and fails(c)), program)


def _one_result(program: Program, fails: Fails, likely: int | None) -> Program:
    results = program.results
    if len(results) < 2:
        return program
    order = list(range(len(results)))
    if likely is not None and likely < len(results):
        order = [likely, *(k for k in order if k != likely)]
    return _first_that_fails((of_results(program, [results[k]]) for k in order), fails, program)


def _least(low: int, high: int, made: Callable[[int], Program | None], fails: Fails) -> Program | None:
    """Return the failing program of the least number in the range, by bisection, if any."""
    best = None
    while low < high:
        middle = (low + high) // 2
        candidate = made(middle)
        if candidate is not None and as_function(candidate) and fails(candidate):
            best, high = candidate, middle
        else:
            low = middle + 1
    return best


def _shortest_beginning(program: Program, fails: Fails) -> Program:
    found = _least(1, len(program.calls), lambda n: first(program, n), fails)
    return program if found is None else _one_result(found, fails, len(found.results) - 1)


def _last_alone(program: Program, fails: Fails) -> Program | None:
    """Return the program of the last operator alone, the most frequent cause, with any numbers and small sizes; with
    gradients if needed."""
    count = len(program.calls)
    one = rest(program, count - 1, values(program)) if count > 1 else program
    if len(one.results) > 1 or not as_function(one):
        return None
    simple = replace(one, inputs=tuple(map(_simple, one.inputs)))
    small = with_sizes(simple, _small_sizes(simple))
    forms = [_without_gradients(small), small] if one.train else [small]
    return next((form for form in forms if fails(form)), None)


def _shortest_end(program: Program, fails: Fails) -> Program:
    count = len(program.calls)
    if count < 2:
        return program
    known = values(program)
    found = _least(1, count, lambda n: rest(program, count - n, known), fails)
    return program if found is None else found


def _detached(one: Input) -> Input:
    return replace(one, value=one.value.detach())


def _without_gradients(program: Program) -> Program:
    return replace(program, train=False, inputs=tuple(map(_detached, program.inputs)))


def _untrained(program: Program, fails: Fails) -> Program:
    if not program.train:
        return program

    def grads() -> Iterator[Program]:
        yield _without_gradients(program)
        for k in range(len(program.inputs)):
            yield replace(program, inputs=tuple([_detached(x) if i != k else x for i, x in enumerate(program.inputs)]))

    return _first_that_fails(grads(), fails, program)


def _simple(one: Input, fill: str | None = None) -> Input:
    """Return the input with random numbers, contiguous, and not a parameter."""
    value = one.value.detach()
    if not value.is_contiguous():
        value = value.contiguous()
    return Input(value.requires_grad_(one.value.requires_grad), fills(one)[0] if fill is None else fill)


def _inputs(program: Program, fails: Fails) -> Program:
    """Simplify inputs: numbers, layouts and parameters that are not needed."""
    simple = replace(program, inputs=tuple(map(_simple, program.inputs)))
    if fails(simple):
        return simple
    for k in range(len(program.inputs)):
        one = program.inputs[k]
        forms = [_simple(one), *(replace(_simple(one), param=one.param, fill=f) for f in fills(one)),
                 *(replace(one, fill=f) for f in fills(one)[:1]), _simple(one, "")]

        candidates = [replace(program, inputs=(*program.inputs[:k], form, *program.inputs[k + 1:])) for form in forms]
        program = _first_that_fails(iter(candidates), fails, program)
    return program


def _small_sizes(program: Program) -> dict[int, int]:
    """Return a map of all large sizes to small, distinct ones."""
    large = [n for n in sizes_of(program) if n > _SMALL]
    return {n: min(n, _SMALL - 1 + k) for k, n in enumerate(reversed(large))}


def _sizes(program: Program, fails: Fails) -> Program:
    large = [n for n in sizes_of(program) if n > _SMALL]
    if not large:
        return program
    small = with_sizes(program, _small_sizes(program))
    if fails(small):
        return small
    for n in large:
        low, high, best = 1, n, program
        while low < high:
            middle = (low + high) // 2
            if fails(candidate := with_sizes(program, {n: middle})):
                best, high = candidate, middle
            else:
                low = middle + 1
        program = best
    return program


def _steps(program: Program, fails: Fails) -> Program:
    """Remove one operator, if possible."""
    if len(program.calls) < 2:
        return program
    return _first_that_fails((without(program, node) for node in program.calls), fails, program)
