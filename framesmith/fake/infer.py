"""Metadata of an operator's results. A row of `RULES` computes it quickly and on symbolic sizes; otherwise the operator
runs on meta tensors, at hint sizes, and symbolic sizes are specialised unless another rule gives those of the
results."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from framesmith.fake.layout import is_filled, is_of_data
from framesmith.fake.probing import REFUSALS, at_hints, emptied, on_symbols, shapes_of, varies
from framesmith.fake.schema import is_random
from framesmith.fake.tensor import CPU, FakeTensor, new_fake
from framesmith.symbolic.node import hint_of
from framesmith.util.errors import Unsupported
from framesmith.util.tables import entry

Rule = Callable[..., Any]
RULES: dict[Any, Rule] = {}
DOUBTED = object()
"""A row's result for arguments that eager may reject, since meta kernels accept some of those."""

META = torch.device("meta")
_ELSEWHERE = frozenset((
    *(getattr(torch.ops.aten, name).default for name in (
        "_fft_c2c", "_fft_c2r", "_fft_r2c", "linalg_eig", "_linalg_svd", "nonzero_static", "ormqr", "geqrf",
        "_histogramdd_bin_edges", "_histogramdd_from_bin_cts", "huber_loss", "linalg_vector_norm",
    )),
    torch.ops.aten.histogram.bin_ct, torch.ops.aten.histogram.bins_tensor, torch.ops.aten.ldexp.Tensor,
))  # fmt: skip
"""Operators without meta kernels, or whose meta kernels differ from the CPU's in layout, dtype or (norms of one
element, before PyTorch 2.12) shape."""
_BAGS = torch.ops.aten._embedding_bag.default, torch.ops.aten._embedding_bag_forward_only.default
_PIVOTED = tuple([getattr(torch.ops.aten, name).default
                  for name in ("linalg_ldl_solve", "linalg_lu_solve", "lu_unpack")])
"""Operators that exchange rows by 1-based indices, for which zero is invalid."""
_LARGEST = 1 << 28


def rule(*funcs: Any) -> Callable[[Rule], Rule]:
    """Register a row: called with the operator's arguments, it returns fakes without aliases, or NotImplemented to
    defer to the meta kernel."""
    return entry(RULES, *funcs)


def doubted(func: Any, doubt: Callable[..., bool]) -> None:
    """Check with eager arguments that it may reject."""
    row = RULES[func]
    RULES[func] = lambda *args, **kwargs: DOUBTED if doubt(*args, **kwargs) else row(*args, **kwargs)


def infer(func: Any, args: tuple, kwargs: dict) -> Any:
    """Return the results of `func` as fakes without aliases: one, or a tuple. Errors are eager's."""
    # Of the operands: statistics that a batch norm has not saved are empty, too.
    if func.namespace != "aten" or not any(map(_is_presently_empty, args[:2])) or is_random(func) or _aliases(func):
        return _inferred(func, args, kwargs)
    # rules and meta kernels take what eager refuses of tensors without elements
    present = at_hints(args, kwargs)
    if present[0] is args and varies(args, kwargs):  # data give a size
        return _inferred(func, args, kwargs)
    try:
        vals = _by_kernel(func, *present)
    except Exception:
        _guard_empty(args[:2])
        raise
    if vals is not NotImplemented and present[0] is args:
        return vals
    found = _inferred(func, args, kwargs)
    if vals is NotImplemented or _agree(found, vals):
        return found
    for n in [n for x in (*args, *kwargs.values()) if type(x) is FakeTensor for n in x.shape]:
        int(n)  # the results of other sizes are others
    return vals


def _inferred(func: Any, args: tuple, kwargs: dict) -> Any:
    row = RULES.get(func)
    if row is not None:
        vals = row(*args, **kwargs)
        if vals is not NotImplemented and vals is not DOUBTED:
            return vals
        if vals is DOUBTED or len({x.dtype for x in (*args, *kwargs.values()) if type(x) is FakeTensor}) > 1:
            true_error(func, args, kwargs)  # meta kernels overlook that dtypes do not go together
    vals = on_symbols(_by_kernels, infer, func, args, kwargs)
    if vals is NotImplemented:
        return _by_kernels(func, args, kwargs)
    if func.namespace == "aten" and not is_random(func) and not _aliases(func):
        _require_elements(func, args, kwargs, vals)
    return vals


