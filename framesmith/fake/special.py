"""Operators whose recording the schema does not tell: rows of `HANDLERS`."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from framesmith.fake.handlers import (
    WITHOUT_SIZES,
    classify,
    composite,
    functional,
    handles,
    keep_apart,
    known,
    positional,
    store,
    view,
    with_values,
)
from framesmith.fake.infer import is_empty
from framesmith.fake.layout import (
    dense_order,
    geometry,
    infer_size,
    is_dense,
    meets_itself,
    same_shape,
    suggested_format,
    view_strides,
)
from framesmith.fake.tensor import FakeTensor, dense, is_differentiable, new_fake
from framesmith.graph.traversal import ancestors, last_node
from framesmith.prims.promotion import result_dtype
from framesmith.util.errors import DataDependent, Unsupported

if TYPE_CHECKING:
    from framesmith.fake.recorder import Recorder

aten = torch.ops.aten


def same_alias(fake: FakeTensor) -> FakeTensor:
    """Another tensor object over the very same alias, as `detach` gives."""
    other = new_fake(tuple(fake.shape), fake.stride(), fake.dtype, fake.device, fake.storage_offset())
    other._alias = fake._alias
    return other


@handles(aten.detach.default, aten.alias.default)
def detach(rec: Recorder, func: Any, args: tuple, kwargs: dict) -> Any:
    source = args[0]
    if rec.follows_grad and (func is aten.alias.default or not _is_fresh(rec, source)):  # gradients may end here
        return view(rec, func, args, kwargs)
    return same_alias(source if isinstance(source, FakeTensor) else rec.constant(source))


def _is_fresh(rec: Recorder, x: Any) -> bool:
    """Return whether the torch call that is being recorded has just made a tensor: torch's factories detach what they
    give."""
    if not isinstance(x, FakeTensor) or x._alias.parent is not None:
        return not isinstance(x, FakeTensor)
    node = x._alias.node
    return node.op == "call_function" and "turn" not in node.meta and node is last_node(rec.graph)


@handles(aten.detach_.default)
def detach_(rec: Recorder, func: Any, args: tuple, kwargs: dict) -> Any:
    if rec.follows_grad and any(n.meta.get("requires_grad") for n in ancestors([rec.nodes(args[0])])):
        raise Unsupported("detach_ where tensors require grad", hint="use detach()")
    return args[0]


@handles(aten.logical_not_.default, aten.logical_and_.default, aten.logical_or_.default, aten.logical_xor_.default)
def logical_(rec: Recorder, func: Any, args: tuple, kwargs: dict) -> Any:
    """Autograd knows nothing of these: what they write keeps the history that it had."""
    if rec.keeps_history and rec.keeps_history(args[0]):
        raise Unsupported(f"{func} on a tensor that requires grad", hint="make a new tensor")
    return classify(func)(rec, func, args, kwargs)


@handles(aten.lift_fresh.default, aten.lift.default, aten.lift_fresh_copy.default)
def lift_fresh(rec: Recorder, func: Any, args: tuple, kwargs: dict) -> Any:
    """A tensor that the program makes from Python data: a new one at each call of the graph."""
    source = args[0]
    if isinstance(source, FakeTensor):
        return source
    constant = rec.constant(source)
    return constant if source.dim() == 0 else functional(rec, aten.clone.default, (constant,), {})


@handles(aten.item.default, aten._local_scalar_dense.default, aten.is_nonzero.default, aten.equal.default)
def needs_value(rec: Recorder, func: Any, args: tuple, kwargs: dict) -> Any:
    """Known only of what depends on constants."""
    return with_values(rec, func, args, kwargs, "the value is known at run time only")


@handles(aten.index.Tensor)
def index(rec: Recorder, func: Any, args: tuple, kwargs: dict) -> Any:
    source, indices = args
    if any(t is not None and t.dtype in _MASKS for t in indices):
        indices = _numbered(rec, source, indices)
    return functional(rec, func, (source, indices), kwargs)


_MASKS = (torch.bool, torch.uint8)


def _numbered(rec: Recorder, source: Any, indices: Any) -> list:
    """Known masks among the indices as the numbers of their elements, one tensor a dimension, as eager counts them."""
    out: list = []
    for t in indices:
        if t is None or t.dtype not in _MASKS:
            out.append(t)
            continue
        mask = known(rec, t)
        if mask is None or mask.shape != tuple(source.shape[len(out): len(out) + mask.dim()]):
            raise DataDependent("indexing by a mask gives a size that is known at run time only", hint=WITHOUT_SIZES)
        out.extend(rec.constant(n.contiguous()) for n in mask.nonzero().unbind(1))
    return out


@handles(aten.dropout.default)
def dropout(rec: Recorder, func: Any, args: tuple, kwargs: dict) -> Any:
    source, p, train = positional(func, args, kwargs)
    if p == 0 or not train and 0 <= p <= 1:
        return source
    return composite(rec, func, args, kwargs)


@handles(aten.to.dtype)
def to_dtype(rec: Recorder, func: Any, args: tuple, kwargs: dict) -> Any:
    given = positional(func, args, kwargs)
    left_out: tuple[Any, ...] = (False, False, None)
    source, dtype, _, copied, memory_format = (*given, *left_out[len(given) - 2 :])
    if not isinstance(source, FakeTensor):
        return composite(rec, func, args, kwargs)
    if dtype is source.dtype and not copied and memory_format in (None, torch.preserve_format,
                                                                  suggested_format(source)):
        return source
    options = {"dtype": dtype} if memory_format is None else {"dtype": dtype, "memory_format": memory_format}
    return functional(rec, aten._to_copy.default, (source,), options)


@handles(aten.to.device)
def to_device(rec: Recorder, func: Any, args: tuple, kwargs: dict) -> Any:
    """The device may be one that the program names without an index."""
    rec.on_current_device |= torch.device(positional(func, args, kwargs)[1]).type == "cuda"
    return composite(rec, func, args, kwargs)


@handles(aten._to_copy.default)
def to_copy(rec: Recorder, func: Any, args: tuple, kwargs: dict) -> Any:
    """Also of a Python number, which a function transform has cast itself."""
    if type(args[0]) in (bool, int, float):
        args = (rec.number(args[0], _NATURAL[type(args[0])]),)
    return functional(rec, func, args, kwargs)


_NATURAL = {bool: torch.bool, int: torch.int64, float: torch.float64}


@handles(aten.reshape.default)
def reshape(rec: Recorder, func: Any, args: tuple, kwargs: dict) -> Any:
    """A view where the strides allow it, else one node that copies."""
    source, wanted = positional(func, args, kwargs)
    if not isinstance(source, FakeTensor):
        return composite(rec, func, args, kwargs)
    shape = infer_size(source.shape, wanted)
    if shape is None:
        return composite(rec, func, args, kwargs)
    if source.is_contiguous() or view_strides(source.shape, source.stride(), shape) is not None:
        return view(rec, aten.view.default, (source, shape), {})
    return functional(rec, func, (source, list(shape)), {})


@handles(aten.as_strided.default)
def as_strided(rec: Recorder, func: Any, args: tuple, kwargs: dict) -> Any:
    """Speaks of the storage: recorded as a view of its base, detached if it is."""
    source, size, stride, offset = (*positional(func, args, kwargs), None)[:4]
    if not isinstance(source, FakeTensor):  # asked whether a view is a leaf, autograd makes it again
        raise Unsupported("a view of memory that was written by what has no gradient")
    offset = source.storage_offset() if offset is None else offset
    base, detached = source._alias, []
    while base.parent is not None:
        if base.func is aten.detach.default:
            detached.append(base)
        base = base.parent
    if not is_dense(base.val.shape, base.val.stride()):
        raise Unsupported("as_strided of a tensor whose storage has gaps")
    part = source.numel() != base.val.numel() or meets_itself(source)
    if part and rec.keeps_history and rec.keeps_history(source):
        # what is not in the part has no gradient
        raise Unsupported("as_strided of a part of a tensor that requires grad")
    if base.storage.input is not None:
        first = base.val.storage_offset()
        if first and rec.follows_grad:  # what a backward keeps of an input may begin elsewhere
            raise Unsupported("as_strided of an input that begins within its storage, with grad mode on")
        last = offset + sum((n - 1) * s for n, s in zip(size, stride))
        if all(size) and not first <= offset <= last < first + base.val.numel():
            raise Unsupported("as_strided beyond the elements of an input")
        rec.placed.append(base.val)
    whole = base.val
    if detached and geometry(detached[0].val) == geometry(whole):
        whole = detached[0].val
    elif detached:  # of a part
        whole = view(rec, aten.detach.default, (whole,), {})
        whole._alias.uncounted = any(x.uncounted for x in detached)
    return view(rec, func, (whole, size, stride, offset), {})


@handles(aten.embedding_bag.padding_idx, aten.embedding_bag.default, aten._embedding_bag.default)
def embedding_bag(rec: Recorder, func: Any, args: tuple, kwargs: dict) -> Any:
    """Without autograd, whether the weight asks for a gradient does not matter."""
    given = positional(func, args, kwargs)
    if func is not aten._embedding_bag.default:
        contiguous = {"memory_format": torch.contiguous_format}
        rows = [x if x.is_contiguous() else functional(rec, aten.clone.default, (x,), contiguous) for x in given[1:3]]
        given = (given[0], *rows, *given[3:])
    defaults = (False, 0, False, None, False, None)
    filled: tuple = (*given, *defaults[len(given) - 3 :])
    padding = -1 if filled[8] is None else filled[8]
    if func is aten.embedding_bag.padding_idx and filled[8] is not None:
        count = filled[0].shape[0]
        if not -count <= padding < count:
            raise RuntimeError(f"padding_idx must be within the number of embeddings, {-count} through {count - 1} but "
                               f"got {padding}")
        padding %= count
    return functional(rec, aten._embedding_bag_forward_only.default, (*filled[:8], padding), {})


@handles(aten.copy_.default)
def copy_(rec: Recorder, func: Any, args: tuple, kwargs: dict) -> Any:
    """Of another tensor, or of a view of the same memory that does not meet what is written."""
    target, source = args[0], args[1]
    if isinstance(source, FakeTensor):
        keep_apart(func, args, kwargs, target, [source])
    return _copied(rec, target, source)


def _copied(rec: Recorder, target: FakeTensor, source: Any) -> FakeTensor:
    """The value is the source itself where nothing is stretched, cast or laid out anew, and no history goes on."""
    if not isinstance(source, FakeTensor):
        source = rec.constant(source)
    if source.device != target.device:
        source = functional(rec, aten._to_copy.default, (source,), {"device": target.device})
    same = source.dtype == target.dtype and same_shape(source.shape,
                                                       target.shape) and source.stride() == target.stride()
    same = same and not (rec.keeps_history and rec.keeps_history(target))
    value = source if same else functional(rec, aten.copy.default, (target, source), {})
    store(rec, target, value, aten.copy_.default, (target, source), {})
    return target


@handles(aten.fill_.Tensor, aten.fill_.Scalar, aten.zero_.default)
def fill_(rec: Recorder, func: Any, args: tuple, kwargs: dict) -> Any:
    """`full` of the target's metadata: its old value is not read."""
    target = args[0]
    value = args[1] if len(args) > 1 else 0
    if isinstance(value, torch.Tensor):
        if isinstance(value, FakeTensor):
            if rec.keeps_history and rec.keeps_history(value) and not is_differentiable(target.dtype):
                raise Unsupported("integers are filled with a number that requires grad, as eager says of them then",
                                  hint="fill them with number.detach()")
            return _copied(rec, target, value)  # read before anything is written
        value = value.item()
    val = dense(target, tuple(target.shape))
    options = {"dtype": target.dtype, "device": target.device}
    node = rec.emit(aten.full.default, (list(target.shape), value), val, options)
    store(rec, target, rec.own(val, node), func, args, kwargs)
    return target


