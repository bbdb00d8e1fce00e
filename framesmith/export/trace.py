"""One call of a model, followed by capture without a break: a graph of functional ATen operators, and what its inputs
and results are in the program."""

from __future__ import annotations

import linecache
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn

from framesmith.autograd.joint import without_history
from framesmith.capture import data
from framesmith.capture import trackers as t
from framesmith.capture.arms import refuse_shared
from framesmith.capture.entry import UserError, graph_inputs, root_frame
from framesmith.capture.modes import restore_devices
from framesmith.capture.rebuild import Rebuilder
from framesmith.capture.settings import undo
from framesmith.capture.sources import Local, Source
from framesmith.capture.tracer import Tracer, read_state, restore_state
from framesmith.export.dims import Dim, Shapes, Wish
from framesmith.export.places import Stack
from framesmith.export.ranges import Constraints, RangedEnv, settle
from framesmith.export.trees import Tree, flatten
from framesmith.fake import Recorder, dispatch_restored
from framesmith.fake.layout import strides_like
from framesmith.fake.tensor import LayoutSeen
from framesmith.graph.traversal import placeholders_of
from framesmith.prims.core import Spec, size_of
from framesmith.symbolic.env import ShapeGuard
from framesmith.symbolic.expr import Expr
from framesmith.symbolic.node import expr_of, symint
from framesmith.util.collector import collector_paused
from framesmith.util.dynamo import dynamo_off
from framesmith.util.errors import ExportError, Unsupported
from framesmith.util.recursion import deep_recursion
from framesmith.util.stack import Place, user_frame


@dataclass(frozen=True, slots=True)
class Leaf:
    """A leaf of the result: `kind` is "output" (which of the graph's), "input" (which leaf of the arguments), "state"
    (the name of a parameter, buffer or constant), "size" (an expression) or "constant" (a Python value)."""

    kind: str
    value: Any


@dataclass(slots=True)
class Traced:
    """`graph`: placeholders, in order, are `places` (kind, name or number of leaf); its outputs are those that `leaves`
    name, then the new values of `written` buffers, and writes of inputs are `copy_` at its end."""

    graph: fx.Graph
    places: list[tuple[str, Any]]
    leaves: list[Leaf]
    out_tree: Tree
    written: list[str]
    state: dict[str, torch.Tensor]
    env: RangedEnv
    constraints: Constraints
    results: int
    """The number of the graph's outputs that make up the result."""
    unused: dict[int, Spec]
    """Tensors among the arguments that the graph does not take."""
    dropped: list[str] = field(default_factory=list)
    steps: int = 0


