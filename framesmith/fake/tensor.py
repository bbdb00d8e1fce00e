"""A tensor without storage: sizes, strides, dtype and device as eager would give them, and the alias that it reads.

Invariant: a FakeTensor's own metadata never changes after creation; writes to it change the value that its alias reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import torch
from torch.fx import Node

from framesmith.fake.wrappers import is_wrapper
from framesmith.symbolic.env import ShapeEnv
from framesmith.symbolic.expr import Rel, and_, as_expr, eq, ge, ne, or_
from framesmith.symbolic.layout import contiguous_strides, layout_holds
from framesmith.symbolic.node import env_of, expr_of, symbool, symint
from framesmith.util.errors import DataDependent, Unsupported

_make_wrapper = torch.Tensor._make_wrapper_subclass
CPU = torch.device("cpu")


class Dispatcher(Protocol):
    """A fake tensor's recorder, as its calls of operators see it."""

    def dispatch(self, func: Any, args: tuple, kwargs: dict) -> Any: ...

    def elements(self, x: FakeTensor) -> list[Any]: ...


class Storage:
    """The storage that aliases share. `version` counts the writes; `input` is the placeholder whose storage it is, if
    any; `several`: one call made several views of it in grad mode, which autograd refuses to use once the storage is
    written. `counted`: the version counter of its base has counted a write. `copy_of`: assumptions on sizes under which
    its base is a copy of another tensor; `copied`: those under which another is a copy of it."""

    __slots__ = ("version", "input", "shared", "recorder", "several", "counted", "copy_of", "copied")

    def __init__(self, recorder: Dispatcher, input: Node | None = None) -> None:
        self.version = 0
        self.input = input
        self.shared = self.several = self.counted = False
        self.copy_of: list[bool | torch.SymBool] = []
        self.copied: list[bool | torch.SymBool] = []
        self.recorder = recorder


class Alias:
    """One view of a storage: `node` is its value at `version`, valid while that is the storage's version.

    The base of a storage has no parent, and its node is always current. Any other alias is `func(parent, *args)`.
    `grad`: the grad mode in which it was made. `several`: one call made it and others. `uncounted`: it is the `.data`
    of its parent, whose version counter does not count writes through it. `reshaped`: it is no view in autograd but its
    parent, whose shape was changed in place.
    """

    __slots__ = ("storage", "parent", "func", "args", "node", "version", "val", "grad", "several", "uncounted",
                 "reshaped")

    def __init__(self, storage: Storage, node: Node, val: FakeTensor, parent: Alias | None = None, func: Any = None,
                 args: tuple = ()) -> None:
        self.storage = storage
        self.parent = parent
        self.func = func
        self.args = args
        self.node = node
        self.version = storage.version
        self.val = val
        self.grad = torch.is_grad_enabled()
        self.several = self.uncounted = self.reshaped = False

    @property
    def tensor(self) -> Alias:
        """The alias that it was before its shape was changed in place."""
        return self if self.parent is None or not self.reshaped else self.parent.tensor

    @property
    def root(self) -> Alias:
        """The base of the storage."""
        alias = self
        while alias.parent is not None:
            alias = alias.parent
        return alias


class FakeTensor(torch.Tensor):
    """A tensor without storage, created only by a Recorder, which records every torch call on it."""

    _alias: Alias
    _meta: torch.Tensor | None = None
    _is_param = False

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if any(map(is_wrapper, types)):
            return NotImplemented
        return _recorder_of(args).dispatch(func, args, kwargs or {})

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"FakeTensor({list(self.shape)}, stride={self.stride()}, dtype={self.dtype}, device='{self.device}')"

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("a FakeTensor has no data to pickle")

    def contiguous(self, memory_format: torch.memory_format = torch.contiguous_format) -> torch.Tensor:
        """Return the tensor itself if it is contiguous, else a copy. For sizes that may be 0 or 1, the other ones
        decide."""
        if memory_format is not torch.contiguous_format or env_of(*self.shape) is None:
            return super().contiguous(memory_format=memory_format)
        with collect_layout_assumptions(self) as answers:
            gaps = not_row_major(self)
            if gaps is None and is_row_major(self):
                return self
        return copied(self, self.clone(memory_format=memory_format), answers if gaps is None else [gaps])

    def tolist(self) -> Any:
        """Return the elements as symbols, for a wrapper class that reads those of its parts."""
        return self._alias.storage.recorder.elements(self)

    def untyped_storage(self) -> Any:
        """Return an object with the size of the storage, and nothing else of a storage."""
        return Extent(self)


