"""Custom operators that write to their arguments: recorded as functions of copies."""

from __future__ import annotations

from typing import Any

import torch

from framesmith.fake import schema
from framesmith.fake.infer import infer
from framesmith.fake.layout import preserved_strides
from framesmith.fake.recording import Recording
from framesmith.fake.tensor import FakeTensor, new_fake
from framesmith.util.errors import Unsupported
from framesmith.util.serialize import serializable


class Functional:
    """`func`, which writes its arguments, as a function: it writes copies, and returns them after its results."""

    __slots__ = ("func", "keywords", "positions")

    def __init__(self, func: Any) -> None:
        self.func = func
        self.positions = schema.written_positions(func)
        self.keywords = schema.out_arguments(func)

    @property
    def __name__(self) -> str:
        return f"functional_{self.func.__name__}"

    def __repr__(self) -> str:
        return f"functional({self.func})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _named, tuple(self.func.name().split("::")) + (self.func._overloadname,)

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        given = list(args)
        copies = []
        for i in self.positions:
            if isinstance(given[i], torch.Tensor):
                given[i] = given[i].clone()
                copies.append(given[i])
        for name in self.keywords:
            if isinstance(kwargs.get(name), torch.Tensor):
                kwargs[name] = kwargs[name].clone()
                copies.append(kwargs[name])
        return *results_of(self.func(*given, **kwargs)), *copies


@serializable
def _named(namespace: str, name: str, overload: str) -> Functional:
    packet = getattr(getattr(torch.ops, namespace), name.split(".")[0])
    return Functional(getattr(packet, overload))


_functional: dict[Any, Functional] = {}


def results_of(out: Any) -> tuple[Any, ...]:
    """Return an operator's results as a tuple."""
    return () if out is None else tuple(out) if isinstance(out, (tuple, list)) else (out,)


def functionalised(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    """Record a writing operator without a functional form."""
    target = _functional.setdefault(func, Functional(func))
    written = [args[i] for i in target.positions if i < len(args)] + [kwargs[n] for n in target.keywords if n in kwargs]
    written = [w for w in written if w is not None]
    tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, FakeTensor)]
    storages = [a._alias.storage for a in tensors]
    if not all(isinstance(w, FakeTensor) for w in written) or any(w.requires_grad for w in written):
        raise Unsupported(f"{func} writes an object that is no tensor of the graph")
    if any(storages.count(w._alias.storage) > 1 for w in written):
        raise Unsupported(f"{func} writes to memory that it is also given otherwise")
    if any(a.alias_info is not None for a in func._schema.returns):
        raise Unsupported(f"{func} returns an argument that it writes")
    made = results_of(infer(func, args, kwargs))
    copies = [new_fake(tuple(w.shape), preserved_strides(w), w.dtype, w.device) for w in written]
    vals = (*made, *copies)
    node = rec.emit(target, tuple([rec.nodes(a) for a in args]), vals, {k: rec.nodes(v) for k, v in kwargs.items()})
    rec.results(node, vals)
    for w, copied in zip(written, copies):
        rec.write(w._alias, copied._alias.node)
    return None if not made else made[0] if len(func._schema.returns) == 1 else made
