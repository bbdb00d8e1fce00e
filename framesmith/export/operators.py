"""The operator sets of exported graphs, and the replay that brings a graph into one.

"core": functional operators of ATen that PyTorch tags as core, with the few of `MORE` that are no function of these.
"prims": framesmith's prims (docs/prims.md), and of core ATen what has no prims (contractions, draws). "aten": as
captured: composites such as `linear` and attention stay whole. Rooms below may add sets of their own to `SETS`.

Into core, an operator goes by its row in `ROWS`; by the composite that PyTorch defines it as; or by its prims, each of
which is a core operator.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from framesmith.autograd.joint import output_node
from framesmith.export.flow import with_arms
from framesmith.export.places import Stack
from framesmith.export.sizes import ASSERT, SYM_SIZE, symbols_in
from framesmith.fake import FakeTensor, Recorder, dispatch_restored
from framesmith.fake.handlers import CONCRETE_QUERIES, functional
from framesmith.fake.infer import infer
from framesmith.fake.products import product
from framesmith.fake.schema import is_composite
from framesmith.fake.tensor import metadata_of, new_fake
from framesmith.graph.control import Control
from framesmith.graph.symbols import argument_symbols
from framesmith.graph.traversal import placeholders_of
from framesmith.prims.core import Prim, Spec
from framesmith.prims.decompose import decompose
from framesmith.symbolic.env import ShapeEnv
from framesmith.symbolic.expr import Expr, Symbol
from framesmith.symbolic.node import symbool, symint
from framesmith.util.errors import DataDependent, ExportError, GuardError
from framesmith.util.tables import entry

aten = torch.ops.aten
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd

_MORE = (
    "baddbmm _cdist_forward lstm.input gru.input rnn_tanh.input rnn_relu.input bernoulli.p bernoulli "
    "multinomial randint.low normal.Tensor_Tensor _embedding_bag_forward_only bincount unique_dim _unique2 "
    "upsample_bicubic2d.vec upsample_linear1d.vec upsample_trilinear3d.vec searchsorted.Tensor "
    "bucketize.Tensor linalg_vector_norm _fft_c2c linalg_inv_ex _linalg_det _linalg_eigh _linalg_svd linalg_qr "
    "linalg_cholesky_ex triangular_solve histc cummax cummin cumprod kthvalue mode median.dim view_as_real "
    "view_as_complex complex erfinv lgamma digamma polygamma view.dtype unfold _adaptive_avg_pool3d_backward "
    "_embedding_bag_dense_backward _embedding_bag_per_sample_weights_backward real imag roll deg2rad "
    "avg_pool3d_backward max_pool3d_with_indices_backward grid_sampler_3d grid_sampler_2d_backward rand_like "
    "randn_like randint convolution_backward_overrideable _grouped_mm _assert_scalar unique_consecutive "
    "repeat_interleave.Tensor sort.stable"
)


def _overloads(names: str) -> frozenset[Any]:
    """Return those of the operators that this version of PyTorch has."""
    pairs = [name.partition(".")[::2] for name in names.split()]
    packets = [(getattr(aten, name, None), overload or "default") for name, overload in pairs]
    return frozenset(getattr(p, o) for p, o in packets if p is not None and o in p.overloads())


MORE = _overloads(_MORE)
"""Operators that are kept in addition to the core: they are no function of it, or are clearer when kept whole."""

ROWS: dict[Any, Callable[..., Any]] = {}
"""operator -> a function over tensors that calls operators nearer to the core."""
LIBRARIES: dict[str, Callable[..., Any]] = {}
"""The same for operators of other libraries, which the process that runs the graph need not have: by name."""


def in_core(func: Any) -> bool:
    """Return whether an operator belongs to the core set."""
    return func is operator.getitem or isinstance(func, torch._ops.OpOverload) and (
        torch.Tag.core in func.tags and not func._schema.is_mutable or func in MORE
        or func.namespace != "aten" and func.name() not in LIBRARIES)


SETS: dict[str, Callable[[Any], bool]] = {
    "core": in_core, "prims": lambda target: isinstance(target, Prim) or in_core(target), "aten": lambda target: True,
}
"""Name -> whether an operator belongs to the set: what does not is taken apart."""


def row(*funcs: Any) -> Any:
    """Register a row of ROWS, or of LIBRARIES for a name."""
    return entry(LIBRARIES if isinstance(funcs[0], str) else ROWS, *funcs)


class _Lowering(Recorder):
    """Records what belongs to an operator set, and takes apart what does not."""

    def __init__(self, belongs: Callable[[Any], bool]) -> None:
        super().__init__()
        self.belongs = belongs
        self.open: list[Any] = []
        """Operators that are being taken apart."""

    def dispatch(self, func: Any, args: tuple, kwargs: dict) -> Any:
        if func is aten.view.default:
            return self._viewed(args, kwargs)
        if func in CONCRETE_QUERIES:
            return super().dispatch(func, args, kwargs)
        if self.belongs(func) or func._schema.is_mutable:
            whole = is_composite(func) and not func._schema.is_mutable
            return functional(self, func, args, kwargs) if whole else super().dispatch(func, args, kwargs)
        try:
            return self._taken_apart(func, args, kwargs)
        except GuardError:  # for these sizes there is no one form
            return self.dispatch_whole(func, args, kwargs)

    def _taken_apart(self, func: Any, args: tuple, kwargs: dict) -> Any:
        found = ROWS.get(func) or LIBRARIES.get(func.name())
        if found is not None and (result := self.inside(found, *args, **kwargs)) is not NotImplemented:
            return result
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
            return self.inside(func._op_dk, _COMPOSITE, *args, **kwargs)
        if func in self.open:  # its prims are written in itself
            return super().dispatch(func, args, kwargs)
        self.open.append(func)
        try:
            return self.inside(self._by_prims, func, args, kwargs)
        finally:
            self.open.pop()

    def _viewed(self, args: tuple, kwargs: dict) -> Any:
        """Return a view; of what lies otherwise in memory here than in eager, a view of a copy."""
        try:
            return super().dispatch(aten.view.default, args, kwargs)
        except (RuntimeError, GuardError):
            x, *rest = args
            if x.is_contiguous():
                raise
            dense = self.inside(aten.clone.default, x, memory_format=torch.contiguous_format)
            return super().dispatch(aten.view.default, (dense, *rest), kwargs)

    def dispatch_whole(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """Record an operator that has no form in the core as it is: `Program.beyond` names it."""
        return super().dispatch(func, args, kwargs)

    def _by_prims(self, func: Any, args: tuple, kwargs: dict) -> Any:
        found = _in_prims(func, args, kwargs)
        if found is None:
            return self.dispatch_whole(func, args, kwargs)
        graph, given = found
        values: dict[fx.Node, Any] = {}
        places = iter(given)
        env = _env_of(given)

        def read(x: Any) -> Any:
            if isinstance(x, fx.Node):
                return values[x]
            if isinstance(x, tuple | list):
                return type(x)([read(v) for v in x])
            return symint(x, env) if isinstance(x, Expr) else x

        for node in graph.nodes:
            if node.op == "placeholder":
                values[node] = next(places)
            elif node.op == "output":
                return read(node.args[0])
            else:
                made = node.target(*read(node.args), **{k: read(v) for k, v in node.kwargs.items()})
                values[node] = _as_recorded(made, node.meta.get("val"))
        raise AssertionError("a graph without an output")


def _as_recorded(made: Any, spec: Any) -> Any:
    """Return a result in its recorded dtype: a prim's reference may leave another dtype than the prim's."""
    if isinstance(spec, Spec) and isinstance(made, torch.Tensor) and made.dtype is not spec.dtype:
        return aten._to_copy.default(made, dtype=spec.dtype)
    return made


def _env_of(given: list[FakeTensor]) -> Any:
    return next((n.node.env for x in given for n in (*x.shape, *x.stride()) if isinstance(n, torch.SymInt)), ShapeEnv())


def _in_prims(func: Any, args: tuple, kwargs: dict) -> tuple[fx.Graph, list[FakeTensor]] | None:
    """Return one operator call as a graph of prims, and the tensors that it takes; None if it has no rule."""
    graph = fx.Graph()
    given: list[Any] = []

    def argument(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            node = graph.placeholder(f"x{len(given)}")
            node.meta["val"] = x
            given.append(x)
            return node
        return type(x)([argument(v) for v in x]) if isinstance(x, list | tuple) else x

    node_args, node_kwargs = argument(args), {k: argument(v) for k, v in kwargs.items()}
    vals = infer(func, args, kwargs)
    call = graph.create_node("call_function", func, node_args, node_kwargs)
    call.meta["val"] = vals
    if isinstance(vals, tuple | list):
        parts = []
        for i, val in enumerate(vals):
            part = graph.create_node("call_function", operator.getitem, (call, i))
            part.meta["val"] = val
            parts.append(part)
        out = graph.output(tuple(parts))
    else:
        out = graph.output(call)
    out.meta["val"] = vals
    made = decompose(graph)
    return None if any(n.target is func for n in made.nodes) else (made, given)


class Replay:
    """Runs a graph again on fakes of a recorder. Calls that define a symbol keep it; what was assumed of such symbols
    becomes an assertion behind the call that defines the last of them."""

    def __init__(self, recorder: Recorder, env: ShapeEnv, dialect: str) -> None:
        self.recorder = recorder
        self.env = env
        self.dialect = dialect
        self.values: dict[fx.Node, Any] = {}
        self.copies: list[tuple[fx.Node, Any]] = []
        self.bound: frozenset[Symbol] = frozenset()
        """Symbols of data that have values."""

    def run(self, graph: fx.Graph, outer: frozenset[Symbol] | None = None) -> list[Any]:
        """Return the values of the outputs; writes of inputs are kept apart, in `copies`. `outer`: for an arm, the
        symbols of data that have values outside of it."""
        if outer is not None:
            self.bound = outer
            self._bind(symbols_in([n.meta["val"] for n in placeholders_of(graph)]) & self.env.data - outer)
        for node in graph.nodes:
            stack = node.meta.get("stack", ())
            self.recorder.stack = stack if isinstance(stack, Stack) else Stack.of(stack, node.meta.get("modules", ()))
            if node.op == "placeholder":
                self.values[node] = self._input(node)
            elif node.op == "output":
                return list(self.read(node.args[0]))  # type: ignore[arg-type]
            elif symbols := self._defined(node):
                found = self._controlled if isinstance(node.target, Control) else self._as_captured
                self.values[node] = found(node, min(symbols, key=str))
                self._bind(symbols)
            elif isinstance(node.target, Control):
                self.values[node] = self._controlled(node)
            elif node.target is ASSERT:
                self._assert(*self.read(node.args))  # type: ignore[misc]
            elif node.target is SYM_SIZE:
                x, dim = self.read(node.args)
                self.values[node] = x.shape[dim]
            elif node.target is aten.copy_.default:
                self.copies.append((node.args[0], self.read(node.args[1])))  # type: ignore[arg-type]
            else:
                self.values[node] = self._called(node)
        raise ExportError("a graph without an output")

    def _called(self, node: fx.Node) -> Any:
        try:
            return node.target(*self.read(node.args),  # type: ignore[operator]
                               **{k: self.read(v) for k, v in node.kwargs.items()})
        except DataDependent:  # only its capture knew enough of the sizes
            return self._as_captured(node)

    def _as_captured(self, node: fx.Node, symbol: Symbol | None = None) -> Any:
        """Record a call with the metadata of its capture."""
        args, kwargs = self.recorder.nodes(self.read(node.args)), self.read(node.kwargs)
        return self._emitted(node.target, args, {k: self.recorder.nodes(v) for k, v in kwargs.items()},
                             self._metadata(node.meta["val"]), symbol)

    def _metadata(self, val: Any) -> Any:
        if isinstance(val, tuple | list):
            return tuple(map(self._metadata, val))
        if isinstance(val, torch.SymInt | Expr):
            return val if isinstance(val, torch.SymInt) else symint(val, self.env)
        return self._fake(val)

    def _emitted(self, target: Any, args: Any, kwargs: dict[str, Any], vals: Any, symbol: Symbol | None) -> Any:
        made = self.recorder.emit(target, args, vals, kwargs)
        if symbol is not None:
            made.meta["binds"] = symbol
        return self.recorder.results(made, vals)

    def _defined(self, node: fx.Node) -> frozenset[Symbol]:
        """Return the symbols of data that a call defines: no argument has them."""
        if not self.env.data or node.op != "call_function" or node.target in (SYM_SIZE, operator.getitem):
            return frozenset()
        found = symbols_in(node.meta.get("val")) & self.env.data
        return found and found - symbols_in([n.meta.get("val") for n in node.all_input_nodes]) - argument_symbols(node)

    def _bind(self, symbols: frozenset[Symbol]) -> None:
        """Note that symbols have values, and assert what was assumed of them."""
        env: Any = self.env
        self.bound |= symbols
        unchecked = getattr(env, "unchecked", [])
        for rel in [rel for rel in unchecked if rel.free & symbols and rel.free & env.data <= self.bound]:
            unchecked.remove(rel)
            own = rel.subs({s: env.canonical(s) for s in rel.free - env.data})
            if own.known is not True:
                self._assert(symbool(own, env), f"{own} does not hold, as the program assumes of its data")

    def _assert(self, holds: Any, text: str) -> None:
        if isinstance(holds, torch.SymBool):
            self.env._learn(holds.node.value)
        self.recorder.emit(ASSERT, (holds, text), None)

    def _input(self, node: fx.Node) -> Any:
        val = node.meta["val"]
        if isinstance(val, torch.SymInt | Expr | int):
            return self.recorder.size_input(val if isinstance(val, torch.SymInt) else symint(val, self.env), node.name)
        return self.recorder.input_like(self._fake(val), node.name)

    def _fake(self, val: Any) -> Any:
        if isinstance(val, Spec):
            shape, stride = (tuple([symint(n, self.env) for n in part]) for part in (val.shape, val.stride or ()))
            return new_fake(shape, stride, val.dtype, val.device)
        return metadata_of(val)

    def _controlled(self, node: fx.Node, symbol: Symbol | None = None) -> Any:
        target: Any = node.target
        with self.recorder.off():
            made = with_arms(target, lambda arm: lower_graph(arm, self.dialect, self.env, self.bound)[0])
        args = tuple(map(self.recorder.nodes, self.read(node.args)))
        return self._emitted(made, args, {}, self._metadata(node.meta["val"]), symbol)

    def read(self, x: Any) -> Any:
        if isinstance(x, fx.Node):
            return self.values[x]
        if isinstance(x, tuple | list):
            return type(x)([self.read(v) for v in x])
        if isinstance(x, dict):
            return {k: self.read(v) for k, v in x.items()}
        return x


def lower_graph(graph: fx.Graph, dialect: str, env: ShapeEnv,
                outer: frozenset[Symbol] | None = None) -> tuple[fx.Graph, list[fx.Node]]:
    """Return the graph in a dialect, and the placeholders (of `graph`) that it writes, whose new values follow its
    outputs. `outer`: see `Replay.run`."""
    env.closed = True
    if hasattr(env, "inside"):
        env.inside = True
    recorder = Recorder() if dialect == "aten" else _Lowering(SETS[dialect])
    replay = Replay(recorder, env, dialect)
    with torch.no_grad(), dispatch_restored(), recorder:
        outputs = replay.run(graph, outer)
        late = [value for _, value in replay.copies]
    made = recorder.finish([*outputs, *late])
    written = [node for node, _ in replay.copies] + _written(made, placeholders_of(graph))
    if dialect == "prims":
        made = decompose(made)
    return made, written


def _written(made: fx.Graph, placeholders: list[fx.Node]) -> list[fx.Node]:
    """Turn the writes of inputs at the end of a graph into outputs; those of `placeholders` that are written."""
    inputs = dict(zip(placeholders_of(made), placeholders, strict=True))
    copies = made.find_nodes(op="call_function", target=aten.copy_.default)
    output = output_node(made)
    output.args = ((*output.args[0], *[n.args[1] for n in copies]),)  # type: ignore[misc]
    written = [inputs[n.args[0]] for n in copies]  # type: ignore[index]
    for node in copies:
        made.erase_node(node)
    return written


@row(aten._unsafe_view.default, aten._reshape_alias.default)
def _view(x: torch.Tensor, size: Any, *_: Any) -> torch.Tensor:
    return aten.view.default(x, size)


@row(aten.t.default)
def _t(x: torch.Tensor) -> torch.Tensor:
    return aten.permute.default(x, [1, 0]) if x.dim() == 2 else aten.alias.default(x)


@row(aten.transpose.int)
def _transpose(x: torch.Tensor, first: int, second: int) -> torch.Tensor:
    dims = list(range(x.dim()))
    if dims:
        dims[first], dims[second] = dims[second], dims[first]
    return aten.permute.default(x, dims)


@row(aten.squeeze.default)
def _squeeze(x: torch.Tensor) -> torch.Tensor:
    return aten.squeeze.dims(x, [d for d, n in enumerate(x.shape) if type(n) is int and n == 1])


@row(aten.split.Tensor)
def _split(x: torch.Tensor, size: Any, dim: int = 0) -> Any:
    whole = x.shape[dim]
    count = -(-int(whole) // int(size))
    return aten.split_with_sizes.default(x, [size] * (count - 1) + [whole - size * (count - 1)], dim)


@row(aten.unbind.int)
def _unbind(x: torch.Tensor, dim: int = 0) -> Any:
    return [aten.select.int(x, dim, i) for i in range(int(x.shape[dim]))]


@row(aten.stack.default)
def _stack(tensors: Any, dim: int = 0) -> torch.Tensor:
    d = dim % (tensors[0].dim() + 1)
    return aten.cat.default([aten.unsqueeze.default(x, d) for x in tensors], d)


@row(aten.detach.default, aten.lift_fresh.default, aten.lift_fresh_copy.default)
def _same(x: torch.Tensor) -> torch.Tensor:
    return aten.alias.default(x)


@row(aten.expand_as.default)
def _expand_as(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return aten.expand.default(x, list(other.shape))


@row(aten.linear.default)
def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    if weight.dim() == 1:
        made = torch.matmul(x, weight)
        return made if bias is None else made + bias
    across = aten.permute.default(weight, [1, 0])
    flat = x if x.dim() == 2 else aten.view.default(_dense(x), [-1, x.shape[-1]])
    made = aten.mm.default(flat, across) if bias is None else aten.addmm.default(bias, flat, across)
    return made if x.dim() == 2 else aten.view.default(made, [*x.shape[:-1], weight.shape[0]])


def _dense(x: torch.Tensor) -> torch.Tensor:
    return x if x.is_contiguous() else aten.clone.default(x, memory_format=torch.contiguous_format)


@row(aten.scaled_dot_product_attention.default)
def _attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None,
               dropout_p: float = 0.0, is_causal: bool = False, *, scale: float | None = None,
               enable_gqa: bool = False) -> torch.Tensor:
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = (x.repeat_interleave(groups, -3) for x in (key, value))
    scores = torch.matmul(query * factor, key.transpose(-2, -1))
    if is_causal:
        rows = torch.arange(query.shape[-2], device=query.device).unsqueeze(1)
        attn_mask = rows >= torch.arange(key.shape[-2], device=query.device)
    if attn_mask is None:
        weights = torch.softmax(scores, -1)
    elif attn_mask.dtype is torch.bool:
        weights = torch.softmax(torch.where(attn_mask, scores, float("-inf")), -1)
        weights = torch.where(attn_mask.any(-1, True), weights, 0.0)  # a row without a key is nothing
    else:
        scores = scores + attn_mask
        weights = torch.softmax(scores, -1)
        weights = torch.where((scores == float("-inf")).all(-1, True), 0.0, weights)
    if dropout_p:
        weights = torch.dropout(weights, dropout_p, True)
    return torch.matmul(weights, value)


@row("transformers::grouped_mm_fallback")
def _grouped_product(x: torch.Tensor, weights: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    """Rows times the matrix of the group in which they are; `offs` are the ends of the groups, and what is behind the
    last is zero. ATen's operator takes rows of 16 bytes; otherwise all products are made, and one of each row taken."""
    place = torch.arange(x.shape[0], device=x.device).unsqueeze(1)
    step = x.dtype.itemsize
    strides = [n for n in (*x.stride(), *weights.stride()) if type(n) is not int or n != 1]
    if step <= 4 and x.is_floating_point() and all(type(n) is int and n * step % 16 == 0 for n in strides):
        found = aten._grouped_mm.default(x, weights, offs.to(torch.int32))
    else:
        group = (place >= offs).sum(1, keepdim=True).clamp(max=weights.shape[0] - 1)
        found = torch.matmul(x, weights).gather(0, group.expand(-1, weights.shape[2]).unsqueeze(0)).squeeze(0)
    return torch.where(place < offs[-1], found, 0.0)