class Extent:
    """The size of the storage of a fake: classes of tensors ask for it where they wrap one."""

    __slots__ = ("of",)

    def __init__(self, of: FakeTensor) -> None:
        self.of = of

    def size(self) -> Any:
        """Return the bytes from the first element to the last."""
        return self.of.numel() * self.of.itemsize

    def __getattr__(self, name: str) -> Any:
        raise Unsupported("Tensor.untyped_storage cannot be captured")


def _without_data(name: str, reason: str, error: type[Unsupported]) -> Any:
    def method(self: FakeTensor, *args: Any, **kwargs: Any) -> Any:
        raise error(reason)

    method.__name__ = name
    return method


for _name in ("numpy", "__array__"):
    setattr(FakeTensor, _name, _without_data(_name, f"Tensor.{_name} needs the tensor's data", DataDependent))
for _name in ("data_ptr", "storage", "__dlpack__", "backward", "share_memory_", "__deepcopy__"):
    setattr(FakeTensor, _name, _without_data(_name, f"Tensor.{_name} cannot be captured", Unsupported))


def _recorder_of(args: Any) -> Dispatcher:
    for arg in args:
        if isinstance(arg, FakeTensor):
            return arg._alias.storage.recorder
        if isinstance(arg, (list, tuple)):
            for item in arg:
                if isinstance(item, FakeTensor):
                    return item._alias.storage.recorder
    raise TypeError("no fake tensor among the arguments")


def new_fake(
    shape: tuple, stride: tuple, dtype: torch.dtype, device: torch.device = CPU, offset: Any = 0, grad: bool = False
) -> FakeTensor:
    """Return a fake without an alias, which is metadata only until a recorder gives it one."""
    if device.index is None and device.type == "cuda":
        device = current_device()
    if type(offset) is torch.SymInt:  # one that guards fix would make a tensor of fixed sizes a symbolic one in C++
        offset = symint(expr_of(offset), offset.node.env)
    return _make_wrapper(
        FakeTensor, shape, strides=stride, storage_offset=offset, dtype=dtype, device=device, requires_grad=grad
    )


def with_sizes(x: FakeTensor, change: Callable[[Any], Any]) -> FakeTensor:
    """Another fake, without an alias, whose sizes, strides and offset are changed."""
    shape, stride = tuple(map(change, x.shape)), tuple(map(change, x.stride()))
    return new_fake(shape, stride, x.dtype, x.device, change(x.storage_offset()))


def metadata_of(x: FakeTensor, grad: bool = False) -> FakeTensor:
    """Another fake of the same metadata, without an alias."""
    return as_lazy_as(new_fake(tuple(x.shape), x.stride(), x.dtype, x.device, x.storage_offset(), grad), x)


def as_lazy_as(fake: FakeTensor, other: torch.Tensor) -> FakeTensor:
    """Return the fake, with the lazy conjugation and negation of `other`."""
    if other.is_conj():
        torch._C._set_conj(fake, True)
    if other.is_neg():
        torch._C._set_neg(fake, True)
    return fake


def is_row_major(x: torch.Tensor) -> bool:
    """Return whether a tensor is contiguous. For sizes that may be 0 or 1, the other ones decide."""
    if (env := env_of(*x.shape)) is None:
        return x.is_contiguous()
    empty = any(type(n) is int and n == 0 for n in x.shape)
    return empty or layout_holds(partial(_in_rows, env), list(zip(x.shape, x.stride(), strict=True)))


