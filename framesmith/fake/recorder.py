"""Records torch calls on fake tensors as a graph of functional ATen operators.

    rec = Recorder()
    x = rec.input(real, "x")
    with rec:
        y = torch.relu(x).add_(1)
    graph = rec.finish([y])

The graph is a function of its placeholders; inputs that the program writes are written by `aten.copy_` nodes at its
end, none of which reads an input that another writes. Each node carries `meta["val"]` (a FakeTensor, or a tuple of
them) and `meta["stack"]` (the `stack` of the recorder when it was recorded). A value written into a part of a tensor
has `meta["within"]`, the new value of the whole.
"""

from __future__ import annotations

import builtins
import keyword
import operator
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch.fx import Graph, Node

from framesmith.fake.dtypes import refuse_numbers
from framesmith.fake.dynamic_scalars import Number, entered
from framesmith.fake.handlers import HANDLERS, classify
from framesmith.fake.layout import is_dense, meets_itself, strides_like
from framesmith.fake.outputs import separate_storages, separate_writes
from framesmith.fake.recording import Content
from framesmith.fake.schema import with_full_lists
from framesmith.fake.tensor import (
    Alias,
    FakeTensor,
    Storage,
    as_lazy_as,
    current_device,
    guard_layout_assumptions,
    metadata_of,
    new_fake,
)
from framesmith.fake.views import PUT_BACK, derives_otherwise
from framesmith.fake.wrappers import by_processes, is_distributed, is_wrapper, wrappers_among
from framesmith.graph.cse import value_key
from framesmith.graph.nodes import insert_node
from framesmith.graph.purity import is_pure
from framesmith.symbolic.node import symint
from framesmith.util.errors import DataDependent, Unsupported

_push: Callable[[Any], None] = torch._C._push_on_torch_dispatch_stack
_pop: Callable[[Any], Any] = torch._C._pop_torch_dispatch_stack
_depth: Callable[[], int] = torch._C._len_torch_dispatch_stack
_getitem = operator.getitem
_NOT_IDENTIFIER = re.compile(r"\W")
_MOST_ELEMENTS = 64
_NO_KWARGS: dict[str, Any] = {}
_WITH_STRIDES = (None, torch.strided)


_KEYS = tuple([getattr(torch._C.DispatchKey, name) for name in (
    "AutogradFunctionality", "AutogradOther", "AutogradNestedTensor", "ADInplaceOrView")])
"""Dispatch keys that recording below autograd excludes."""


@contextmanager
def dispatch_restored() -> Iterator[None]:
    """Restore the thread's dispatch modes and keys after the block, even if an exception came between a mode's entry
    and its exit: a signal handler may raise after any call, also where a mode was pushed before any `try`."""
    depth, excluded = _depth(), [torch._C._dispatch_tls_is_dispatch_key_excluded(key) for key in _KEYS]
    try:
        yield
    finally:
        while _depth() > depth:
            _pop(None)
        for key, value in zip(_KEYS, excluded, strict=True):
            if torch._C._dispatch_tls_is_dispatch_key_excluded(key) is not value:
                torch._C._dispatch_tls_set_dispatch_key_excluded(key, value)


