"""Choice of the kernel that computes a contraction: measured once per shape and machine, then remembered.

The candidates: `own` (the template of `geometry`, weight packed, epilogue fused), `mkldnn` (oneDNN with the weight
reordered), `mkldnn_plain` (with the weight as it is) and `aten` (what eager calls). They run in turn, each a few times;
large shapes are measured on a part of their rows and columns, since a kernel's rate settles long before. Other programs
on the machine only ever add time, so the least of many short runs is the best estimate.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch

from framesmith import _C
from framesmith.config import Config
from framesmith.lower.contractions.geometry import (
    HOST,
    VectorUnit,
    contract,
    linear_geometry,
    pack,
    pack_groups,
    window_geometry,
)
from framesmith.lower.contractions.pack_linear import Request

MEASURED_FLOPS = 8e7  # shapes above are measured on fewer columns
PANELS = 384  # columns are cut to a multiple: whole panels of every tile, and as many for each of two threads
ROWS = 2048  # rows are cut to as many, or to those of MEASURED_FLOPS: each thread has many tiles
REPEATS = 10
BEHIND = 3.0
# Kinds of training, whose own kernels are called as the library's are: nothing is packed ahead of time, nothing fused.
CALLED = frozenset({
    "product", "attention forward", "attention backward", "convolution", "convolution images", "convolution weights",
})
SURE = 3  # rounds before which nothing is decided: in one of them another program may have had the processor
SECONDS = 0.03  # of measuring a shape, after which no round begins
BRIEFLY = 0.002  # the same for kinds that a graph has many shapes of, and whose candidates lie far apart
# Below this much work the call's own cost decides, and the template has none.
TRIVIAL_FLOPS = 2e7

Candidate = Callable[[], Any]


def _is_onednns(dtype: torch.dtype) -> bool:
    """Return whether oneDNN's own kernels take `dtype` on this processor."""
    return dtype is not torch.bfloat16 or torch.ops.mkldnn._is_mkldnn_bf16_supported()


