"""Runs before a service is ready: they warm it up, and show that joining and padding requests changes no result."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import numpy as np

from framesmith.serve.interface import Interface
from framesmith.serve.padding import Padding, Sizes
from framesmith.util.errors import PackageError

Run = Callable[[Sequence[np.ndarray]], Awaitable[list[np.ndarray]]]
TOLERANCE = {"float16": 1e-2, "float32": 1e-3, "float64": 1e-6}
"""By dtype: what a difference may be, of the greatest element. Other sizes are summed in another order; a row that sees
another one, or padding, is off by far more."""


def example(interface: Interface, sizes: Sizes, seed: int = 0) -> list[np.ndarray]:
    """Inputs that any model takes: integers are 0 and 1, so that they are in range as indices, and as masks hide a part
    of what they mask."""
    random = np.random.default_rng(seed)
    out = []
    for tensor in interface.inputs:
        shape = [sizes.get(size, 1) if isinstance(size, str) else size for size in tensor.shape]
        if tensor.dtype.startswith("float"):
            out.append(random.standard_normal(shape).astype(tensor.dtype))
            continue
        numbers = (random.random(shape) < .75).astype(tensor.dtype)
        numbers[..., :1] = 1
        out.append(numbers)
    return out


def sizes_for(padding: Padding, given: Sizes, rows: int) -> dict[str, int]:
    """Sizes of a run: those that are given, and the least of others; the batch has `rows` rows."""
    return {name: padding.bucket(name, given.get(name, rows if name == padding.batch else least))
            for name, (least, _) in padding.interface.dimensions.items()}


async def check_joining(padding: Padding, run: Run, given: Sizes) -> None:
    """Compare requests that are run by themselves with the same ones joined: two of one size, and for each dimension
    that is padded, two of different sizes. Raises `PackageError` where they differ."""
    if padding.batch is None:
        return
    sizes = {**sizes_for(padding, given, 1), padding.batch: 1}
    if found := await _changes(padding, run, sizes, sizes):
        raise PackageError(f"requests cannot be joined along {padding.batch}: rows depend on each other (serve it with "
                           f"--no-batching); {found}")
    for dimension in padding.padded:
        least, _ = padding.interface.dimensions[dimension]
        size = next((n for n in range(max(3, least), max(3, least) + 64) if padding.bucket(dimension, n) > n), None)
        if size is None:
            raise PackageError(f"no size of {dimension} is padded")
        if found := await _changes(padding, run, {**sizes, dimension: size},
                                   {**sizes, dimension: padding.bucket(dimension, size)}):
            raise PackageError(f"{dimension} cannot be padded: results differ from those without padding (does a mask "
                               f"need another --fill?); {found}")


async def _changes(padding: Padding, run: Run, *sizes: Sizes) -> str:
    """Describe the first difference between requests of these sizes joined and by themselves; "" if there is none."""
    requests = [(example(padding.interface, s, seed), s) for seed, s in enumerate(sizes)]
    alone = [padding.split(await run(padding.join([request])), [request[1]])[0] for request in requests]
    joined = padding.split(await run(padding.join(requests)), sizes)
    return next(filter(None, (difference(padding.interface, one, other)
                              for one, other in zip(alone, joined, strict=True))), "")


def difference(interface: Interface, expected: Sequence[np.ndarray], found: Sequence[np.ndarray]) -> str:
    """Describe the first difference beyond rounding; "" if there is none."""
    for tensor, one, other in zip(interface.outputs, expected, found, strict=True):
        if one.shape != other.shape:
            return f"output {tensor.name} has shape {list(other.shape)}, not {list(one.shape)}"
        if not one.size:
            continue
        numbers, others = one.astype(np.float64), other.astype(np.float64)
        scale = float(np.abs(np.nan_to_num(numbers, posinf=0, neginf=0)).max())
        allowed = TOLERANCE.get(tensor.dtype, 0) * scale
        wrong = ~np.isclose(numbers, others, rtol=0, atol=allowed, equal_nan=True)
        if wrong.any():
            place = tuple(map(int, np.argwhere(wrong)[0]))
            return (f"output {tensor.name} is {others[place]:.6g}, not {numbers[place]:.6g}, at {list(place)} "
                    f"({int(wrong.sum())} of {wrong.size} elements differ by more than {allowed:.3g})")
    return ""
