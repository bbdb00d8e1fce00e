"""Each rule for sizes against the kernels, on PyTorch's own samples."""

from collections import Counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from framesmith.fake.size_rules import SIZES
from tests.op_db import op_db

DTYPES = torch.float32, torch.int64, torch.complex64
ROWS, ROW = torch.randn(3, 5).sort().values, torch.arange(1.0, 6)
UNSAMPLED = (
    lambda: torch.dot(ROW, ROW), lambda: torch.vdot(ROW, ROW), lambda: torch.special.zeta(ROWS.abs() + 1, ROW),
    lambda: torch.searchsorted(ROWS, ROWS[:, :2]), lambda: torch.isin(ROWS, 3.0), lambda: torch.isin(3.0, ROWS),
)
"""Calls of operators that no sample reaches."""


class Compared(TorchDispatchMode):
    """Holds the rule of each operator that runs against the sizes of its results."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[Any] = Counter()
        self.wrong: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func in SIZES:
            said = SIZES[func](*args, **(kwargs or {}))
            if said is not NotImplemented:
                self.seen[func] += 1
                results = list(map(tuple, said)) if isinstance(out, (tuple, list)) else [tuple(said)]
                real = out if isinstance(out, (tuple, list)) else [out]
                if results != [tuple(x.shape) for x in real]:
                    self.wrong.append((func, [getattr(a, "shape", a) for a in args], results))
        return out


def test_rules_say_the_sizes_of_results() -> None:
    mode = Compared()
    for op in op_db:
        dtype = next((d for d in DTYPES if d in op.supported_dtypes("cpu")), None)
        if dtype is None:
            continue
        for sample in op.sample_inputs("cpu", dtype, requires_grad=op.supports_autograd and dtype is torch.float32):
            with mode:
                try:
                    out = op.op(sample.input, *sample.args, **sample.kwargs)
                    if isinstance(out, torch.Tensor) and out.requires_grad:
                        out.sum().backward()
                except Exception:  # it is not to run under a mode, or on this device
                    continue
    with mode:
        for call in UNSAMPLED:
            call()
    assert not mode.wrong
    assert not [f for f in SIZES if f not in mode.seen]