class _Tracer(Tracer):
    """A capture whose sizes are those that are declared, and that may assume no data of an argument. `assumed`: tensors
    of the model's of which it assumes data."""

    takes_numbers = False
    assumed: list[torch.Tensor]
    asked: dict[int, dict[int, Wish]]
    labels: dict[int, str]
    paths: dict[int, str]
    shapes_of: dict[int, tuple[Any, ...]]
    stacks: dict[int, tuple[Any, int]]
    """Frames of modules by identity, kept alive, and which call of theirs each is."""

    def symbolic_shape(self, value: torch.Tensor, source: Source) -> tuple[Any, ...] | None:
        wishes = self.asked.get(id(value))
        if not wishes:
            return None
        env: Any = self.shapes
        shape: list[Any] = list(value.shape)
        for d, wish in wishes.items():
            symbol: Expr = env.declare(wish, value.shape[d], f"{self.labels[id(value)]}_{d}")
            shape[d] = symint(symbol * wish.scale + wish.offset if isinstance(wish, Dim) else symbol, env)
        self.shapes_of[id(value)] = tuple(shape)
        return tuple(shape)

    def user_stack(self) -> tuple[Place, ...]:
        return Stack.of(super().user_stack(), tuple(self._modules()))

    def _modules(self) -> Iterator[tuple[str, int]]:
        last = None
        for frame in self.frames:
            first = frame.locals[0] if frame.locals else None
            path = self.paths.get(id(first.value)) if isinstance(first, t.Module) else None
            if path is not None and path != last:
                known = self.stacks.get(id(frame))
                if known is None:
                    known = self.stacks[id(frame)] = frame, len(self.stacks)
                yield path, known[1]
                last = path

    def recorded(self, fn: Any, real: list[Any], named: dict[str, Any]) -> t.Tracker:
        with self._inside():
            return super().recorded(fn, real, named)

    def fake_input(self, value: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        with self._inside():
            return super().fake_input(value, *args, **kwargs)

    @contextmanager
    def _inside(self) -> Iterator[None]:
        env: Any = self.shapes
        was, env.inside = env.inside, True
        try:
            yield
        finally:
            env.inside = was


class _Rebuilder(Rebuilder):
    """Writes the result with a `Leaf` for each tensor."""

    def tensor(self, x: t.Tensor) -> str:
        if x.value is not None and x.source is not None:
            return self.hold(x.value)
        at = self.output_at.get(id(x.fake))
        if at is None:
            at = self.output_at[id(x.fake)] = len(self.outputs)
            self.outputs.append(x.fake)
        return self.hold(Leaf("output", at))

    def value(self, x: t.Tracker) -> str:
        if type(x) is t.Data and data.is_size(self.tracer, x):
            x = t.Sym(data.size(self.tracer, x))
        return super().value(x)

    def size(self, x: t.Sym) -> str:
        if isinstance(x.value, int):
            return self.hold(Leaf("constant", x.value))
        if not isinstance(x.value, torch.SymInt):
            raise Unsupported("a result that is a float or a bool computed of sizes",
                              hint="return it as a tensor: torch.tensor(value)")
        found = expr_of(x.value)
        if found.free.isdisjoint(self.tracer.shapes.data):
            return self.hold(Leaf("size", found))
        self.outputs.append(x.value)
        return self.hold(Leaf("output", len(self.outputs) - 1))


def trace(model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], shapes: Shapes,
          labels: list[str], *, training: bool = False, data_sizes: bool = True) -> Traced:
    """Capture `model(*args, **kwargs)` whole. `labels`: what the leaves of the arguments are called. `data_sizes`: the
    graph may have sizes that depend on data.

    Raises `ExportError` where the program cannot be captured without a break, with the user's line; sizes that the
    program ties down are left in `constraints.violations`.
    """
    leaves, _ = flatten((args, kwargs))
    changing = {id(x) for x in leaves if isinstance(x, torch.Tensor)}
    unrolled: frozenset[t.Place] = frozenset()
    lists_data, narrow, why = data_sizes, False, ""
    while True:
        try:
            traced, assumed = _trace(model, args, kwargs, leaves, shapes, labels, training, changing, unrolled,
                                     data_sizes, lists_data, narrow)
        except t.ListSeen:
            lists_data = False
            continue
        except LayoutSeen as e:
            if narrow:
                raise ExportError(f"the program cannot be exported whole: {e}") from e
            narrow = True
            continue
        except t.LoopUnrolled as e:
            if e.place in unrolled:
                raise ExportError(f"the program cannot be exported whole: {e}") from e
            unrolled |= {e.place}
            why = why if isinstance(e, (t.BranchApart, t.FirstRoundApart)) else str(e)
            continue
        except ExportError as e:
            if why:
                raise ExportError(f"{e}\n  a loop is followed round by round, since {why}") from e
            raise
        written = assumed & {id(traced.state.get(name)) for name in written_state(traced)}
        if not written:
            return traced
        changing |= written


def written_state(traced: Traced) -> list[str]:
    """Names of the parameters, buffers and constants that the program writes or sets."""
    placeholders = placeholders_of(traced.graph)
    copied = {n.args[0] for n in traced.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)}
    return [*(target for (kind, target), node in zip(traced.places, placeholders, strict=True)
              if node in copied and kind != "input"), *traced.written]


def _trace(model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], leaves: list[Any], shapes: Shapes,
           labels: list[str], training: bool, changing: set[int], unrolled: frozenset[t.Place], data_sizes: bool,
           lists_data: bool, narrow: bool) -> tuple[Traced, set[int]]:
    """Capture a call; returns the capture, and the tensors of which it assumes data: none of those that are `changing`,
    by identity. `unrolled`: loops that are no nodes. `lists_data`: results of `tolist` may be numbers of the graph.
    `narrow`: see `ShapeEnv`."""
    code, call = _root(model)
    state = read_state()
    recorder = Recorder()
    tracer = _Tracer(recorder, call.__globals__)
    env = tracer.shapes = RangedEnv()
    env.where, env.narrow = tracer.user_place, narrow
    env.reserved = frozenset(w.name for wishes in shapes.values() for w in wishes.values() if isinstance(w, Dim))
    recorder.shape_env = env if data_sizes else None
    tracer.branches, tracer.unrolled, tracer.lists_data = not training, unrolled, lists_data
    tracer.asked = {id(x): shapes[i] for i, x in enumerate(leaves) if i in shapes}
    tracer.labels = {id(x): label for x, label in zip(leaves, labels, strict=True)}
    tracer.shapes_of = {}
    tracer.stacks, tracer.paths = {}, {id(m): path for path, m in model.named_modules()} if isinstance(
        model, nn.Module) else {}
    tracer.assumed = []
    recorder.content = lambda node: _content(tracer, node, changing)
    try:
        with (dynamo_off(), collector_paused(), torch.set_grad_enabled(training), dispatch_restored(),
              deep_recursion()):
            tracer.state = read_state()
            recorder.follows_grad = training
            traced = _captured(tracer, code, call, args, kwargs, model, leaves)
            return traced, set(map(id, tracer.assumed))
    except t.CapturedError as e:
        error = UserError(e.tracker, tracer.where())
        raise ExportError(str(error)) from None
    except (t.ListSeen, LayoutSeen):
        raise
    except Unsupported as e:
        if e.at is None and (where := tracer.where()) is not None:
            e.at = where[:2]
        raise ExportError(f"the program cannot be exported whole: {e}") from e
    finally:
        undo(tracer.settings) if hasattr(tracer, "settings") else None
        tracer.release()
        restore_state(state)