def _require_elements(func: Any, args: tuple, kwargs: dict, vals: Any) -> None:
    """Require elements of operands that may have none, where eager refuses those or gives other sizes than `vals`."""
    for n, sizes, given, named in emptied(args, kwargs):
        try:
            found = _by_kernel(func, given, named)
            fits = found is NotImplemented or shapes_of(found, sizes) == shapes_of(vals, sizes)
        except REFUSALS:
            fits = False
        if not fits:
            is_filled(n)


def _agree(found: Any, vals: Any) -> bool:
    """Return whether results have the shapes of `vals` with the sizes of this capture's inputs, as far as these tell
    them."""
    rows = found if isinstance(found, (tuple, list)) else (found,)
    others = vals if isinstance(vals, (tuple, list)) else (vals,)
    return all(x.dim() == y.dim() and all(is_of_data(n) or hint_of(n) == m for n, m in zip(x.shape, y.shape))
               for x, y in zip(rows, others, strict=True) if type(x) is FakeTensor)


def _by_kernels(func: Any, args: tuple, kwargs: dict) -> Any:
    """Return the results' metadata from a kernel, at hint sizes."""
    if _is_written_in_python(func) or func in _ELSEWHERE and not any(type(x) is FakeTensor and x.device.type != "cpu"
                                                                     for x in args):
        vals = _by_kernel(func, args, kwargs)
        if vals is not NotImplemented:
            return vals
    return by_meta_kernel(func, args, kwargs)


def _trusts_indices(func: Any, args: tuple) -> bool:
    """Return whether a kernel would use index arguments for which zero may be invalid: in derivatives, where the
    operator itself has checked the real ones, in bags, where there are none, and in exchanges of rows."""
    if func in _PIVOTED:
        return True
    if func in _BAGS:
        return any(map(is_empty, args))
    return ("backward" in func.__name__ and any(is_empty(x) or type(x) is int and x == 0 for x in args)
            and any(type(x) is FakeTensor and x.dtype is torch.int64 and not is_empty(x) for x in args))


def is_empty(value: Any) -> bool:
    return type(value) is FakeTensor and any(type(n) is int and n == 0 for n in value.shape)


def _is_presently_empty(value: Any) -> bool:
    """Return whether a tensor has no elements with the sizes of this capture's inputs, as far as these tell."""
    return type(value) is FakeTensor and any(map(_is_presently_zero, value.shape))


def _is_presently_zero(n: Any) -> bool:
    return n == 0 if type(n) is int else not is_of_data(n) and hint_of(n) == 0


def _guard_empty(operands: tuple) -> None:
    """Guard that operands are empty that are so at present."""
    for value in filter(_is_presently_empty, operands):
        for n in filter(_is_presently_zero, value.shape):
            bool(n == 0)


@cache
def _is_written_in_python(func: Any) -> bool:
    """Return whether a derivative's meta kernel is Python: such kernels import the peers' modules, for seconds, at
    their first run."""
    if func.namespace != "aten" or "backward" not in func.__name__:
        return False
    table = torch._C._dispatch_dump(func.name()).splitlines()
    return any(line.startswith("Meta: registered at") and ".py" in line for line in table)


def _by_kernel(func: Any, args: tuple, kwargs: dict) -> Any:
    """Return the results' metadata from eager's own kernel, run on zeros."""
    with torch.no_grad():
        out = _on_zeros(func, args, kwargs)
    fakes = [x for x in (*args, *kwargs.values()) if type(x) is FakeTensor]
    return out if out is NotImplemented else _from_meta(out, _common_device(fakes), 0)