def _linear_candidates(request: Request) -> dict[str, Candidate]:
    m, k, n = request.shape
    enough = int(MEASURED_FLOPS / (2 * m * k))
    if n > enough * 1.5:
        n = min(n, max(enough // PANELS, 1) * PANELS)
    x, weight, bias = (torch.ones(size, dtype=request.dtype) for size in ((m, k), (n, k), (n,)))
    candidates: dict[str, Candidate] = {"aten": lambda: torch.nn.functional.linear(x, weight, bias)}
    if _is_onednns(request.dtype):
        reordered = torch.ops.mkldnn._reorder_linear_weight(weight, m)
        candidates["mkldnn"] = lambda: torch.ops.mkldnn._linear_pointwise(x, reordered, bias, "none", [], "")
        candidates["mkldnn_plain"] = lambda: torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    if request.dtype is torch.float32:
        geometry = linear_geometry(m, k, n, (m, n))
        packed = pack(weight.t(), geometry.columns, geometry.lane)
        candidates["own"] = lambda: contract(x, packed, geometry)
    return candidates


def _sizes(request: Request) -> tuple[int, ...]:
    """Return groups, images, channels, height and width, results, kernel, stride, padding and dilation of a
    convolution."""
    return request.shape if request.kind == "grouped" else (1, *request.shape)


def _convolution_candidates(request: Request) -> dict[str, Candidate]:
    groups, images, c, h, w, o, kh, kw, *rest = _sizes(request)
    stride, padding, dilation = ((rest[i], rest[i + 1]) for i in (0, 2, 4))
    x = torch.ones(images, c, h, w, dtype=request.dtype).to(memory_format=torch.channels_last)
    weight = torch.ones(o, c // groups, kh, kw, dtype=request.dtype)
    eager = torch.nn.functional.conv2d
    candidates: dict[str, Candidate] = {"aten": lambda: eager(x, weight, None, stride, padding, dilation, groups)}
    if groups == 1 and _is_onednns(request.dtype):
        packed = torch.ops.mkldnn._reorder_convolution_weight(weight, padding, stride, dilation, 1, list(x.shape))
        candidates["mkldnn"] = lambda: torch.ops.mkldnn._convolution_pointwise(
            x, packed, None, padding, stride, dilation, 1, "none", [], ""
        )
    if request.dtype is torch.float32:
        padded = torch.nn.functional.pad(x.permute(0, 2, 3, 1),
                                         (0, 0, padding[1], padding[1], padding[0], padding[0])).contiguous()
        geometry = window_geometry(tuple(padded.shape), o, (kh, kw), stride, dilation, groups)  # type: ignore[arg-type]
        own = pack_groups(weight.permute(2, 3, 1, 0).reshape(-1, o), groups, geometry.columns, geometry.lane)
        candidates["own"] = lambda: contract(padded, own, geometry)
    return candidates


def _linear_work(request: Request) -> int:
    return 2 * prod(request.shape)


def _convolution_work(request: Request) -> int:
    groups, images, c, h, w, o, kh, kw, *rest = _sizes(request)
    return 2 * images * c * h * w * o * kh * kw // (rest[0] * rest[1]) // groups


def numbers(*shape: int) -> torch.Tensor:
    """Return a float32 operand of random numbers, from a generator of its own: measurements do not change the
    program's."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(prod(shape)), dtype=torch.float32)


# kind -> its candidates; kind -> the operations that it takes (a kind without is measured whatever its size)
CANDIDATES: dict[str, Callable[[Request], dict[str, Candidate]]] = {
    "linear": _linear_candidates, **dict.fromkeys(("conv", "grouped"), _convolution_candidates),
}  # fmt: skip
WORK: dict[str, Callable[[Request], int]] = {
    "linear": _linear_work, **dict.fromkeys(("conv", "grouped"), _convolution_work),
}  # fmt: skip

# kind -> whether the template is known to run near the machine's peak there, so that a library could win nothing: not
# measured
FEW_THREADS = 8  # up to here a convolution has pieces enough for all of them
NEAR_PEAK: dict[str, Callable[[Request], bool]] = {
    "conv": lambda request: request.shape[4] >= HOST.lanes and torch.get_num_threads() <= FEW_THREADS,
    "depthwise": lambda request: True,
}

# kind -> the candidate that is far ahead whatever the machine, where one is
KNOWN: dict[str, Callable[[Request], str | None]] = {}


def measure(request: Request) -> dict[str, float]:
    """Return the seconds of each candidate: the best of a few interleaved runs. A candidate that is far slower in
    several runs is not run again; a single candidate is not run at all."""
    with torch.inference_mode(), torch._C._DisableAutocast():
        with torch.device("cpu"):
            candidates = CANDIDATES[request.kind](request)
        if len(candidates) == 1:
            return dict.fromkeys(candidates, 0.0)
        best = dict.fromkeys(candidates, float("inf"))
        for run in candidates.values():  # the first run warms up
            run()
        end = time.perf_counter() + (BRIEFLY if request.kind in CALLED else SECONDS)
        for repeat in range(REPEATS):
            for name, run in candidates.items():
                if repeat >= SURE and best[name] > BEHIND * min(best.values()):
                    continue
                _C.give_way()  # not in the midst of it
                start = time.perf_counter()
                run()
                best[name] = min(best[name], time.perf_counter() - start)
            if repeat + 1 >= SURE and time.perf_counter() > end:
                break
    return best


# The library's kernel must beat the template by this much: it cannot take the epilogue, which costs a pass over the
# result, and a call of it costs microseconds of its own.
MARGIN = {"own": 0.85}
# Kinds with several candidates that need no weight in another layout; the others then take what eager calls.
UNPACKED = {"linear": frozenset({"aten", "mkldnn_plain"}), **dict.fromkeys(CALLED, frozenset({"aten", "own"}))}


def _is_mostly_padding(request: Request) -> bool:
    """Return whether the results of a group fill only a small part of each vector."""
    return request.kind == "grouped" and request.shape[5] // request.shape[0] < HOST.lanes


def _with_enough_rows(request: Request) -> Request:
    """Return the request whose measurement answers this one: a product of many rows is measured on some of them."""
    if request.kind != "linear":
        return request
    m, k, n = request.shape
    return replace(request, shape=(min(m, max(ROWS, int(MEASURED_FLOPS / (2 * k * n)))), k, n))


@dataclass(frozen=True, slots=True)
class OwnKernels:
    """A chooser that always picks our own kernel if there is one: code for vectors of any `unit` that calls no
    library."""

    unit: VectorUnit

    def __call__(self, request: Request) -> str:
        return "own" if request.dtype is torch.float32 else "aten"


class Chooser:
    """A chooser that answers requests from `memory` (a persistent mapping of the runtime's cache) or by measuring.

    `measured` holds the chooser's own measurements: request key -> seconds by candidate.
    """

    unit = HOST

    def __init__(self, config: Config, memory: MutableMapping[str, str]) -> None:
        self.config, self.memory = config, memory
        self.measured: dict[str, Mapping[str, float]] = {}
        self.prefix = f"{torch.__version__} {torch.backends.cpu.get_cpu_capability()} t{torch.get_num_threads()} "

    def __call__(self, request: Request) -> str:
        if _is_mostly_padding(request) or request.dtype not in (torch.float32, torch.bfloat16):
            return "aten"
        if not self.config.library_choice:  # what eager calls
            return "aten"
        known = KNOWN[request.kind](request) if request.kind in KNOWN else None
        if known is not None:
            return known
        if not self.config.packing:
            among = UNPACKED.get(request.kind)
            return "aten" if among is None else self._fastest(request, among)
        work = WORK.get(request.kind)
        if request.dtype is torch.float32 and work is not None and work(request) < TRIVIAL_FLOPS:
            return "own"
        if request.dtype is torch.float32 and request.kind in NEAR_PEAK and NEAR_PEAK[request.kind](request):
            return "own"
        return self._fastest(request, None)

    def _fastest(self, request: Request, among: frozenset[str] | None) -> str:
        """Return the fastest of the candidates (of those in `among`, if given), from memory or by measuring."""
        request = _with_enough_rows(request)
        key = self.prefix + request.key + ("" if among is None else " unpacked")
        choice = self.memory.get(key)
        if choice is None:
            seconds = self.measured[key] = measure(request)
            names = [name for name in seconds if among is None or name in among]
            margin = {} if request.kind in CALLED else MARGIN
            choice = min(names, key=lambda name: seconds[name] * margin.get(name, 1.0))
            self.memory[key] = choice
        return choice