@handles(aten.split.Tensor, aten.unsafe_split.Tensor)
def split(rec: Recorder, func: Any, args: tuple, kwargs: dict) -> Any:
    source, size, dim = (*positional(func, args, kwargs), 0)[:3]
    total = source.shape[dim]
    if size == 0:
        return _several(func, [_slice(rec, source, dim, 0, total)])
    return _several(func, [_slice(rec, source, dim, start, min(start + size, total))
                           for start in range(0, max(total, 1), size)])


@handles(aten.split_with_sizes.default, aten.unsafe_split_with_sizes.default)
def split_with_sizes(rec: Recorder, func: Any, args: tuple, kwargs: dict) -> Any:
    source, sizes, dim = (*positional(func, args, kwargs), 0)[:3]
    parts, start = [], 0
    for size in sizes:
        parts.append(_slice(rec, source, dim, start, start + size))
        start = start + size
    if start != source.shape[dim]:
        raise RuntimeError(
            f"split_with_sizes expects split_sizes to sum exactly to {source.shape[dim]} "
            f"(input tensor's size at dimension {dim}), but got split_sizes={list(sizes)}"
        )
    return _several(func, parts)


@handles(aten.unbind.int)
def unbind(rec: Recorder, func: Any, args: tuple, kwargs: dict) -> Any:
    source, dim = (*positional(func, args, kwargs), 0)[:2]
    return _several(func, [view(rec, aten.select.int, (source, dim, i), {}) for i in range(source.shape[dim])])


