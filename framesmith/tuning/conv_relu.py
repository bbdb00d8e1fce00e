"""The decision whether a convolution with its bias and ReLU is one call of cuDNN.

As a rule it is: the call takes as long as the convolution alone. For some sizes, though, cuDNN's heuristics find no
engine for all three but one that takes sixteen times as long, and only a measurement tells which sizes these are. So
each is run when its graph is compiled, which builds the plan that its first call needs anyway; one that is suspiciously
slow is compared with the convolution alone. Remembered by sizes, chip and version.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, MutableMapping
from dataclasses import astuple, dataclass
from math import prod

import torch

from framesmith.lower.contractions.fuse_conv_relu import Layer
from framesmith.lower.contractions.template_heuristics import COPY, RATES

aten = torch.ops.aten
RUNS = 3
# times what its operations or bytes take, and microseconds, up to which a call is as it should be
SUSPECT, SHORT = 20.0, 50.0
LAUNCH = 1_000_000  # cycles of the device, in which a call is surely launched


@dataclass(frozen=True, slots=True)
class Rectified:
    """Answers for one device. `known`: texts by text, which may outlive the process."""

    device: torch.device
    known: MutableMapping[str, str]

    def __call__(self, layer: Layer) -> bool:
        cudnn = torch.backends.cudnn
        how = cudnn.version(), cudnn.benchmark, cudnn.deterministic
        key = f"{torch.cuda.get_device_name(self.device)} {how} {astuple(layer)}"
        found = self.known.get(key)
        if found is None:
            if torch.cuda.is_current_stream_capturing():
                return True
            try:
                found = self.known[key] = "one" if self._is_apt(layer) else "two"
            except RuntimeError:  # no memory for it now, say
                return True
        return found == "one"

    def _is_apt(self, layer: Layer) -> bool:
        geometry = layer.stride, layer.padding, layer.dilation
        with torch.inference_mode(), torch._C._DisableAutocast(), torch.cuda.device(self.device):
            image, weight = (self._channels_last(sizes, layer.dtype) for sizes in (layer.image, layer.weight))
            bias = torch.zeros(layer.weight[0], dtype=layer.dtype, device=self.device)
            call = functools.partial(aten.cudnn_convolution_relu, image, weight, bias, *geometry, 1)
            if layer.added:
                residual = torch.zeros_like(call())
                call = functools.partial(aten.cudnn_convolution_add_relu, image, weight, residual, 1.0, bias, *geometry,
                                         1)
            whole, results = microseconds(call)
            if not is_suspicious(layer, whole, results):
                return True
            alone, _ = microseconds(lambda: aten.convolution(image, weight, None, *geometry, False, (0, 0), 1))
        # a kernel that adds and clamps
        return whole <= alone + (3 if layer.added else 2) * layer.dtype.itemsize * results / COPY

    def _channels_last(self, sizes: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(sizes, dtype=dtype, device=self.device, memory_format=torch.channels_last).zero_()


def is_suspicious(layer: Layer, microseconds: float, results: int) -> bool:
    """Return whether a layer takes much longer than its operations and its bytes do."""
    operations = 2 * results * prod(layer.weight[1:])
    moved = layer.dtype.itemsize * ((2 if layer.added else 1) * results + prod(layer.image) + prod(layer.weight))
    return microseconds > max(SHORT, SUSPECT * max(operations / RATES[layer.dtype.itemsize][0], moved / COPY))


def microseconds(call: Callable[[], torch.Tensor]) -> tuple[float, int]:
    """Return the microseconds of the fastest of a few calls after the first, and the number of elements of a result.

    The device is kept busy while a call is launched, which can take longer than its kernels.
    """
    results = call().numel()
    found = []
    for _ in range(RUNS):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(LAUNCH)
        first.record()
        call()
        last.record()
        last.synchronize()
        found.append(1e3 * first.elapsed_time(last))
    return min(found), results
