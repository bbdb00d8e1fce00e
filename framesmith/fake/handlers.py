"""Recording of one operator call. `HANDLERS` holds a row for an operator; one without is classified by its schema."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from framesmith.fake import schema
from framesmith.fake.composites import WHOLE
from framesmith.fake.constant_eval import known_value
from framesmith.fake.custom import functionalised
from framesmith.fake.devices import refuse_devices
from framesmith.fake.dtypes import refuse_dtypes
from framesmith.fake.infer import infer, true_error
from framesmith.fake.layout import geometry, meets, meets_itself, same_shape
from framesmith.fake.recording import Recording
from framesmith.fake.tensor import FakeTensor, new_fake
from framesmith.util.errors import DataDependent, Unsupported
from framesmith.util.tables import entry

aten = torch.ops.aten
Handler = Callable[[Recording, Any, tuple, dict], Any]

HANDLERS: dict[Any, Handler] = {}
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd


def handles(*funcs: Any) -> Callable[[Handler], Handler]:
    """Register a row of HANDLERS."""
    return entry(HANDLERS, *funcs)


CONCRETE_QUERIES = {aten.size.default: lambda x: x.shape, aten.stride.default: lambda x: x.stride()}
"""Queries by which PyTorch's C++ reads a tensor of symbolic sizes where it accepts only plain integers."""


