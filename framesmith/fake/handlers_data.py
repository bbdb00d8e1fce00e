"""Recording of operators whose result, or its size, depends on a tensor's data: known only for constants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from framesmith.fake.handlers import WITHOUT_SIZES, functional, handles, known, lifted, positional, with_values
from framesmith.fake.layout import is_of_data, must_match, same_shape
from framesmith.fake.recording import Recording
from framesmith.fake.size_elements import size_in
from framesmith.fake.tensor import FakeTensor, dense, new_fake
from framesmith.graph.cse import value_key
from framesmith.symbolic.layout import decide_layout
from framesmith.symbolic.node import symint
from framesmith.util.errors import DataDependent, Unsupported

aten = torch.ops.aten


@handles(aten.item.default, aten._local_scalar_dense.default)
def item(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    """Return a size that a tensor holds as its symbol, the value of another constant, or an integer as a symbol."""
    x = args[0]
    if (size := size_in(rec, x)) is not None:
        return size
    single = rec.shape_env is not None and x.dtype in _INTEGRAL and all(type(n) is int and n == 1 for n in x.shape)
    counts = single and known(rec, x) is None
    return rec.integer(rec.inside(torch.clone, x)) if counts else needs_value(rec, func, args, kwargs)


_INTEGRAL = frozenset((torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8))


@handles(aten.is_nonzero.default, aten.equal.default)
def needs_value(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    """Compute the result of an operator on constants."""
    return with_values(rec, func, args, kwargs, "the value is known at run time only")


def at_run_time(rec: Recording, func: Any, args: tuple, kwargs: dict, most: Any,
                vals: Callable[[Any], Any]) -> Any:
    """Record an operator with a result size known only at run time: `vals(n)` returns the results' metadata for the
    size n, a new symbol of at most `most`. Raises DataDependent if the graph may have no such symbols."""
    env = rec.shape_env
    if env is None:
        raise DataDependent(f"{func} needs the tensor's data", hint=WITHOUT_SIZES)
    args, kwargs = lifted(rec, args, kwargs)
    given, named = tuple([rec.nodes(a) for a in args]), {k: rec.nodes(v) for k, v in kwargs.items()}
    if type(most) is int and not most:
        return rec.results(rec.emit(func, given, found := vals(0), named), found)
    key = func, tuple([value_key(a) for a in given]), value_key(named)
    symbol = rec.bound.get(key)
    if symbol is None:
        symbol = rec.bound[key] = env.data_symbol(0, most if type(most) is int else None, None)
    size: Any = symint(symbol, env)
    found = vals(size)
    node = rec.emit(func, given, found, named)
    node.meta["binds"] = symbol
    results = rec.results(node, found)
    several = results if type(results) is tuple else (results,)
    holder = next(x for x in several if x.dim() and getattr(x.shape[0], "node", None) is size.node)
    env.sources[symbol] = holder, 0
    return results


def _static_value(rec: Recording, x: Any) -> torch.Tensor | None:
    """Return the value of a tensor that `known` gives; None if that would fix sizes which the graph could have as
    symbols."""
    return None if rec.shape_env is not None and any(type(n) is torch.SymInt for n in x.shape) else known(rec, x)


@handles(aten.nonzero.default)
def nonzero(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    x = args[0]
    if _static_value(rec, x) is not None:
        return with_values(rec, func, args, kwargs, WITHOUT_SIZES)

    def places(n: Any) -> FakeTensor:
        return new_fake((n, x.dim()), (1, n), torch.int64, x.device)

    return at_run_time(rec, func, args, kwargs, x.numel(), places)


@handles(aten.argwhere.default)
def argwhere(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    return rec.inside(aten.nonzero.default, *args)


@handles(aten.masked_select.default)
def masked_select(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    """Record masked_select as indexing by a mask, with operands broadcast to one shape."""
    x, mask = positional(func, args, kwargs)
    if mask.dtype is not torch.bool:
        return with_values(rec, func, args, kwargs, WITHOUT_SIZES)


    def indexed() -> Any:
        a, b = torch.broadcast_tensors(x, mask)
        return a[b]

    return rec.inside(indexed)


@handles(aten.index.Tensor)
def index(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    source, indices = args
    if any(t is not None and t.dtype in _MASKS for t in indices):
        indices = _numbered(rec, source, indices)
    return functional(rec, func, (source, indices), kwargs)


_MASKS = (torch.bool, torch.uint8)


def _numbered(rec: Recording, source: Any, indices: Any) -> list:
    """Replace known masks among the indices by the numbers of their elements, one tensor a dimension, as eager does."""
    out: list = []
    for t in indices:
        if t is None or t.dtype not in _MASKS:
            out.append(t)
            continue
        if not same_shape(t.shape, source.shape[len(out):len(out) + t.dim()]):
            raise Unsupported("indexing by a mask of another shape than the tensor's")
        mask = _static_value(rec, t)
        if mask is not None:
            out.extend(rec.constant(n.contiguous()) for n in mask.nonzero().unbind(1))
        elif rec.shape_env is None:
            raise DataDependent("indexing by a mask gives a size that is known at run time only", hint=WITHOUT_SIZES)
        else:
            out.extend(n.contiguous() for n in rec.inside(_numbers_of, t))
    return out


@handles(aten.index_put.default)
def index_put(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    """Record index_put; a data-dependent number of values must equal the mask's count."""
    source, indices, values = args[:3]
    if any(t is not None and t.dtype in _MASKS for t in indices):
        _check_masks(source, indices)
        if any(map(is_of_data, values.shape)):
            args = source, _numbered(rec, source, indices), *args[2:]
    return functional(rec, func, args, kwargs)