def _several(func: Any, views: list[FakeTensor]) -> list[FakeTensor]:
    """Views that autograd lets nobody write to, but for those of `unsafe_split`."""
    for x in [] if func.name().startswith("aten::unsafe") else views:
        x._alias.several = True
        x._alias.storage.several |= x._alias.grad
    return views


def _slice(rec: Recorder, source: FakeTensor, dim: int, start: Any, end: Any) -> Any:
    return view(rec, aten.slice.Tensor, (source, dim, start, end), {})


@handles(aten._efficientzerotensor.default)
def zero_tensor(rec: Recorder, func: Any, args: tuple, kwargs: dict) -> Any:
    """Record the missing tangent of forward-mode differentiation as plain zeros, since nothing but torch may see a
    tensor without memory."""
    options = {"dtype": kwargs.get("dtype") or torch.get_default_dtype(), "device": kwargs.get("device")}
    return functional(rec, aten.full.default, (list(args[0]), 0), options)


@handles(aten.is_pinned.default)
def is_pinned(rec: Recorder, func: Any, args: tuple, kwargs: dict) -> bool:
    if torch.cuda.is_available():
        raise Unsupported("whether memory is pinned")
    return False


@handles(aten.cat.default)
def cat(rec: Recorder, func: Any, args: tuple, kwargs: dict) -> Any:
    """Tensors of shape [0] count for nothing in eager, whatever their rank, but for their gradients; what is left alone
    is a copy."""
    tensors, dim = (*positional(func, args, kwargs), 0)[:2]
    if len(tensors) > 1 and not all(isinstance(t, FakeTensor) for t in tensors):
        tensors = [t if isinstance(t, FakeTensor) else rec.constant(t) for t in tensors]
    kept = [t for t in tensors if t.requires_grad or not (t.dim() == 1 and type(t.shape[0]) is int and t.shape[0] == 0)]
    if not kept or len(kept) == len(tensors):
        return functional(rec, func, (list(tensors), dim), {})
    dtype = result_dtype(*tensors)
    kept = [t if t.dtype is dtype else functional(rec, aten._to_copy.default, (t,), {"dtype": dtype}) for t in kept]
    if len(kept) == 1:
        kept[0].size(dim)  # a wrong dimension is an error all the same
        return functional(rec, aten.clone.default, (kept[0],), {"memory_format": torch.contiguous_format})
    return functional(rec, func, (kept, dim), {})