class Recorder:
    """See the module. Not thread-safe; `with rec:` may be entered many times, one after another."""

    def __init__(self, shape_env: Any = None, *, below_autograd: bool = True) -> None:
        self.graph = Graph()
        self.shape_env = shape_env
        """The environment in which data-dependent sizes of results become symbols; None: such sizes are refused."""
        self.bound: dict[Any, Any] = {}
        """Those symbols, by the operator and the values that give them."""
        self._integers: dict[int, tuple[FakeTensor, Any]] = {}
        self.stack: tuple = ()
        self.autocast: tuple[str, ...] = ()
        """Device types for which the program has autocast on. (Below it, where operators are recorded, torch reports it
        as off.)"""
        self.inputs: list[FakeTensor] = []
        self.constants: list[tuple[Node, torch.Tensor]] = []
        self._by_storage: dict[int, Alias] = {}
        self._constant_of: dict[int, tuple[torch.Tensor, FakeTensor]] = {}
        self._below_autograd = below_autograd
        self._guards: list[Any] = []
        self._names: dict[Any, str] = {}
        self.written: list[tuple[Alias, Alias, Node]] = []
        """For each write, in order: the base of the storage, the written alias (the base or a view of it), the base's
        value before."""
        self.placed: list[FakeTensor] = []
        """Inputs whose storage offsets the graph assumes."""
        self.follows_grad = False
        """Inputs require grad, so detaching is part of the program."""
        self.on_cuda = False
        """There are tensors on a CUDA device."""
        self.on_current_device = False
        """Tensors may be created on the current CUDA device, or moved to it."""
        self.content: Content | None = None
        """The policy that says which inputs' contents may be assumed."""
        self.allows: Callable[[Alias, Node], None] | None = None
        """Raises eager's error if an alias may not be written."""
        self.keeps_history: Callable[[FakeTensor], bool] | None = None
        """Returns whether autograd continues through the overwritten value of a tensor, with a gradient of zeros."""
        self.numbers: list[Number] = []
        """Dynamic Python numbers that operators may take."""
        self.below = False
        """A wrapper class is computing an operator on parts of its tensors: that is below autograd, where detaching
        means nothing."""
        self.sparse_gradients = False
        """Results may be sparse; whoever sets it ensures that no operator reads them."""
        self._last_placeholder: Node | None = None
        self._last_number: Node | None = None

    # -- entering and leaving

    def __enter__(self) -> Recorder:
        # without autograd and its view tracking, composite operators arrive whole
        guard = torch._C._AutoDispatchBelowADInplaceOrView() if self._below_autograd else nullcontext()
        self._guards.append(guard)
        guard.__enter__()
        _push(self)
        return self

    def __exit__(self, *exc: Any) -> None:
        try:
            _pop(None)
        finally:
            self._guards.pop().__exit__(*exc)

    @contextmanager
    def off(self) -> Iterator[None]:
        """Turn recording off within the block."""
        self.__exit__(None, None, None)
        try:
            yield
        finally:
            self.__enter__()

    @contextmanager
    def above_autograd(self) -> Iterator[None]:
        """Let autograd differentiate operators within the block."""
        before = [torch._C._dispatch_tls_is_dispatch_key_excluded(key) for key in _KEYS]
        try:
            for key in _KEYS:
                torch._C._dispatch_tls_set_dispatch_key_excluded(key, False)
            yield
        finally:
            for key, value in zip(_KEYS, before, strict=True):
                torch._C._dispatch_tls_set_dispatch_key_excluded(key, value)

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        for kind in types:
            if is_wrapper(kind):
                return self._by_parts(kind, func, types, args, kwargs or {})
        return self.dispatch(func, args, kwargs or _NO_KWARGS)

    def _by_parts(self, kind: Any, func: Any, types: Any, args: tuple, kwargs: dict) -> Any:
        """Let a wrapper class compute an operator, and record its operators on the parts of its tensors. As above
        autograd, it receives the parts of a composite operator; the dispatch keys of nested tensors have kernels of
        their own there."""
        if not (torch.is_inference_mode_enabled() or any(x.is_nested for x in wrappers_among((args, kwargs.values())))):
            found = self.inside(func.decompose, *args, **kwargs)
            if found is not NotImplemented:
                return found
        before, self.below = self.below, func is not _aten.detach.default
        try:
            if is_distributed(kind):
                return by_processes(kind, func, args, kwargs)
            return self.inside(kind.__torch_dispatch__, func, types, args, kwargs)
        finally:
            self.below = before

    def dispatch(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """Record one call of an operator and return its result as fakes."""
        if self.numbers:
            func, args, kwargs = entered(self, func, args, kwargs)
        if self.below and func is _aten.detach.default:
            func = _aten.alias.default
        if "device" in kwargs:
            kwargs = self._placed(kwargs)
        if "layout" in kwargs and kwargs["layout"] not in _WITH_STRIDES and not self.sparse_gradients:
            raise Unsupported(f"a tensor of layout {kwargs['layout']}")
        refuse_numbers(func, args, kwargs)
        handler = HANDLERS.get(func)
        if handler is None:
            handler = HANDLERS[func] = classify(func)
        return handler(self, func, args, kwargs)

    def _placed(self, kwargs: dict) -> dict:
        """Replace a CUDA device without an index by the current one, on which the graph then depends."""
        device = kwargs["device"]
        if device is None or (device := torch.device(device)).type != "cuda":
            return kwargs
        self.on_cuda = True
        if device.index is not None:
            return kwargs
        self.on_current_device = True
        return {**kwargs, "device": current_device()}

    def inside(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run `call` with recording on; for handlers, which run with it off."""
        try:
            _push(self)  # behind the call, a signal's handler may raise
            return call(*args, **kwargs)
        finally:
            _pop(None)

    # -- inputs and constants

    def input(self, real: torch.Tensor, name: str, *, shape: tuple | None = None,
              stride: tuple | None = None) -> FakeTensor:
        """Return a fake with the metadata of `real` and a placeholder for it; `shape` and `stride` may be symbolic.

        With a symbolic shape alone, a dense tensor's strides follow from it in the order of dimensions that `real` has.
        """
        if shape is not None and stride is None:
            stride = strides_like(real, shape)
        fake = new_fake(tuple(real.shape) if shape is None else shape, real.stride() if stride is None else stride,
                        real.dtype, real.device, real.storage_offset(), real.requires_grad)
        if isinstance(real, torch.nn.Parameter):
            fake._is_param = True
        self._give_place(as_lazy_as(fake, real), name)
        key = real.untyped_storage()._cdata
        other = self._by_storage.setdefault(key, fake._alias)
        if other is not fake._alias:
            other.storage.shared = fake._alias.storage.shared = True
        return fake

    def input_like(self, val: FakeTensor, name: str, grad: bool = False) -> FakeTensor:
        """Return a fake with the metadata of another recorder's, and a placeholder for it; `grad`: it is a leaf that
        requires grad."""
        return self._give_place(metadata_of(val, grad), name)

    def size_input(self, size: Any, name: str) -> Any:
        """Return a placeholder for a size, which the graph reads by its symbol."""
        self._placeholder(name, size)
        return size

    def _give_place(self, fake: FakeTensor, name: str) -> FakeTensor:
        node = self._placeholder(name, fake)
        self.on_cuda |= fake.device.type == "cuda"
        fake._alias = Alias(Storage(self, node), node, fake)
        self.inputs.append(fake)
        return fake

    def constant(self, real: torch.Tensor) -> FakeTensor:
        """Return a fake for a real tensor that is not an input, and never changes: one that the program has just made
        of Python data.

        A number becomes `full`; anything else a placeholder, with `meta["constant"]` the tensor, and a row of
        `constants`.
        """
        known = self._constant_of.get(id(real))
        if known is not None:
            return known[1]
        if real.dim() == 0 and real.device.type == "cpu" and type(real) is torch.Tensor:
            fake = self.number(real.item(), real.dtype)
        else:
            fake = self.input(real, f"constant_{len(self.constants)}")
            self.inputs.pop()
            fake._alias.node.meta.update(constant=real, param=True)
            self.constants.append((fake._alias.node, real))
        self._constant_of[id(real)] = (real, fake)  # kept: another tensor must not come to its address
        return fake

    def number_input(self, example: Any, fix: Callable[[], Any], size: Callable[[], Any] | None = None) -> Number:
        """Return a dynamic float or int, which becomes a zero-dimensional placeholder when an operator takes it. `fix`
        specialises it and returns its value."""
        kind = torch.float64 if type(example) is float else torch.int64
        return self.number_of(Number(example, lambda: self._late_placeholder(new_fake((), (), kind)), fix, known=True,
                                     size=size))

    def carrier(self, size: Any) -> FakeTensor:
        """Return a placeholder without elements for a size that is a number of the caller's."""
        return self._late_placeholder(new_fake((size, 0), (1, 1), torch.float32))

    def number_of(self, number: Number) -> Number:
        """Register a dynamic number, which operators then look for."""
        self.numbers.append(number)
        return number

    def _late_placeholder(self, val: FakeTensor) -> FakeTensor:
        """Add a placeholder after all others."""
        others, self._last_placeholder = self._last_placeholder, self._last_number or self._last_placeholder
        node = self._last_number = self._placeholder("number", val)
        self._last_placeholder = others
        return self.own(val, node)

    def integer(self, fake: FakeTensor) -> Any:
        """Return the one element of a tensor, as a symbol: equal computations of it have one."""
        known = self._integers.get(id(fake))
        if known is None:
            node = self.nodes(fake)
            key = _aten._local_scalar_dense.default, value_key(node)
            value = self.bound.get(key)
            if value is None:
                limits = torch.iinfo(fake.dtype)
                whole = fake.dtype is torch.int64
                symbol = self.shape_env.data_symbol(None if whole else limits.min, None if whole else limits.max,
                                                    (fake, -1))
                value = self.bound[key] = symint(symbol, self.shape_env)
                self.emit(_aten._local_scalar_dense.default, (node,), value).meta["binds"] = symbol
            known = self._integers[id(fake)] = fake, value
        return known[1]

    def elements(self, x: FakeTensor) -> list[Any]:
        """`x.tolist()` of a few integers, while a wrapper class computes an operator on parts of its tensors."""
        if not (self.below and self.shape_env is not None and x.dtype is torch.int64 and x.dim() == 1
                and x.shape[0] <= _MOST_ELEMENTS):
            raise DataDependent("Tensor.tolist needs the tensor's data")
        return [self.integer(_aten.select.int(x, 0, i)) for i in range(int(x.shape[0]))]

    def has_integer(self, fake: FakeTensor) -> bool:
        """Return whether the element of a tensor is a symbol already."""
        return id(fake) in self._integers

    def number(self, value: Any, dtype: torch.dtype) -> FakeTensor:
        val = new_fake((), (), dtype)
        node = self.emit(torch.ops.aten.full.default, ([], value), val, {"dtype": dtype, "device": val.device})
        return self.own(val, node)

    def _placeholder(self, name: str, val: FakeTensor) -> Node:
        graph = self.graph
        base = name = _NOT_IDENTIFIER.sub("_", name) or "_"
        used = graph._graph_namespace._used_names
        count = 0
        while name in used or keyword.iskeyword(name) or hasattr(builtins, name):
            count += 1
            name = f"{base}_{count}"
        last = self._last_placeholder
        if last is None:
            last = graph._root
        if last.next is graph._root or last.next.op == "root":
            node = self._insert("placeholder", name, name, (), _NO_KWARGS, val)
        else:
            with graph.inserting_after(last):
                node = self._insert("placeholder", name, name, (), _NO_KWARGS, val)
        self._last_placeholder = node
        return node

    # -- nodes

    def emit(self, func: Any, args: tuple, val: Any, kwargs: dict = _NO_KWARGS) -> Node:
        """Add a node that calls `func` on nodes and plain values."""
        args, kwargs = with_full_lists(func, args, kwargs)
        base = self._names.get(func)
        if base is None:
            base = self._names[func] = func.__name__.split(".")[0].lower()
        space = self.graph._graph_namespace
        count = space._base_count.get(base, 0) + 1
        name = f"{base}_{count}"
        while name in space._used_names:
            count += 1
            name = f"{base}_{count}"
        space._base_count[base] = count
        return self._insert("call_function", name, func, args, kwargs, val)

    def _insert(self, op: str, name: str, target: Any, args: tuple, kwargs: dict, val: Any) -> Node:
        node = insert_node(self.graph, op, name, target, args, kwargs)
        meta = node.meta
        meta["val"] = val
        meta["stack"] = self.stack
        return node

    def own(self, fake: FakeTensor, node: Node) -> FakeTensor:
        """Make `fake` the base of a new storage whose value is `node`."""
        fake._alias = Alias(Storage(self), node, fake)
        return fake

    def view(self, source: FakeTensor, func: Any, args: tuple, fake: FakeTensor) -> FakeTensor:
        """Make `fake` the view `func(source, *args)`."""
        parent = source._alias
        if fake.is_inference() is not source.is_inference():  # a view is what it views
            with torch._C._InferenceMode(source.is_inference()):
                fake = new_fake(tuple(fake.shape), fake.stride(), fake.dtype, fake.device, fake.storage_offset())
        node = self.emit(func, (self.read(parent), *args), fake)
        fake._alias = Alias(parent.storage, node, fake, parent, func, args)
        if source.is_conj() is not (func is torch.ops.aten._conj.default) and fake.is_complex():
            torch._C._set_conj(fake, True)
        if source.is_neg() is not (func is torch.ops.aten._neg_view.default):
            torch._C._set_neg(fake, True)
        return fake

    def results(self, node: Node, vals: Any) -> Any:
        """Wrap the results of a functional node: one fake, or a tuple over `getitem` nodes."""
        if isinstance(vals, FakeTensor):
            return self.own(vals, node)
        if not isinstance(vals, (tuple, list)):  # an operator that only checks, or asks for metadata
            return vals
        for i, val in enumerate(vals):
            if isinstance(val, FakeTensor):
                self.own(val, self.emit(_getitem, (node, i), val))
        return vals

    def nodes(self, value: Any) -> Any:
        """Replace fakes by their present nodes, through lists and tuples; real tensors become constants."""
        kind = type(value)
        if kind is FakeTensor:
            alias = value._alias
            return alias.node if alias.version == alias.storage.version else self.read(alias)
        if kind is list or kind is tuple:
            return kind([self.nodes(item) for item in value])
        if isinstance(value, torch.Tensor):
            return self.constant(value)._alias.node
        return value

    # -- values and writes

    def read(self, alias: Alias) -> Node:
        """Return the node of an alias's present value; a view whose storage was written is recomputed."""
        storage = alias.storage
        if alias.version != storage.version:
            if alias.parent is None:
                raise AssertionError("the base of a storage is always current")
            alias.node = self.emit(alias.func, (self.read(alias.parent), *alias.args), alias.val)
            alias.version = storage.version
        return alias.node

    def write(self, alias: Alias, node: Node) -> None:
        """Write the value of `node` (of the alias's shape and dtype) to `alias`, and so to all aliases of its
        storage."""
        storage = alias.storage
        if self.allows is not None:
            self.allows(alias, node)
        guard_layout_assumptions(storage.copied + storage.copy_of)
        if storage.shared:
            raise Unsupported("an input is written that shares its storage with another input")
        val = alias.val
        exact = _same_strides(node.meta["val"], val)
        if not exact and alias.parent is not None and self.follows_grad and is_dense(val.shape, val.stride()):
            node, exact = self.laid_out(node, val), True  # autograd repeats the views of the value, with its strides
        fresh = node
        target, counted = alias, True
        while target.parent is not None:
            parent, counted = target.parent, counted and not target.uncounted
            if meets_itself(parent.val):
                raise Unsupported("a write into a part of a tensor whose elements share memory")
            put_back = PUT_BACK.get(target.func)
            if put_back is None:
                raise Unsupported(f"a write through a view made by {target.func}")
            func, args = put_back(self.read(parent), node, target.args, parent.val)
            node = args[0] if func is None else self.emit(func, args, parent.val)
            if derives_otherwise(func, val.dtype):
                node.meta["written"] = True
            target = parent
        if node.meta["val"].stride() != target.val.stride():
            node = self.laid_out(node, target.val)
            exact = exact and target is not alias
        storage.version += 1
        storage.counted |= counted
        self.written.append((target, alias, target.node))
        target.node = node
        target.version = storage.version
        if target is not alias:
            own = fresh.op != "placeholder" and "turn" not in fresh.meta  # it is no other tensor's
            if own:
                fresh.meta["within"] = node
            if exact:
                alias.node = fresh
                alias.version = storage.version if own else alias.version

    def laid_out(self, node: Node, val: FakeTensor) -> Node:
        """Return a copy of a node's value with the strides of `val`."""
        options = {"dtype": val.dtype, "device": val.device}
        fresh = self.emit(_aten.empty_strided.default, (list(val.shape), list(val.stride())), val, options)
        return self.emit(_aten.copy.default, (fresh, node), val)

    @contextmanager
    def scoped(self) -> Iterator[None]:
        """Discard, at the end of the block, the new symbols, numbers and constants, which are otherwise recorded once
        for all readers."""
        kept = self.bound.copy(), self._integers.copy(), self._constant_of.copy()
        try:
            yield
        finally:
            self.bound, self._integers, self._constant_of = kept

    # -- the end

    def finish(self, outputs: Iterable[Any]) -> Graph:
        """Close the graph: add writes of inputs (`meta["uncounted"]`: their version counters must not count them) and
        the output tuple, and remove dead code. The recorder must not be used afterwards."""
        values = tuple(separate_storages(self, list(outputs)))
        written = [fake for fake in self.inputs if self.mutated(fake)]
        for fake, value in zip(written, separate_writes(self, written), strict=True):
            storage = fake._alias.storage
            copy = self.emit(torch.ops.aten.copy_.default, (storage.input, value), fake)
            copy.meta["uncounted"] = not storage.counted
        output = self.graph.output(values)
        output.meta["val"] = tuple(getattr(v, "meta", {}).get("val", v) for v in values)
        _remove_dead(self.graph)
        self.dispatch = _closed  # type: ignore[method-assign]
        return self.graph

    def mutated(self, fake: FakeTensor) -> bool:
        """Return whether the storage of this fake has been written."""
        return fake._alias.storage.version > 0

    def input_aliased(self, fake: FakeTensor) -> Node | None:
        """Return the placeholder whose storage this fake is or views, or None. Rebuild it as
        `real.as_strided(fake.shape, fake.stride(), fake.storage_offset())` of that input."""
        return fake._alias.storage.input


def _closed(func: Any, args: tuple, kwargs: dict) -> Any:
    raise Unsupported(f"{func} on a fake tensor whose graph is finished")


def _same_strides(a: FakeTensor, b: FakeTensor) -> bool:
    left, right = a.stride(), b.stride()
    if left == right:
        return True
    return all(size == 1 or s == t for size, s, t in zip(b.shape, left, right))


def _remove_dead(graph: Graph) -> None:
    for node in reversed(graph.nodes):
        if node.op == "call_function" and not node.users and not has_effect(node):
            graph.erase_node(node)


def has_effect(node: Node) -> bool:
    """Return whether a call has an effect besides its result: it defines a symbol, draws random numbers, or may
    fail."""
    return not node.meta.get("spare") and (node.target in _MAY_FAIL or not is_pure(node))


_aten = torch.ops.aten
# An index may be out of range, which is eager's error even if the result is dead.
_MAY_FAIL = frozenset((_aten.index.Tensor, _aten.index_select.default, _aten.gather.default, _aten.embedding.default,
                       _aten.take.default,
                       _aten.index_put.default, _aten.scatter.src, _aten.scatter.value, _aten.index_add.default,
                       _aten.index_copy.default))