def _root(model: Callable[..., Any]) -> tuple[types.CodeType, Any]:
    def call_model(*args: Any, **kwargs: Any) -> Any:
        return model(*args, **kwargs)

    return call_model.__code__, call_model


def _content(tracer: _Tracer, node: fx.Node, changing: set[int]) -> tuple[torch.Tensor, Callable[[], None]] | None:
    """Return the elements of an input, and what assumes them; None of an input whose elements change."""
    x = next((i for i in tracer.inputs if i.fake._alias.storage.input is node), None)
    found = None if x is None or id(x.value) in changing else data.content(tracer, node)
    if x is None or found is None:
        return None
    elements, assume = found

    def assumed() -> None:
        tracer.assumed.append(x.value)
        assume()

    return elements, assumed


@contextmanager
def _recording(tracer: Tracer) -> Iterator[None]:
    with tracer.recorder, tracer.modes, torch._C.DisableTorchFunctionSubclass():
        yield


def _captured(tracer: _Tracer, code: types.CodeType, call: Any, args: tuple[Any, ...], kwargs: dict[str, Any],
              model: Any, leaves: list[Any]) -> Traced:
    with _recording(tracer):
        root = root_frame(tracer, code, {"args": args, "kwargs": kwargs}, call.__closure__)
        tracer.frames.append(root)
        result = root.run()
        rebuilder = _Rebuilder(tracer, code, {"args": "args", "kwargs": "kwargs"})
        if tracer.draws:
            raise Unsupported("the program draws numbers of Python's generators", hint="draw them with torch")
        text = rebuilder.value(result)
        names = _Names(model, leaves)
        results = len(rebuilder.outputs)
        refuse_shared(tracer, ())
        written, dropped = _effects(tracer, rebuilder, names)
        space = {**{f"__fs_h{i}": held for i, held in enumerate(rebuilder.held)}, "args": args, "kwargs": kwargs,
                 "__builtins__": {**vars(__import__("builtins"))}}
    value = _run(rebuilder.lines, text, space)
    found, out_tree = flatten(value, lambda x: isinstance(x, Leaf))
    env: Any = tracer.shapes
    graph = without_history(tracer.recorder.finish(rebuilder.outputs)) if not torch.is_grad_enabled() else (
        tracer.recorder.finish(rebuilder.outputs))
    restore_devices(tracer.devices)
    places = [names.of(value) for _, value in graph_inputs(tracer, graph, 0)]
    given = [_leaf(x, names) for x in found]
    taken = {place for kind, place in places if kind == "input"}
    unused = {i: _spec(tracer, x) for i, x in enumerate(leaves) if isinstance(x, torch.Tensor) and i not in taken}
    return Traced(graph, places, given, out_tree, written, names.state, env, settle(env, _guards(env)), results, unused,
                  dropped, tracer.steps)


def _spec(tracer: _Tracer, x: torch.Tensor) -> Spec:
    """Return the metadata of a tensor that the program does not read."""
    shape = tracer.shapes_of.get(id(x)) or tracer.symbolic_shape(x, Local("x")) or tuple(x.shape)
    return Spec(tuple(map(size_of, shape)), x.dtype, x.device, tuple(map(size_of, strides_like(x, shape))))


def _run(lines: list[str], text: str, space: dict[str, Any]) -> Any:
    """Return the program's result, made of leaves by the statements that would make it of tensors."""
    module = compile("\n".join([*lines, f"__fs_result = {text}"]), "<result of the export>", "exec")
    try:
        exec(module, space)
    except Exception as e:
        raise Unsupported(f"the result cannot be made of tensors alone ({type(e).__name__}: {e})",
                          hint="return tensors, in tuples, lists, dicts and registered containers") from e
    return space["__fs_result"]