def _on_zeros(func: Any, args: tuple, kwargs: dict) -> Any:
    """Run the operator on real zeros of the same metadata; return NotImplemented if they would take too much memory, or
    are invalid indices."""
    if _trusts_indices(func, args):
        return NotImplemented
    budget = [_LARGEST]
    real_args = tuple([_to_real(a, budget) for a in args])
    real_kwargs = {k: _to_real(v, budget) for k, v in kwargs.items()}
    return func(*real_args, **real_kwargs) if budget[0] >= 0 else NotImplemented


def by_meta_kernel(func: Any, args: tuple, kwargs: dict) -> Any:
    found: list[FakeTensor] = []
    meta_args = tuple([_to_meta(a, found) for a in args])
    meta_kwargs = {k: _to_meta(v, found) for k, v in kwargs.items()}
    device = meta_kwargs.get("device")
    if device is None:
        device = _common_device(found)
        if not found and any(a.name == "device" for a in func._schema.arguments):
            meta_kwargs["device"] = META
    else:
        meta_kwargs["device"] = META
    meta_kwargs.pop("pin_memory", None)
    try:
        out = func(*meta_args, **meta_kwargs)
    except NotImplementedError as error:
        raise Unsupported(f"{func} has no shape rule and no meta kernel") from error
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError) as error:
        true_error(func, args, kwargs)
        raise Unsupported(f"{func} cannot be run without data ({error})") from error
    offset = found[0].storage_offset() if found else 0
    return _from_meta(out, torch.device(device), offset if func._schema.returns and _aliases(func) else 0)


def true_error(func: Any, args: tuple, kwargs: dict) -> None:
    """Run the operator on real zeros of the same metadata, so that the error raised is eager's own; return if it
    succeeds.

    Operators that are not PyTorch's own are not run: they may do anything.
    """
    if func.namespace == "aten":
        _on_zeros(func, *at_hints(args, kwargs))


def _aliases(func: Any) -> bool:
    returns = func._schema.returns
    alias = returns[0].alias_info if returns else None
    return alias is not None and not alias.is_write


def _common_device(found: list[FakeTensor]) -> torch.device:
    for fake in found:
        if fake.dim() > 0:
            return fake.device
    return found[0].device if found else CPU


def _to_meta(value: Any, found: list[FakeTensor]) -> Any:
    kind = type(value)
    if kind is FakeTensor:
        found.append(value)
        meta = value._meta
        if meta is None:
            sizes, strides = _ints(value.shape), _ints(value.stride())
            meta = value._meta = torch.empty_strided(sizes, strides, dtype=value.dtype, device=META)
        return meta
    if kind is list or kind is tuple:
        return kind([_to_meta(item, found) for item in value])
    if kind is torch.SymInt:
        return int(value)
    return value


def _ints(sizes: Any) -> list[int]:
    return [s if type(s) is int else int(s) for s in sizes]


def _from_meta(value: Any, device: torch.device, offset: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            raise Unsupported(f"a tensor of layout {value.layout}")
        return new_fake(tuple(value.shape), value.stride(), value.dtype, device, value.storage_offset() + offset)
    if isinstance(value, (tuple, list)):
        return tuple([_from_meta(item, device, offset) for item in value])
    return value


def _at_hand(device: torch.device) -> torch.device:
    """Return the device if it is available, else the CPU."""
    return device if device.type != "cuda" or torch.cuda.is_available() else CPU


def _to_real(value: Any, budget: list[int]) -> Any:
    kind = type(value)
    if kind is FakeTensor:
        sizes, strides = _ints(value.shape), _ints(value.stride())
        extent = 1 + sum((n - 1) * s for n, s in zip(sizes, strides)) if all(sizes) else 0
        budget[0] -= extent * value.dtype.itemsize
        if budget[0] < 0:
            return value
        return torch.zeros(extent, dtype=value.dtype, device=_at_hand(value.device)).as_strided(sizes, strides)
    if kind is list or kind is tuple:
        return kind([_to_real(item, budget) for item in value])
    return int(value) if kind is torch.SymInt else value
