"""Compares what a compiled model returns with what eager returns: containers, strides, types and values."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

TOLERANCE = 1e-5
_PLAIN = (int, float, str, bool, type(None), torch.dtype, torch.device, torch.Size)


def _attributes(value: Any) -> dict[str, Any] | None:
    """The attributes of a library's object (a cache, say); None for any other value."""
    library = type(value).__module__.startswith("transformers.") and not isinstance(value, torch.nn.Module | type)
    return dict(sorted(vars(value).items())) if library and hasattr(value, "__dict__") else None


def leaves(value: Any, path: str = "") -> list[tuple[str, Any]]:
    """The tensors and plain values in nested containers and in the attributes of library objects (a cache, say), with
    their paths."""
    if isinstance(value, dict):
        return [leaf for k, v in value.items() for leaf in leaves(v, f"{path}.{k}")]
    if isinstance(value, (list, tuple)):
        return [leaf for i, v in enumerate(value) for leaf in leaves(v, f"{path}[{i}]")]
    if (inside := _attributes(value)) is not None and not path.endswith("config"):
        return [leaf for k, v in inside.items() for leaf in leaves(v, f"{path}.{k}")]
    return [(path, value)]


def containers(value: Any) -> Any:
    """The types of nested containers."""
    if isinstance(value, dict):
        return type(value), {k: containers(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value), [containers(v) for v in value]
    return type(value)


def error(ours: Tensor, eager: Tensor) -> float:
    """The largest difference over the largest value; infinite where one of both is finite and the other not, or NaN in
    one alone."""
    finite = torch.isfinite(eager)
    if not torch.equal(finite, torch.isfinite(ours)) or not torch.equal(ours[~finite].nan_to_num(),
                                                                        eager[~finite].nan_to_num()):
        return float("inf")
    if not finite.any():
        return 0.0
    wide = torch.complex128 if eager.is_complex() else torch.float64
    difference = (ours[finite].to(wide) - eager[finite].to(wide)).abs().max()
    return float(difference / eager[finite].to(wide).abs().max().clamp_min(1e-30))


def metadata(value: Tensor) -> dict[str, Any]:
    """What two equal tensors agree in, but for their values."""
    return {
        "type": type(value), "shape": value.shape, "dtype": value.dtype, "device": value.device,
        "stride": value.stride(),
        "requires_grad": value.requires_grad,
    }  # fmt: skip


def assert_same(ours: Any, eager: Any) -> None:
    """Same containers, same metadata, floating-point values within `TOLERANCE`, all others equal."""
    assert containers(ours) == containers(eager)
    mine, theirs = leaves(ours), leaves(eager)
    assert [path for path, _ in mine] == [path for path, _ in theirs]
    for (path, a), (_, b) in zip(mine, theirs, strict=True):
        if isinstance(b, _PLAIN):
            assert type(a) is type(b) and a == b, f"{path} is {a!r}, not {b!r}"
        if not isinstance(b, Tensor):
            continue
        wrong = {k: (v, metadata(a)[k]) for k, v in metadata(b).items() if metadata(a)[k] != v}
        assert not wrong, f"{path}: (eager's, ours) {wrong}"
        if b.dtype.is_floating_point or b.dtype.is_complex:
            assert error(a, b) <= TOLERANCE, f"{path} differs by {error(a, b):.1e}"
        else:
            assert torch.equal(a, b), f"{path} differs"