@row(aten.batch_norm.default, aten.cudnn_batch_norm.default)
def _batch_norm(x: torch.Tensor, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float,
                eps: float, *_: Any) -> Any:
    if training:
        return NotImplemented
    return aten._native_batch_norm_legit_no_training.default(x, weight, bias, mean, var, momentum, eps)[0]


@row(aten.arange.default)
def _arange(end: Any, **options: Any) -> torch.Tensor:
    return aten.arange.start_step(0, end, 1, **options)


@row(aten.arange.start)
def _arange_from(start: Any, end: Any, **options: Any) -> torch.Tensor:
    return aten.arange.start_step(start, end, 1, **options)


def _filled(value: float) -> Any:
    def fill(size: Any, dtype: Any = None, **options: Any) -> torch.Tensor:
        dtype = torch.get_default_dtype() if dtype is None else dtype
        return aten.full.default(size, value, dtype=dtype, **_without_names(options))

    return fill


def _filled_like(value: float) -> Any:
    def fill(x: torch.Tensor, **options: Any) -> torch.Tensor:
        return aten.full_like.default(x, value, **options)

    return fill


def _new(value: float | None) -> Any:
    def fill(x: torch.Tensor, size: Any, *values: Any, dtype: Any = None, device: Any = None, **_: Any) -> torch.Tensor:
        found = values[0] if value is None else value
        dtype, device = x.dtype if dtype is None else dtype, x.device if device is None else device
        return aten.full.default(size, found, dtype=dtype, device=device)

    return fill


