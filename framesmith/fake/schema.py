"""Facts from an operator's schema: the arguments that it writes, whether it returns views, and its functional form."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload

aten = torch.ops.aten

# Lists that have a number for each dimension of an image, where the schema does not say how many: their places, and the
# weight's.
_BY_WEIGHT: dict[OpOverload, tuple[tuple[int, ...], int]] = {
    aten.convolution.default: ((3, 4, 5, 7), 1),
    aten.convolution_backward.default: ((4, 5, 6, 8), 2),
}

# Where the functional form is not the name without its underscore.
_FUNCTIONAL: dict[OpOverload, OpOverload] = {
    aten.normal_.default: aten.normal_functional.default,
    aten.__ilshift__.Scalar: aten.__lshift__.Scalar,
    aten.__ilshift__.Tensor: aten.__lshift__.Tensor,
    aten.__irshift__.Scalar: aten.__rshift__.Scalar,
    aten.__irshift__.Tensor: aten.__rshift__.Tensor,
    aten._native_batch_norm_legit.default: aten._native_batch_norm_legit_functional.default,
}


def writes(func: OpOverload) -> bool:
    """Return whether the operator writes one of its arguments."""
    return bool(func._schema.is_mutable)


def is_view(func: OpOverload) -> bool:
    """Return whether an output aliases an argument that is not written."""
    return any(a.alias_info is not None and not a.alias_info.is_write for a in func._schema.returns)


def is_composite(func: OpOverload) -> bool:
    """Return whether the operator is composed of other operators, for every device."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")


def is_data_dependent(func: OpOverload) -> bool:
    tags = func.tags
    return torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags


def is_random(func: OpOverload) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags


def draws(func: OpOverload, args: tuple, kwargs: dict) -> bool:
    """Return whether a call draws random numbers. One whose only use for them is a dropout of probability 0 does
    not."""
    if not is_random(func):
        return False
    for at, argument in enumerate(func._schema.arguments):
        if argument.name == "dropout_p":
            given = args[at] if at < len(args) else kwargs.get("dropout_p", argument.default_value)
            return not isinstance(given, (int, float)) or given != 0
    return True


def changes_metadata(func: OpOverload) -> bool:
    """Return whether the operator changes the shape of its argument, as `x.t_()` does."""
    return torch.Tag.inplace_view in func.tags


def out_arguments(func: OpOverload) -> tuple[str, ...]:
    """Names of the keyword-only written arguments of an `out=` overload."""
    return tuple(a.name for a in func._schema.arguments if a.kwarg_only and _written(a))


def has_dtype(func: OpOverload) -> bool:
    """Return whether the caller of an operator may say the dtype of its result."""
    return any(a.name == "dtype" for a in func._schema.arguments)


@cache
def _lists(func: OpOverload) -> tuple[tuple[int, str, int], ...]:
    """Place, name and length of each argument that is a list of a known length; one number stands for that many equal
    ones."""
    found = [(at, a.name, n) for at, a in enumerate(func._schema.arguments) if (n := getattr(a, "N", None) or 0) > 1]
    return tuple(row for row in found if "int" in str(func._schema.arguments[row[0]].real_type).lower())


def with_full_lists(func: Any, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """Return the arguments of a node, with lists of one number for several dimensions in their full length."""
    if type(func) is not OpOverload:
        return args, kwargs
    by_weight = _BY_WEIGHT.get(func)
    if by_weight is not None:
        rank = args[by_weight[1]].meta["val"].dim() - 2
        return tuple([_full(a, rank) if at in by_weight[0] else a for at, a in enumerate(args)]), kwargs
    for at, name, length in _lists(func):
        if at < len(args):
            args = (*args[:at], _full(args[at], length), *args[at + 1 :])
        elif name in kwargs:
            kwargs = {**kwargs, name: _full(kwargs[name], length)}
    return args, kwargs


def _full(value: Any, length: int) -> Any:
    return list(value) * length if isinstance(value, (list, tuple)) and len(value) == 1 else value


def written_positions(func: OpOverload) -> tuple[int, ...]:
    """Positions of the written positional arguments."""
    return tuple(i for i, a in enumerate(func._schema.arguments) if not a.kwarg_only and _written(a))


def functional_form(func: OpOverload) -> OpOverload | None:
    """Return the overload that computes the same and returns it instead of writing; None if there is none."""
    if func in _FUNCTIONAL:
        return _FUNCTIONAL[func]
    schema = func._schema
    packet_name = schema.name.split("::")[1]
    name = packet_name[:-1] if packet_name.endswith("_") else packet_name
    packet = getattr(getattr(torch.ops, func.namespace), name, None)
    if packet is None:
        return None
    wanted = _signature(schema, skip=out_arguments(func))
    for overload in packet.overloads():
        candidate = getattr(packet, overload)
        if not candidate._schema.is_mutable and _signature(candidate._schema) == wanted:
            return candidate
    # bernoulli_.float(self, p=0.5) and bernoulli.p(self, p) differ in a default only, as others may in a name
    types = [t for _, t in wanted]
    for overload in packet.overloads():
        candidate = getattr(packet, overload)
        if not candidate._schema.is_mutable and [t for _, t in _signature(candidate._schema)] == types:
            return candidate
    return None


@cache
def out_variant(func: OpOverload) -> tuple[str, tuple[str, ...]] | None:
    """Return the `out=` form of an operator that really writes into given memory: its overload's name and the names of
    its out arguments. Generated forms call the functional one and copy; they do not count."""
    wanted = _signature(func._schema)
    for name in func.overloadpacket.overloads():
        overload = getattr(func.overloadpacket, name)
        written = () if torch.Tag.generated in overload.tags else out_arguments(overload)
        if written and _signature(overload._schema, skip=written) == wanted and len(written) == len(
                func._schema.returns):
            return name, written
    return None


def _written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _signature(schema: Any, skip: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    return [(a.name, str(a.type)) for a in schema.arguments if a.name not in skip]
