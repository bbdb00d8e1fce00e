"""The state of one lowering, and how values become buffers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from framesmith.graph.devices import CPU
from framesmith.loops.build import Builder
from framesmith.loops.ir import Axis, Load, Op, Origin, Ref
from framesmith.loops.nest import Call, Compute, Item, Storage
from framesmith.lower.geometry import Size, flat, is_empty, row_major, same_layout, strides_in_order
from framesmith.lower.limits import LIMITS
from framesmith.lower.table import unsupported_dtype
from framesmith.lower.values import Computed, Joined, Lowered, Stored
from framesmith.symbolic.expr import Expr, Symbol, as_expr, coefficient, typical
from framesmith.symbolic.layout import is_dense
from framesmith.util.errors import Unsupported

CHEAP = 6  # scalar work that is done again rather than stored
DEEP = 150  # scalar work at which a closure is cut into nests (which fuse again)
BROADCAST_COST = 4  # scalar work on a small operand that is not repeated for each element of a larger result


class Context:
    """The state and helpers for rows of the lowering tables."""

    def __init__(self, device: torch.device = CPU) -> None:
        self.device = device
        self.limits = LIMITS[device.type]
        self.items: list[Item] = []
        self.storages: dict[str, Storage] = {}
        self.constants: dict[str, torch.Tensor] = {}
        self.env: dict[fx.Node, Any] = {}
        self.wanted: dict[fx.Node, tuple[Size, ...]] = {}
        self.node: fx.Node | None = None
        self.origin: tuple[Origin, ...] = ()
        self._realised: dict[Computed, Stored] = {}
        self.writes = False
        """The graph writes inputs; then the nodes that may raise come first (see `graph.raising`)."""
        self._views: dict[Any, str] = {}
        self._checked: dict[Any, Stored] = {}
        self._counter = 0

    # ------------------------------------------------------------------------------------------------ names and storage

    def fresh(self, prefix: str) -> str:
        """Return a new name."""
        self._counter += 1
        return f"{prefix}{self._counter}"

    def storage(
        self, shape: Sequence[Size], stride: Sequence[Size], dtype: torch.dtype, kind: str = "arena", prefix: str = "b",
        device: torch.device | None = None,
    ) -> Stored:
        """Return a new buffer, as a window on all of it."""
        name = self.fresh(prefix)
        self.storages[name] = Storage(name, dtype, tuple(shape), tuple(stride), kind, device=self.elsewhere(device))
        return Stored(name, tuple(shape), tuple(stride), 0, dtype)

    def elsewhere(self, device: torch.device | None) -> torch.device | None:
        """`device`, if it is not the graph's."""
        return None if device == self.device else device

    def check_devices(self) -> None:
        """Check that every nest is on the graph's device, except for scalars of the CPU that it reads. Raises
        `Unsupported`."""
        for item in self.items:
            for name in item.reads | item.writes if isinstance(item, Compute) else ():
                storage = self.storages[name]
                if (device := storage.device) is not None and not (storage.is_host_number and name not in item.writes):
                    origin = item.origins[0].op if item.origins else "a kernel"
                    raise Unsupported(f"{origin} on tensors of {device} in a graph on {self.device}")

    def constant(self, tensor: torch.Tensor, position: int = -1) -> Stored:
        """Return a buffer that holds `tensor`, which is passed at a place among the inputs, or created here."""
        name = self.fresh("k")
        self.constants[name] = tensor
        size, stride = tuple(tensor.shape), tuple(tensor.stride())
        self.storages[name] = Storage(name, tensor.dtype, size, stride, "constant", position,
                                      device=self.elsewhere(tensor.device))
        return Stored(name, size, stride, 0, tensor.dtype)

    def ref(self, value: Stored) -> Ref:
        """Return a window as an argument of an extern or as a result: the buffer itself or a named view of it."""
        base = self.storages[value.buffer]
        if (
            value.offset == 0
            and value.dtype is base.dtype
            and value.shape == base.size
            and same_layout(value.shape, value.stride, base.stride)
        ):
            return Ref(value.buffer)
        key = (value.buffer, value.shape, value.stride, value.offset, value.dtype)
        name = self._views.get(key)
        if name is None:
            name = self._views[key] = self.fresh("w")
            self.storages[name] = Storage(
                name, value.dtype, value.shape, value.stride, "view", base=value.buffer, offset=value.offset
            )
        return Ref(name)

    # ----------------------------------------------------------------------------------------------------- making nests

    def axes(self, shape: Sequence[Size], prefix: str = "a") -> tuple[list[Any], tuple[Axis, ...]]:
        """Return the index tuple over `shape` (0 in dims of size 1) and its axes."""
        index: list[Any] = []
        axes: list[Axis] = []
        for dim, size in enumerate(shape):
            if size == 1:
                index.append(0)
                continue
            axes.append(Axis.of(f"{prefix}{dim}", size))
            index.append(axes[-1].symbol)
        return index, tuple(axes)

    def indirect_symbol(self, size: Size) -> Symbol:
        """Return a symbol for an index that is loaded from memory."""
        self._counter += 1
        hi = as_expr(size) - 1
        return Symbol(f"t{self._counter}", 0, max(hi.const, 0) if hi.is_const else hi)

    def add(self, axes: tuple[Axis, ...], b: Builder, **more: Any) -> None:
        """Append a nest without reductions made of the builder's operations."""
        origins = tuple(b.origins) or self.origin
        self.items.append(Compute(axes, (), (), tuple(b.ops), origins, **more))

    def realise(self, value: Lowered, stride: Sequence[Size] | None = None, kind: str = "arena") -> Stored:
        """Return `value` in memory, with strides `stride` if given. A window is returned unchanged."""
        if isinstance(value, Stored):
            if stride is None or same_layout(value.shape, stride, value.stride):
                return value
        elif stride is None or value in self._realised:
            found = self._realised.get(value)  # type: ignore[call-overload]
            if found is not None:
                return self.realise(found, stride, kind) if stride is not None else found
        return self.materialise(value, stride, kind)

    def materialise(self, value: Lowered, stride: Sequence[Size] | None = None, kind: str = "arena",
                    written: bool = False) -> Stored:
        """Return a new buffer with the elements of `value`; `written`: other elements will be written, so it does not
        represent `value`."""
        if is_empty(value.shape):
            return self.storage(value.shape, stride or row_major(value.shape), value.dtype, kind)
        if unsupported_dtype(value.dtype):
            if not isinstance(value, Stored):
                raise Unsupported(f"a copy of {value.dtype} by generated code")
            out = self.storage(value.shape, stride or row_major(value.shape), value.dtype, kind)
            refs, reads, writes = (self.ref(out), self.ref(value)), frozenset((value.buffer,)), frozenset((out.buffer,))
            self.items.append(Call(torch.ops.aten.copy_.default, refs, {}, (None,), (out.buffer,), reads, writes,
                                   self.origin))
            return out
        if isinstance(value, Joined):
            out = self.storage(value.shape, stride or row_major(value.shape), value.dtype, kind)
            self.write(value, out)
            if not written:
                self._realised[value] = out
            return out
        b = Builder()
        index, axes = self.axes(value.shape)
        result = b.cast(value.element(b, index), value.dtype) if value.dtype is torch.bool else value.element(b, index)
        if stride is None:
            stride = strides_in_order(value.shape, vote(b.ops, index, value.shape))
        out = self.storage(value.shape, stride, value.dtype, kind)
        b.store(out.buffer, flat(index, stride), result)
        self.add(axes, b)
        if isinstance(value, Computed) and not written:
            self._realised[value] = out
        return out

    def checked(self, index: Lowered, size: Size, wrap: bool) -> Lowered:
        """Return the integers `index` in memory, after a nest that wraps them and fails if one is not in [0, size)."""
        key = index, size, wrap
        if key not in self._checked:
            b = Builder()
            position, axes = self.axes(index.shape)
            out = self.storage(index.shape, row_major(index.shape), torch.int64)
            found = b.indirect(index.element(b, position), self.indirect_symbol(size), size, wrap, True)
            b.store(out.buffer, flat(position, out.stride), found)
            self.add(axes, b)
            self._checked[key] = out
        return self._checked[key]

    def stored(self, value: Computed) -> Lowered:
        """Return the buffer in which `value` has been stored, or None."""
        return self._realised.get(value, value)

    def write(self, value: Lowered, target: Stored, **more: Any) -> None:
        """Store `value` into the window `target` of the same shape."""
        if isinstance(value, Joined):
            for piece, part in value.parts(target):
                self.write(piece, part, **more)
            return
        b = Builder()
        index, axes = self.axes(value.shape)
        b.store(target.buffer, flat(index, target.stride, target.offset), value.element(b, index))
        self.add(axes, b, **more)

    def join_target(self, spec: Any, liked: Sequence[Size] | None = None) -> Stored:
        """Return memory for a value that several nests fill: in the layout of the graph's result, else `liked`, else
        eager's, else row-major."""
        wanted = self.wanted.get(self.node)  # type: ignore[arg-type]
        stride = wanted or liked or spec.stride or row_major(spec.shape)
        if not is_dense(spec.shape, stride):
            stride = row_major(spec.shape)
        return self.storage(spec.shape, stride, spec.dtype)

    # ----------------------------------------------------------------------------------------------------------- policy

    def is_heavy(self, value: Any) -> bool:
        """Return whether computing `value` again for each user costs more than storing it once."""
        if not isinstance(value, Computed):
            return False
        if value.cost > CHEAP:
            return True
        size = value.numel
        return sum(1 for count in value.reads.values() if _not_small(count, size)) > 1

    def settle(self, value: Any, users: int) -> Any:
        """Return `value`, stored if several users would each recompute it."""
        if isinstance(value, Computed) and (value.cost > DEEP or (users > 1 and self.is_heavy(value))):
            return self.realise(value)
        return value

    def small_operand(self, value: Any, size: Size) -> Any:
        """Return `value` as an operand of a result of `size` elements, stored if it would be recomputed many times."""
        if isinstance(value, Computed) and value.cost >= BROADCAST_COST and surely_smaller(value.numel, size):
            return self.realise(value)
        return value


