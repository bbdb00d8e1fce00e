"""Sizes padded up to a few: `options={"buckets": ...}` of `compile`.

The tensors named there are padded before the compiled call, and results are sliced in the dimensions that follow a
padded size. The program guarantees that padding changes nothing else (masks, means, positions).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves, tree_map

from framesmith.util.errors import FramesmithError
from framesmith.util.state_restored import state_restored

POWERS = "powers"
Place = tuple[str, int]
Group = tuple[int, int]
"""The size that some dimensions have, and the size that they are padded to."""


class _Rule:
    """The sizes of one dimension, and what it is padded with."""

    def __init__(self, said: Any, where: str) -> None:
        sizes, self.value = said if isinstance(said, tuple) else (said, 0)
        if sizes != POWERS and not (isinstance(sizes, list) and all(type(n) is int and n > 0 for n in sizes)):
            raise FramesmithError(f"the buckets of {where} are {sizes!r}; they are {POWERS!r} or a list of sizes, or a "
                                  "tuple of these and the number to pad with")
        self.sizes = None if sizes == POWERS else sorted(sizes)

    def size(self, n: int) -> int:
        """Return the least size that holds `n`; beyond the largest, `n` itself."""
        if self.sizes is None:
            return 1 << (n - 1).bit_length() if n else n
        return next((size for size in self.sizes if size >= n), n)


class Bucketed:
    """A compiled callable and its original, `model`."""

    def __init__(self, compiled: Any, model: Callable[..., Any], rules: Mapping[str, Mapping[int, Any]]) -> None:
        self._compiled, self._model = compiled, model
        self._signature = inspect.signature(model.forward if isinstance(model, nn.Module) else model)
        parameters = self._signature.parameters.values()
        self._rest = next((p.name for p in parameters if p.kind is p.VAR_KEYWORD), "")
        if unknown := rules.keys() - {p.name for p in parameters} if not self._rest else ():
            raise FramesmithError(f"buckets of {', '.join(sorted(unknown))}, which is no argument of {model!r}")
        self._rules = {(name, dim): _Rule(said, f"dimension {dim} of {name}") for name, dims in rules.items()
                       for dim, said in dims.items()}
        self._slopes: dict[Any, list[list[Fraction]]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._compiled, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        bound = self._signature.bind(*args, **kwargs)
        groups = self._groups(bound)
        if not groups:
            return self._compiled(*args, **kwargs)
        result = self._called(self._compiled, bound, groups)
        leaves = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
        places = tuple(map(tuple, groups.values()))
        key = places, tuple([x.dim() for x in leaves])
        if key not in self._slopes:
            self._slopes[key] = self._probed(bound, groups, leaves)
        cuts = iter(self._slopes[key])
        return tree_map(lambda x: self._cut(x, next(cuts), groups) if isinstance(x, torch.Tensor) else x, result)

    def _groups(self, bound: inspect.BoundArguments) -> dict[Group, list[Place]]:
        """Return the dimensions that are padded, by their size: those of equal sizes are padded alike."""
        groups: dict[Group, list[Place]] = {}
        for (name, dim), rule in self._rules.items():
            x = self._given(bound).get(name)
            if isinstance(x, torch.Tensor) and -x.dim() <= dim < x.dim():
                now = x.shape[dim]
                if (to := rule.size(now)) > now:
                    groups.setdefault((now, to), []).append((name, dim))
        return groups

    def _given(self, bound: inspect.BoundArguments) -> dict[str, Any]:
        return {**bound.arguments.get(self._rest, {}), **bound.arguments}

    def _called(self, call: Callable[..., Any], bound: inspect.BoundArguments, groups: Mapping[Group, Sequence[Place]]
                ) -> Any:
        """Call with the dimensions of `groups` padded."""
        padded = inspect.BoundArguments(self._signature, bound.arguments.copy())  # type: ignore[arg-type]
        if self._rest in padded.arguments:
            padded.arguments[self._rest] = dict(padded.arguments[self._rest])
        for (now, to), places in groups.items():
            for name, dim in places:
                of = padded.arguments if name in padded.arguments else padded.arguments[self._rest]
                x = of[name]
                pads = [0, 0] * x.dim()
                pads[2 * (x.dim() - 1 - dim % x.dim()) + 1] = to - now
                of[name] = functional.pad(x, pads, value=self._rules[name, dim].value)
        return call(*padded.args, **padded.kwargs)

    def _probed(self, bound: inspect.BoundArguments, groups: Mapping[Group, Sequence[Place]],
                leaves: Sequence[torch.Tensor]) -> list[list[Fraction]]:
        """Measure by how much each dimension of each result grows with each group: call the original with one group
        after the other as it is."""
        found: list[list[Fraction]] = [[] for _ in leaves]
        for group in groups:
            others = {g: places for g, places in groups.items() if g != group}
            with state_restored(self._model), torch.no_grad():
                result = self._called(self._model, bound, others)
            plain = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
            for slopes, x, y in zip(found, leaves, plain, strict=True):
                slopes += [Fraction(m - n, group[1] - group[0]) for m, n in zip(x.shape, y.shape, strict=True)]
        return found

    def _cut(self, x: torch.Tensor, slopes: Sequence[Fraction], groups: Mapping[Group, Any]) -> torch.Tensor:
        """Return a result without padding."""
        for k, (now, to) in enumerate(groups):
            for dim, slope in enumerate(slopes[k * x.dim():(k + 1) * x.dim()]):
                less = slope * (to - now)
                if less.denominator != 1:
                    raise FramesmithError(f"dimension {dim} of a result has {slope} elements for one of a padded size")
                if less:
                    x = x.narrow(dim, 0, x.shape[dim] - int(less))
        return x