@handles(aten.batch_norm.default)
def batch_norm(rec: Recorder, func: Any, args: tuple, kwargs: dict) -> Any:
    """In training, the running statistics are written: recorded as the functional form and two writes. Eager normalises
    nothing of an empty tensor, whose kernels would divide by zero, and writes nothing."""
    x, weight, bias, mean, var, training, momentum, eps, _ = positional(func, args, kwargs)
    if isinstance(x, FakeTensor) and is_empty(x):
        return composite(rec, func, args, kwargs)
    if not training or (mean is None) is not (var is None):  # one alone is eager's error
        return functional(rec, func, args, kwargs)
    if mean is None:
        form = aten._native_batch_norm_legit.no_stats
        return functional(rec, form, (x, weight, bias, True, momentum, eps), {})[0]
    return native_batch_norm(rec, func, args, kwargs)[0]


@handles(aten.native_batch_norm.default, aten._native_batch_norm_legit.default)
def native_batch_norm(rec: Recorder, func: Any, args: tuple, kwargs: dict) -> Any:
    x, weight, bias, mean, var, training, momentum, eps, *_ = positional(func, args, kwargs)
    if not training or mean is None or var is None:
        return functional(rec, aten.native_batch_norm.default, (x, weight, bias, mean, var, training, momentum, eps),
                          {})
    form = aten._native_batch_norm_legit_functional.default
    out = functional(rec, form, (x, weight, bias, mean, var, True, momentum, eps), {})
    for running, new in ((mean, out[3]), (var, out[4])):
        store(rec, running, new, func, args, kwargs)
    return out[:3]


@handles(aten.one_hot.default)
def one_hot(rec: Recorder, func: Any, args: tuple, kwargs: dict) -> Any:
    index, classes = (*positional(func, args, kwargs), -1)[:2]
    if classes <= 0:
        raise DataDependent("one_hot without a number of classes needs the tensor's data")

    def scattered() -> Any:
        zeros = torch.zeros((*index.shape, classes), dtype=index.dtype, device=index.device)
        return zeros.scatter(-1, index.unsqueeze(-1), 1)

    return rec.inside(scattered)