class _Names:
    """The names of tensors: leaves of the arguments by number, parameters and buffers by their path, any other tensor
    of the model's as a constant."""

    def __init__(self, model: Any, leaves: list[Any]) -> None:
        self.leaves = {id(x): i for i, x in reversed(list(enumerate(leaves))) if isinstance(x, torch.Tensor)}
        self.state: dict[str, torch.Tensor] = {}
        self.known: dict[int, tuple[str, str]] = {}
        self.buffers: dict[int, str] = {}
        """Paths of the dicts of buffers, by their identity."""
        self.modules: dict[int, str] = {}
        modules = list(model.named_modules()) if isinstance(model, nn.Module) else []
        for path, module in modules:
            self.modules[id(module)] = path
            self.buffers[id(module._buffers)] = path
        for kind, named in (("parameter", "named_parameters"), ("buffer", "named_buffers")):
            for name, x in getattr(model, named)(remove_duplicate=False) if modules else ():
                self.known.setdefault(id(x), (kind, name))

    def of(self, x: torch.Tensor) -> tuple[str, Any]:
        """Kind and name; a tensor that has none yet becomes a constant."""
        if id(x) in self.leaves:
            return "input", self.leaves[id(x)]
        if id(x) not in self.known:
            self.known[id(x)] = "constant", f"constant_{sum(k == 'constant' for k, _ in self.known.values())}"
        kind, name = self.known[id(x)]
        self.state[name] = x
        return kind, name


def _leaf(x: Any, names: _Names) -> Leaf:
    if isinstance(x, Leaf):
        return x
    if isinstance(x, torch.Tensor):
        kind, name = names.of(x)
        return Leaf("input" if kind == "input" else "state", name)
    if x is None or isinstance(x, (bool, int, float, str, complex, torch.dtype, torch.device)):
        return Leaf("constant", x)
    raise Unsupported(f"the result holds a {type(x).__name__}", hint="return tensors, in tuples, lists, dicts and "
                      "registered containers (torch.utils._pytree.register_pytree_node)")


def _effects(tracer: Tracer, rebuilder: Rebuilder, names: _Names) -> tuple[list[str], list[str]]:
    """Return the buffers that the program sets (their values become outputs), and what else it changes outside of
    tensors, which an exported program does not do."""
    written, dropped = [], []
    read = {id(i.value) for i in tracer.inputs}
    for x in tracer.mutated.values():
        path = names.buffers.get(id(x.value)) if isinstance(x, t.Dict) else None
        if path is None or not isinstance(x, t.Dict):
            if what := _changed(x, names, read):
                dropped.append(what)
            continue
        for name, now in x.entries.items():
            if isinstance(now, t.Tensor) and now.value is not x.value.get(name):
                rebuilder.outputs.append(now.fake)
                written.append(f"{path}.{name}" if path else str(name))
                names.of(x.value[name])
    dropped += [f"global {name}" for _, name in [(s, n) for (_, n), (s, _) in tracer.global_writes.items()]]
    dropped += [f"{cls.__name__}.{name}" for cls, written in tracer.class_writes.items() for name in written]
    if tracer.checks:
        dropped.append(f"{len(tracer.checks)} assertions on data of tensors")
    return written, dropped


def _changed(x: Any, names: _Names, read: set[int]) -> str:
    """Describe the program's changes to an object outside; "" if they were undone. Raises `Unsupported` where it keeps
    a tensor there: a later call may read it, unless this one has replaced a tensor that it did not `read` (a pruned
    weight, which each call computes)."""
    value = getattr(x, "value", None)
    path = names.modules.get(id(value)) or type(value).__name__
    before = getattr(x, "before", None)
    if not isinstance(before, dict):
        return path
    changed = []
    for name, old in before.items():
        now = x.attrs.get(name)
        if isinstance(now, t.Const) and (now.value is old or type(now.value) is type(old) and now.value == old):
            continue
        replaced = isinstance(old, torch.Tensor) and id(old) not in read
        if isinstance(now, t.Tensor) and now.value is None and not replaced:
            raise Unsupported(f"the program keeps a tensor in {path}.{name}",
                              hint="register it as a buffer, or return it")
        changed.append(str(name))
    return f"{path}.{', '.join(changed)}" if changed else ""


def _guards(env: RangedEnv) -> list[tuple[ShapeGuard, str, str]]:
    return [(g, *describe(g.stack)) for g in env.guards]


def describe(stack: Any) -> tuple[str, str]:
    """`file:line in function` of the user's innermost line, and its text."""
    if not stack:
        return "", ""
    file, line, function = user_frame(stack)
    return f"{file}:{line} in {function}", linecache.getline(file, line).strip()