@row(aten.all.default)
def _all(x: torch.Tensor) -> torch.Tensor:
    return aten.logical_not.default(aten.any.default(aten.logical_not.default(x)))


@row(aten.all.dim)
def _all_dim(x: torch.Tensor, dim: int, keepdim: bool = False) -> torch.Tensor:
    return aten.logical_not.default(aten.any.dim(aten.logical_not.default(x), dim, keepdim))


@row(aten.all.dims)
def _all_dims(x: torch.Tensor, dim: Any = None, keepdim: bool = False) -> torch.Tensor:
    return aten.logical_not.default(aten.any.dims(aten.logical_not.default(x), dim, keepdim))


def _resized(vec: Any, corners: bool) -> Any:
    def resize(x: torch.Tensor, size: Any, *rest: Any) -> torch.Tensor:
        align = rest[:1] if corners else ()
        scales = [s for s in rest[len(align):] if s is not None]
        return vec(x, None if scales else size, *align, scales or None)

    return resize


for _packet, _corners in (("upsample_bilinear2d", True), ("upsample_nearest2d", False), ("upsample_bicubic2d", True),
                        ("upsample_linear1d", True), ("upsample_trilinear3d", True)):
    ROWS[getattr(aten, _packet).default] = _resized(getattr(aten, _packet).vec, _corners)


def _without_names(options: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in options.items() if k != "names"}


for _names, _of in (((aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default), 0),
                    ((aten.ones.default, aten.ones_like.default, aten.new_ones.default), 1)):
    for _name, _make in zip(_names, (_filled, _filled_like, _new), strict=True):
        ROWS[_name] = _make(_of)
ROWS[aten.new_full.default] = _new(None)
if torch.__version__ < "2.13":
    ROWS[aten.matmul.default] = product