@handles(aten.repeat_interleave.self_Tensor)
def repeat_interleave(rec: Recorder, func: Any, args: tuple, kwargs: dict) -> Any:
    if kwargs.get("output_size") is not None:
        return functional(rec, func, args, kwargs)
    source, repeats, dim = (*args, None)[:3]
    repeats = known(rec, repeats)
    if repeats is None:
        raise DataDependent("repeat_interleave by a tensor without output_size needs the tensor's data")

    def selected() -> Any:
        x, at = (source.flatten(), 0) if dim is None else (source, dim)
        return torch.index_select(x, at, indices)

    count = source.numel() if dim is None else source.shape[dim]
    if repeats.numel() not in (1, count):
        raise Unsupported("repeat_interleave by repeats of another size")
    with torch._C._DisableTorchDispatch():
        indices = rec.constant(torch.repeat_interleave(repeats.expand(count)))
    return rec.inside(selected)


@handles(aten.bernoulli_.float)
def bernoulli_(rec: Recorder, func: Any, args: tuple, kwargs: dict) -> Any:
    """Its functional form has no default probability, and draws for a contiguous tensor."""
    target, p = (*positional(func, args, {}), 0.5)[:2]
    outwards = dense_order(target.shape, [target.stride()])
    if outwards == sorted(outwards) or not _draws_as_in_memory():
        drawn = functional(rec, aten.bernoulli.p, (target, p), kwargs)
    else:
        back = [outwards.index(dim) for dim in range(len(outwards))]
        drawn = rec.inside(lambda: torch.ops.aten.bernoulli.p(target.permute(outwards), p, **kwargs).permute(back))
    store(rec, target, drawn, func, args, kwargs)
    return target


@cache
def _draws_as_in_memory() -> bool:
    """Return whether `bernoulli_` goes through a tensor in the order of its memory: so it is unless MKL draws (on one
    vendor's processors)."""
    with torch._C._DisableTorchDispatch():
        columns, rows = (
            torch.empty_strided((8, 8), strides).bernoulli_(0.5, generator=torch.Generator().manual_seed(0))
            for strides in ((1, 8), (8, 1))
        )
        return torch.equal(columns.t(), rows)


@handles(aten.rrelu_with_noise.default)
def rrelu_with_noise(rec: Recorder, func: Any, args: tuple, kwargs: dict) -> Any:
    """In training the slopes drawn are written to `noise`."""
    given = positional(func, args, kwargs)
    filled: tuple = (*given[:5], *(0.125, 1 / 3, False)[len(given) - 2 :])
    x, noise, lower, upper, training = filled
    if not training:
        return functional(rec, aten.leaky_relu.default, (x, (lower + upper) / 2), {})
    out, drawn = functional(rec, aten.rrelu_with_noise_functional.default, (x, noise, lower, upper, True), {})
    store(rec, noise, drawn, func, args, kwargs)
    return out


@handles(aten.rrelu_with_noise_.default)
def rrelu_with_noise_(rec: Recorder, func: Any, args: tuple, kwargs: dict) -> Any:
    """Write what the form that writes `noise` alone gives."""
    store(rec, args[0], rrelu_with_noise(rec, func, args, kwargs), func, args, kwargs)
    return args[0]


@handles(aten.polygamma_.default)
def polygamma_(rec: Recorder, func: Any, args: tuple, kwargs: dict) -> Any:
    """Write the functional form, whose first argument is the order."""
    x, order = positional(func, args, kwargs)
    store(rec, x, functional(rec, aten.polygamma.default, (order, x), {}), func, args, kwargs)
    return x


_CONJUGATED = {aten.dot.default: (True, True), aten.vdot.default: (False, True)}
"""Conjugate operands for which eager gives a conjugate view of a product of others."""


@handles(*_CONJUGATED)
def dot(rec: Recorder, func: Any, args: tuple, kwargs: dict) -> Any:
    """Record a product of conjugates as the conjugate of a product."""
    x, y = positional(func, args, kwargs)
    if any(type(v) is not FakeTensor for v in (x, y)) or (x.is_conj(), y.is_conj()) != _CONJUGATED[func]:
        return functional(rec, func, args, kwargs)
    return rec.inside(lambda: torch.dot(x.conj() if x.is_conj() else x, y.conj()).conj())


@handles(aten.fill_diagonal_.default)
def fill_diagonal_(rec: Recorder, func: Any, args: tuple, kwargs: dict) -> Any:
    target, value = args[0], args[1]
    if target.dim() != 2 or len(args) > 2:
        raise DataDependent("fill_diagonal_ of more than two dimensions or with wrap")
    diagonal = view(rec, aten.diagonal.default, (target,), {})
    fill_(rec, aten.fill_.Scalar, (diagonal, value), {})
    return target