def _check_masks(source: Any, indices: Any) -> None:
    """Raise eager's IndexError for a mask of another shape than what it indexes: the kernel would broadcast it."""
    places = [(t, j) for t in indices for j in (range(t.dim()) if t is not None and t.dtype in _MASKS else (None,))]
    for at, ((t, j), n) in enumerate(zip(places, source.shape)):
        if j is not None and not must_match((t.shape[j],), (n,)):
            raise IndexError(f"The shape of the mask {list(t.shape)} at index {j} does not match the shape of the "
                             f"indexed tensor {list(source.shape)} at index {at}")


def _numbers_of(mask: Any) -> Any:
    return mask.nonzero().unbind(1)


@handles(aten.one_hot.default)
def one_hot(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    index, classes = (*positional(func, args, kwargs), -1)[:2]
    if classes <= 0:
        raise DataDependent("one_hot without a number of classes needs the tensor's data")

    def scattered() -> Any:
        zeros = torch.zeros((*index.shape, classes), dtype=index.dtype, device=index.device)
        return zeros.scatter(-1, index.unsqueeze(-1), 1)

    return rec.inside(scattered)


@handles(aten.repeat_interleave.self_Tensor)
def repeat_interleave(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    if kwargs.get("output_size") is not None:
        return functional(rec, func, args, kwargs)
    source, given, dim = (*args, None)[:3]
    repeats = known(rec, given)
    if repeats is None and rec.shape_env is None:
        raise DataDependent("repeat_interleave by a tensor without output_size needs the tensor's data")

    def selected() -> Any:
        x, at = (source.flatten(), 0) if dim is None else (source, dim)
        return torch.index_select(x, at, indices)

    count = source.numel() if dim is None else source.shape[dim]
    if given.dim() > 1 or not decide_layout(given.numel() == 1) and not same_shape((given.numel(),), (count,)):
        raise Unsupported("repeat_interleave by repeats of another size")
    if repeats is None:
        indices = rec.inside(lambda: torch.repeat_interleave(given.expand(count)))
        return rec.inside(selected)
    if repeats.numel() == 1:
        return rec.inside(torch.repeat_interleave, source, int(repeats), dim)
    with torch._C._DisableTorchDispatch():
        indices = rec.constant(torch.repeat_interleave(repeats))
    return rec.inside(selected)


@handles(aten.repeat_interleave.Tensor)
def repeated(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    if kwargs.get("output_size") is not None:
        return functional(rec, func, args, kwargs)
    if known(rec, args[0]) is not None:
        return with_values(rec, func, args, kwargs, WITHOUT_SIZES)
    return at_run_time(rec, func, args, kwargs, None, lambda n: new_fake((n,), (1,), args[0].dtype, args[0].device))


@handles(aten._unique2.default, aten.unique_consecutive.default)
def unique(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    """Record unique of all elements; along a dimension, data must be known."""
    x = args[0]
    first = 2 if func is aten._unique2.default else 1
    inverse, counts = (*positional(func, args, kwargs)[first:first + 2], False, False)[:2]
    whole = func is aten._unique2.default or len(args) <= 3 and kwargs.get("dim") is None
    if known(rec, x) is not None or not whole:
        return with_values(rec, func, args, kwargs, WITHOUT_SIZES)

    def results(n: Any) -> tuple[FakeTensor, ...]:
        return (dense(x, (n,)), dense(x, tuple(x.shape) if inverse else (0,), torch.int64),
                dense(x, (n,) if counts else (0,), torch.int64))

    return at_run_time(rec, func, args, kwargs, x.numel(), results)


@handles(aten.is_pinned.default)
def is_pinned(rec: Recording, func: Any, args: tuple, kwargs: dict) -> bool:
    if torch.cuda.is_available():
        raise Unsupported("whether memory is pinned")
    return False