def _not_small(count: Size, size: Size) -> bool:
    if type(count) is int and type(size) is int:
        return 2 * count >= size
    return True


def surely_smaller(count: Size, size: Size) -> bool:
    if type(count) is int and type(size) is int:
        return count < size
    return count is not size


def vote(ops: Sequence[Op], index: Sequence[Any], shape: Sequence[Size]) -> tuple[int, ...]:
    """Return the order of dims, outermost first, in which most full-rank loads traverse memory; row-major if there are
    none."""
    dims = [d for d, i in enumerate(index) if isinstance(i, Expr)]
    row = tuple(range(len(shape)))
    if len(dims) < 2:
        return row
    votes: Counter[tuple[int, ...]] = Counter()
    for op in ops:
        if type(op) is not Load:
            continue
        steps = [coefficient(op.index, index[d]) for d in dims]
        sizes = [0 if step is None else abs(typical(step)) for step in steps]
        if all(sizes):
            order = sorted(range(len(dims)), key=lambda k: -sizes[k])
            votes[tuple(dims[k] for k in order)] += 1
    if not votes:
        return row
    best = max(votes.items(), key=lambda item: (item[1], item[0] == tuple(dims)))[0]
    order = list(best)
    for d in row:
        if d not in best:
            order.insert(min(d, len(order)), d)
    return tuple(order)