def not_row_major(x: torch.Tensor) -> Rel | None:
    """Return the relation between sizes that makes a tensor not contiguous, if it is not decided and need not be."""
    if (env := env_of(*x.shape)) is None:
        return None
    gaps, expected = [], as_expr(1)
    for n, stride in zip(map(expr_of, reversed(x.shape)), map(expr_of, reversed(x.stride()))):
        gaps.append(and_(ne(n, 1), ne(stride, expected)))
        expected = expected * n
    apart = and_(or_(*gaps), *[ge(expr_of(n), 1) for n in x.shape])
    return apart if env.known(apart) is None and env.may_copy(apart) else None


def has_row_major_strides(x: torch.Tensor) -> bool:
    """Return whether a tensor is contiguous, with the strides of such a tensor where sizes are 1, too: then it is not
    in the channels-last format as well."""
    return is_row_major(x) and x.stride() == contiguous_strides(x.shape)


def _in_rows(env: ShapeEnv, dims: list[tuple[Any, Any]]) -> bool:
    expected = as_expr(1)
    for n, stride in [(expr_of(n), expr_of(s)) for n, s in reversed(dims)]:
        fits = eq(stride, expected)
        if env.known(fits) is not True and not env.decide_layout(eq(n, 1), False) and not env.decide_layout(fits):
            return False
        expected = expected * n
    return True


@contextmanager
def collect_layout_assumptions(x: FakeTensor) -> Iterator[list[Rel]]:
    """Collect the relations on layouts that are assumed in the block because quotients of sizes are taken to be
    large."""
    env = env_of(*x.shape)
    before = 0 if env is None else len(env.layout_assumptions)
    answers: list[Rel] = []
    yield answers
    if env is not None:
        answers += env.layout_assumptions[before:]


def copied(x: FakeTensor, copy: Any, answers: list[Rel], by_layout: bool = True, env: ShapeEnv | None = None) -> Any:
    """Note that `copy` is a copy of a tensor, which eager makes only if the `answers` hold. They are guarded where one
    of the two is written and, if the copy differs from the tensor `by_layout`, where the copy leaves the graph."""
    if answers and (env := env or env_of(*x.shape, *copy.shape)) is not None:
        env.copies += answers
        conditions = [symbool(answer, env) for answer in answers]
        owns = copy._alias.storage
        (owns.copy_of if by_layout else owns.copied).extend(conditions)
        x._alias.storage.copied += conditions
    return copy


class LayoutSeen(Unsupported):
    """The program sees a layout, or a copy, that it would not have for the present sizes."""

    def __init__(self) -> None:
        super().__init__("a layout is seen that small sizes have otherwise")


def guard_layout_assumptions(answers: Iterable[bool | torch.SymBool]) -> None:
    """Guard assumed relations on layouts whose consequences become visible; refuse those that are wrong for the present
    sizes."""
    if not all(map(bool, answers)):
        raise LayoutSeen


def guard_layout_sizes(x: FakeTensor) -> None:
    """Guard that the sizes of a tensor whose strides become visible are 2 or more, if a layout was decided under that
    assumption; refuse others."""
    for n in [n for n in x.shape if type(n) is torch.SymInt]:
        if (env := env_of(n)) is not None and not env.is_large(expr_of(n)):
            raise LayoutSeen


def is_differentiable(dtype: torch.dtype) -> bool:
    """Return whether tensors of a dtype may require grad."""
    return dtype.is_floating_point or dtype.is_complex


def dense(like: FakeTensor, shape: tuple, dtype: torch.dtype | None = None) -> FakeTensor:
    """Return a contiguous fake on the device of `like`, of its dtype unless another is given."""
    return new_fake(shape, contiguous_strides(shape), dtype or like.dtype, like.device)


def tensors_in(values: Iterable[Any]) -> Iterator[FakeTensor]:
    """Yield the fakes among `values`, lists and tuples opened."""
    for value in values:
        if isinstance(value, FakeTensor):
            yield value
        elif type(value) in (list, tuple):
            yield from tensors_in(value)


def current_device() -> torch.device:
    """Return the device that `cuda` means without an index."""
    return torch.device("cuda", torch.cuda.current_device() if torch.cuda.is_available() else 0)