@handles(*CONCRETE_QUERIES)
def concrete_geometry(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    """Return the sizes or strides as integers, specialising the graph to them."""
    return [int(n) for n in CONCRETE_QUERIES[func](args[0])]


def classify(func: Any) -> Handler:
    """Return the handler that an operator's schema calls for."""
    if func.namespace == "aten" and func in WHOLE:
        return whole
    if schema.is_data_dependent(func):
        return data_dependent
    if schema.is_composite(func):
        return composite
    if schema.changes_metadata(func):
        return _reshaping(func)
    if schema.writes(func):
        return _writing(func)
    if schema.is_view(func):
        return view
    return functional


def functional(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    """Record a functional operator."""
    if args and type(args[0]) in _NUMBERS and _of_numbers(func, args, kwargs):
        return _constants(rec, func(*args, **kwargs))
    args, kwargs = lifted(rec, args, kwargs)
    if kwargs and kwargs.get("pin_memory"):
        raise Unsupported("pinned memory")
    if rec.on_cuda:
        refuse_devices(func, args, kwargs)
    vals = infer(func, args, kwargs)
    refuse_dtypes(func, args, kwargs, vals)
    node_args = tuple([rec.nodes(a) for a in args])
    node = rec.emit(func, node_args, vals, {k: rec.nodes(v) for k, v in kwargs.items()} if kwargs else kwargs)
    return rec.results(node, vals)


_NUMBERS = (int, float, bool, complex)


def _of_numbers(func: Any, args: tuple, kwargs: dict) -> bool:
    """Return whether all of an operator's tensor arguments are Python numbers, as in `torch.add(4, 3.3)`."""
    return _TENSOR.isSubtypeOf(func._schema.arguments[0].type) and not any(isinstance(a, torch.Tensor)
                                                                           for a in (*args, *kwargs.values()))


_TENSOR = torch._C.TensorType.get()


def view(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    """Record a view: the result aliases the first argument."""
    args = positional(func, args, kwargs)
    source = args[0]
    if not isinstance(source, FakeTensor):
        if isinstance(source, complex):  # a number that C++ has wrapped as a tensor
            source = torch.tensor(source, dtype=torch.complex128)
        source = rec.constant(source)
        args = (source, *args[1:])
    val = infer(func, args, {})
    if not isinstance(val, FakeTensor):
        return functional(rec, func, args, {})
    return rec.view(source, func, tuple([_plain(a) for a in args[1:]]), val)


def composite(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    """Record the operators that eager's own composite kernel calls.

    Autocast applies to these, too, unless it has applied to the composite or an enclosing one.
    """
    if not rec.autocast:
        return rec.inside(func._op_dk, _COMPOSITE, *args, **kwargs)
    devices, rec.autocast = rec.autocast, () if autocasts(func, rec.autocast) else rec.autocast
    for device in rec.autocast:
        torch.set_autocast_enabled(device, True)
    try:
        return rec.inside(func._op_dk, _COMPOSITE, *args, **kwargs)
    finally:
        for device in rec.autocast:
            torch.set_autocast_enabled(device, False)
        rec.autocast = devices


def whole(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    """Record a composite whole, unless autocast casts within it."""
    within = rec.autocast and not autocasts(func, rec.autocast)
    return composite(rec, func, args, kwargs) if within else functional(rec, func, args, kwargs)


_AUTOCAST = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}


def autocasts(func: Any, devices: tuple[str, ...]) -> bool:
    """Return whether autocast on one of the devices has a policy for the operator itself; operators that it calls are
    then not cast."""
    return any(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), _AUTOCAST[device]) for device in devices)


def refused(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    raise Unsupported(f"{func} cannot be captured")


def data_dependent(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    return with_values(rec, func, args, kwargs, WITHOUT_SIZES)


WITHOUT_SIZES = "the size of the result is known at run time only: torch.where or masked_fill keep the shape"


def known(rec: Recording, value: Any) -> torch.Tensor | None:
    """Return the value of a tensor that depends only on constants, or on inputs that may be assumed; else None."""
    return known_value(rec, value, assuming=True) if isinstance(value, FakeTensor) else value


def with_values(rec: Recording, func: Any, args: tuple, kwargs: dict, hint: str) -> Any:
    """Run `func` for real if its tensors depend only on constants; its results are new constants."""
    values = []
    for arg in (*args, *kwargs.values()):
        value = known(rec, arg) if isinstance(arg, torch.Tensor) else arg
        several = isinstance(arg, (list, tuple)) and any(isinstance(a, torch.Tensor) for a in arg)
        if several or value is None and arg is not None or schema.writes(func):
            raise DataDependent(f"{func} needs the tensor's data", hint=hint)
        values.append(value)
    out = func(*values[:len(args)], **dict(zip(kwargs, values[len(args):])))
    return _constants(rec, out)


def _constants(rec: Recording, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return functional(rec, aten.clone.default, (rec.constant(value),), {})
    return tuple([_constants(rec, v) for v in value]) if isinstance(value, (tuple, list)) else value


def _writing(func: Any) -> Handler:
    """Record the functional form of an in-place or `out=` operator, then writes into the aliases of the arguments."""
    form = schema.functional_form(func)
    if form is None:
        return refused if func.namespace == "aten" else functionalised
    names = schema.out_arguments(func)
    positions = schema.written_positions(func)
    if names and not positions:
        return lambda rec, _, args, kwargs: _with_out(rec, func, form, names, args, kwargs)
    if len(positions) == 1 and not names and len(func._schema.returns) <= 1:
        return lambda rec, _, args, kwargs: _in_place(rec, func, form, positions[0], args, kwargs)
    return refused


def _reshaping(func: Any) -> Handler:
    """Record `x.t_()` and similar operators: the tensor becomes the result of the operator without its underscore."""
    form = schema.functional_form(func)
    if form is None:
        return refused

    def handler(rec: Recording, _: Any, args: tuple, kwargs: dict) -> Any:
        become(rec, args[0], rec.inside(form, *args, **kwargs))
        args[0]._alias.reshaped = True
        return args[0]

    return handler


_RESIZED_AS = _reshaping(aten.resize_as_.default)


@handles(aten.resize_as_.default)
def resized_as(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    """Record `resize_as_`: a tensor that has the sizes of the template keeps its strides."""
    target, template = args
    if target.shape == template.shape and kwargs.get("memory_format") is None:
        return target
    return _RESIZED_AS(rec, func, args, kwargs)


def become(rec: Recording, target: FakeTensor, other: FakeTensor) -> None:
    """Give `target` the metadata and the alias of `other`; earlier nodes keep the old metadata."""
    alias = target._alias
    if alias.storage.input is not None and alias.parent is None:
        raise Unsupported("the shape of an input is changed in place")
    old = new_fake(tuple(target.shape), target.stride(), target.dtype, target.device, target.storage_offset())
    old._alias = alias
    if alias.val is target:
        alias.val = old
    for node in rec.graph.nodes:
        if node.meta.get("val") is target:
            node.meta["val"] = old
    with torch._C._DisableTorchDispatch():
        target.data = other
    target._alias, target._meta = other._alias, None


def _in_place(rec: Recording, func: Any, form: Any, position: int, args: tuple, kwargs: dict) -> Any:
    target = args[position]
    others = [x for i, arg in enumerate((*args, *kwargs.values())) if i != position for x in _fakes(arg)]
    if isinstance(target, (list, tuple)) and all(isinstance(t, FakeTensor) for t in target):
        for i, one in enumerate(target):  # one after the other: what a later one reads, an earlier one has written
            keep_apart(func, args, kwargs, one, [*others, *target[:i]])
        for one, value in zip(target, rec.inside(form, *args, **kwargs)):
            store(rec, one, value, func, args, kwargs)
        return None
    if not isinstance(target, FakeTensor):
        raise Unsupported(f"{func} writes a tensor that is not an input of the graph")
    keep_apart(func, args, kwargs, target, others)
    args, kwargs = lifted(rec, args, kwargs)
    store(rec, target, rec.inside(form, *args, **kwargs), func, args, kwargs)
    return target


def _with_out(rec: Recording, func: Any, form: Any, names: tuple, args: tuple, kwargs: dict) -> Any:
    kwargs = dict(kwargs)
    outs = [kwargs.pop(name) for name in names]
    others = [x for arg in (*args, *kwargs.values()) for x in _fakes(arg)]
    for i, out in enumerate(outs):
        keep_apart(func, args, {**kwargs, **dict(zip(names, outs))}, out, [*others, *outs[:i]])
    results = rec.inside(form, *args, **kwargs)
    if isinstance(results, FakeTensor) and outs[0].dtype != results.dtype and schema.has_dtype(form) and (
            kwargs.get("dtype") is None):  # eager accumulates in the dtype of `out`
        true_error(func, args, {**kwargs, **dict(zip(names, outs))})
        results = rec.inside(form, *args, **{**kwargs, "dtype": outs[0].dtype})
    for out, result in zip(outs, (results,) if isinstance(results, FakeTensor) else results):
        if torch.Tag.nondeterministic_seeded in func.tags and out.numel() and (
                out.dtype != result.dtype or out.stride() != result.stride()):
            raise Unsupported("random numbers drawn into `out=` of another dtype or layout")
        if not same_shape(out.shape, result.shape):
            if out.numel() or out.dtype != result.dtype:
                raise Unsupported("an `out=` tensor of another shape than the result")
            become(rec, out, result)
            continue
        if out.dtype != result.dtype:
            true_error(func, args, {**kwargs, **dict(zip(names, outs))})  # many operators do not cast what they write
        store(rec, out, result, func, args, kwargs)
    return outs[0] if len(outs) == 1 else tuple(outs)


def store(rec: Recording, target: FakeTensor, value: FakeTensor, func: Any, args: tuple, kwargs: dict) -> None:
    """Write `value` into `target`, cast to its dtype; for another shape, or a write into expanded memory, raise eager's
    error."""
    if not same_shape(value.shape, target.shape):
        true_error(func, args, kwargs)
        raise Unsupported(f"{func} with a result of another shape than its target's")
    if meets_itself(target):
        true_error(func, args, kwargs)
        raise Unsupported(f"{func} writes a tensor whose elements share memory")
    if value.dtype != target.dtype:
        if not torch.can_cast(value.dtype, target.dtype) or target.dtype.is_complex and not value.dtype.is_complex:
            true_error(func, args, kwargs)
        value = rec.dispatch(aten._to_copy.default, (value,), {"dtype": target.dtype})
    rec.write(target._alias, rec.nodes(value))


def keep_apart(func: Any, args: tuple, kwargs: dict, written: FakeTensor, read: list[FakeTensor]) -> None:
    """Refuse an operator that writes `written` while it reads `read`, if they partially overlap."""
    if any(reads_written(func, x, written) for x in read):
        true_error(func, args, kwargs)
        raise Unsupported(f"{func} reads memory that it writes")


def _fakes(value: Any) -> list[FakeTensor]:
    if isinstance(value, (list, tuple)):
        return [x for x in value if isinstance(x, FakeTensor)]
    return [value] if isinstance(value, FakeTensor) else []


def reads_written(func: Any, read: FakeTensor, written: FakeTensor) -> bool:
    """Return whether an in-place operator may read elements that it has written: eager refuses, or its result depends
    on its loop's order."""
    if read is written and torch.Tag.pointwise in func.tags or read._alias.storage is not written._alias.storage:
        return False
    a, b = geometry(read), geometry(written)
    if a == b:
        return torch.Tag.pointwise not in func.tags and func is not aten.copy_.default
    return meets(a, b)


def lifted(rec: Recording, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """Replace real tensors among the arguments by constants of the graph."""
    for arg in args:
        kind = type(arg)
        if kind is not FakeTensor and (isinstance(arg, torch.Tensor) or kind is list):
            args = tuple([_lift(rec, a) for a in args])
            break
    for arg in kwargs.values():
        if isinstance(arg, torch.Tensor) and type(arg) is not FakeTensor:
            kwargs = {k: _lift(rec, v) for k, v in kwargs.items()}
            break
    return args, kwargs


def _lift(rec: Recording, value: Any) -> Any:
    if type(value) is FakeTensor:
        return value
    if isinstance(value, torch.Tensor):
        return rec.constant(value)
    if type(value) is list:
        return [_lift(rec, v) for v in value]
    return value


def positional(func: Any, args: tuple, kwargs: dict) -> tuple:
    """Return all arguments in the schema's order, up to the last one given; defaults fill the gaps."""
    if not kwargs:
        return args
    filled = list(args)
    rest = dict(kwargs)
    for argument in func._schema.arguments[len(args) :]:
        if not rest:
            break
        filled.append(rest.pop(argument.name) if argument.name in rest else argument.default_value)
    return tuple(filled)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, (list, tuple, torch.Size)) else value
