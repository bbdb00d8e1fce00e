"""The state of a code object: why its variants missed calls, and what its next capture assumes because of that."""

from __future__ import annotations

import itertools
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import nn

from framesmith.backends import NATIVE
from framesmith.background import Job
from framesmith.capture.dynamic_sizes import DynamicSizes
from framesmith.capture.guards import GuardTree, Miss, namespaces
from framesmith.config import Config
from framesmith.util.retries import Raising

VARYING = 6
"""Misses of variants because of a number's value after which capture does not assume the value any more (three calls
miss so often). For a float one is enough."""


@dataclass(slots=True)
class CodeState:
    """The state of a code object of one frame callback.

    `training`: paths to tensors whose requiring grad prevented compilation. `misses`: by guard, the last reason for a
    miss, and in `times` how often it was the reason. `full`: modules that have as many variants as they may, and the
    answer for their further calls; `resized`: a frame of no module has, because sizes of tensors vary. `sizes`:
    dimensions of tensors, by source, that were seen to vary; none of an int that was; `ones`: one of those was 1 in a
    call. `static`: no code could be made for sizes that vary; `data`: it could for symbols of data; `numbers`: for
    those of integers. `job`: what compiles it in the background. `graphless`: captures without a tensor operation.
    `shared`: captures of other processes of the world are waited for.
    `idle`: of a user's code, those of it and its continuations that ended in a break, since the last with one.
    """

    code: weakref.ref[CodeType]
    training: list[GuardTree] = field(default_factory=list)
    misses: dict[tuple[str, str], Miss] = field(default_factory=dict)
    times: Counter[tuple[str, str]] = field(default_factory=Counter)
    full: weakref.WeakKeyDictionary[nn.Module, Any] = field(default_factory=weakref.WeakKeyDictionary)
    resized: bool = False
    number: int = field(default_factory=itertools.count().__next__)
    captures: int = 0
    graphless: int = 0
    sizes: dict[str, frozenset[int]] = field(default_factory=dict)
    ones: bool = False
    static: bool = False
    data: bool = True
    numbers: bool = True
    idle: int = 0
    shared: bool = True
    job: Job | None = None
    raising: Raising = field(default_factory=lambda: Raising())

    def note_misses(self, misses: Sequence[Miss], resized: Mapping[str, frozenset[int]]) -> bool:
        """Record why variants missed a call, and the dimensions that had another size in it. Return whether more is
        seen to vary than before."""
        for miss in misses:
            self.misses[miss.guard] = miss
            self.times[miss.guard] += 1
        before = dict(self.sizes)
        for path, dims in resized.items():
            self.sizes[path] = self.sizes.get(path, frozenset()) | dims
        for miss in self.misses.values():
            if miss.kind is int:
                self.sizes.setdefault(miss.guard[0], frozenset())
        return self.sizes != before

    def dynamic_sizes(self, config: Config) -> DynamicSizes | None:
        """Return the sizes of inputs that are symbols: those seen to vary, or requested by the user. A user's back end
        gets graphs of static sizes."""
        if config.backend not in NATIVE:
            return None
        inputs = config.dynamic is not False and not self.static
        numbers = frozenset([miss.guard[0] for miss in self.misses.values() if miss.kind is int])
        numbers |= {path for path, dims in self.sizes.items() if not dims}
        return DynamicSizes(config.dynamic is True, self.sizes, inputs, config.data_symbols and self.data,
                            numbers=numbers if inputs and self.numbers else None, ones=self.ones)

    def varying(self, config: Config) -> frozenset[str] | None:
        """Return the numbers and tensors on whose value several variants have failed."""
        found = frozenset([guard[0] for guard, times in self.times.items()
                           if self.misses[guard].kind is float
                           or guard[1] in ("equals", "callable") and times >= VARYING])
        return None if config.dynamic is False or config.fullgraph and not found else found

    def wants_grad(self, code: CodeType, func: FunctionType, f_locals: dict[str, Any]) -> bool:
        """Return whether a tensor that forbade compilation before still requires grad."""
        for tree in self.training:
            found = tree.check(*namespaces(code, func, f_locals))
            if found is not None and isinstance(found[0], torch.Tensor) and found[0].requires_grad:
                return True
        return False

    def misses_are_of_sizes(self) -> bool:
        """Return whether most misses were because of a tensor's metadata."""
        return 2 * sum(n for (_, kind), n in self.times.items() if kind == "tensor") > self.times.total()

    def reasons(self) -> str:
        """Return the most frequent reasons for misses, in words."""
        return "; ".join(f"{self.misses[guard].text} [{times} times]" for guard, times in self.times.most_common(4))

    def varying_dimensions(self) -> str:
        """Return the dimensions that were seen to vary, in words."""
        return ", ".join(f"dimension {d} of {path}" for path, dims in sorted(self.sizes.items()) for d in sorted(dims))
