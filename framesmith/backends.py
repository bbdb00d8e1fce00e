"""Back ends by name: (graph, example inputs, config) -> (callable over one tuple, report or None)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from framesmith import _C
from framesmith.capture_cache.graphs import Image
from framesmith.config import Config
from framesmith.graph.control import close, layout_of, results_of
from framesmith.graph.interpreter import run
from framesmith.graph.pieces import Controlled, Piece, Place, is_cut, pieces
from framesmith.graph.purity import draws
from framesmith.graph.traversal import copy_node, placeholders_of
from framesmith.graph.versions import uncounted, uncounted_inputs
from framesmith.pipeline import Report, begin_graph, is_self_contained, joined
from framesmith.runtime.stepwise import Stepwise
from framesmith.symbolic.node import expr_of, hint_of
from framesmith.util.errors import BackendError
from framesmith.util.generators import rewound_on_error

Compiled = Callable[[tuple[Any, ...]], tuple[Any, ...]]
Backend = Callable[[fx.Graph, Sequence[Any], Config], tuple[Compiled, Report | None]]


def compile_native(graph: fx.Graph, examples: Sequence[Any], config: Config) -> tuple[Compiled, Report | None]:
    """Compile a graph by the pipeline. A graph that draws from a generator of the program's runs operator by operator:
    cached code cannot name an object of this process."""
    return begin_native(graph, examples, config).finish()


@dataclass(frozen=True, slots=True)
class PendingGraph:
    """A graph being compiled: `waits` says whether it is not finished yet."""

    waits: bool
    finish: Callable[..., tuple[Compiled, Report | None]]
    """`finish(meanwhile)`: `meanwhile(image)` is called while it is built, if it is one compiled graph."""


def begin_native(graph: fx.Graph, examples: Sequence[Any], config: Config) -> PendingGraph:
    """Begin the compilation of `compile_native`."""
    if not _is_nameable(graph):
        return PendingGraph(False, lambda meanwhile=None: run_eager(graph, examples, config))
    if is_cut(graph):
        return PendingGraph(False, lambda meanwhile=None: _stepwise(graph, examples, config))
    quiet, foreign = uncounted(graph), any(_is_foreign(node.target) for node in graph.nodes)
    whole = not foreign and not uncounted_inputs(graph)
    begun = begin_graph(graph, config, examples)

    def finish(meanwhile: Callable[[Image], None] | None = None) -> tuple[Compiled, Report | None]:
        result = begun.finish(meanwhile if whole else None)
        call = _C.CompiledFunction(lambda inputs: result.call(inputs), None) if foreign else result.call
        return quiet(call), result.report

    return PendingGraph(begun.waits, finish)


def _stepwise(graph: fx.Graph, examples: Sequence[Any], config: Config) -> tuple[Compiled, Report | None]:
    """Compile the pieces of a graph that computes sizes or branches, and return the function that runs them in
    order."""
    steps = pieces(graph)
    real = dict(zip(placeholders_of(graph), examples, strict=True))
    begun: list[PendingGraph] = []
    for step in steps.steps:
        if isinstance(step, Piece):
            begun.append(begin_native(step.graph, [_example(p, real) for p in step.takes], config))
        elif isinstance(step, Controlled):
            target: Any = step.node.target
            varying = target.varying  # what changes is no parameter
            for arm in target.arms:
                places = placeholders_of(arm)
                operands = (*[None] * varying, *step.node.args[1 + varying:1 + len(places)])  # behind them are tables
                given = [_example(a if isinstance(a, fx.Node) and _alike(a, n) else n, real)
                         for n, a in zip(places, operands, strict=True)]
                begun.append(_begin_arm(arm, operands, given, config))
    calls, reports = zip(*[b.finish() for b in begun]) if begun else ((), ())
    call = _C.CompiledFunction(Stepwise(graph, steps, calls).__call__, None)
    return uncounted(graph)(call), joined([r for r in reports if r is not None])


def _begin_arm(arm: fx.Graph, operands: Sequence[Any], examples: Sequence[Any], config: Config) -> PendingGraph:
    """Begin an arm of a branch or the body of a loop: computed results are compiled, others are passed on."""
    results = results_of(arm)
    computed = list(dict.fromkeys([r for r in results if isinstance(r, fx.Node) and r.op != "placeholder"]))
    graph, made = fx.Graph(), dict[fx.Node, fx.Node]()
    places = placeholders_of(arm)
    for place, operand in zip(places, operands, strict=True):
        made[place] = copy_node(graph, place, made.__getitem__)
        made[place].meta = {"val": place.meta["val"], **{k: v for k, v in getattr(operand, "meta", {}).items()
                                                         if k in ("param", "constant", "source")}}
    for node in arm.nodes:
        if node.op == "call_function":
            made[node] = copy_node(graph, node, made.__getitem__)
    close(graph, [made[n] for n in computed])
    begun = begin_native(graph, examples, config) if len(graph.nodes) > len(places) + 1 else None
    known: dict[Any, int] = {n: k for k, n in enumerate([*places, *computed])}
    order = [known.get(r, -1) for r in results]

    def finish() -> tuple[Compiled, Report | None]:
        call, report = begun.finish() if begun is not None else (lambda given: (), None)

        def run(given: Any) -> tuple[Any, ...]:
            found = [*given, *call(tuple(given))]
            return tuple([found[k] if k >= 0 else None for k in order])

        return run, report

    return PendingGraph(False, finish)


def _alike(operand: fx.Node, place: fx.Node) -> bool:
    """Return whether an arm's input has the layout of the operand: its sizes may be the arm's own."""
    a, b = operand.meta["val"], place.meta["val"]
    return not isinstance(a, torch.Tensor) or layout_of(a, expr_of) == layout_of(b, expr_of)


def _example(place: Place, real: dict[fx.Node, Any]) -> Any:
    """Return an example of an input of a piece for its compilation: the graph's own input, or a tensor of guessed
    sizes."""
    if not isinstance(place, fx.Node):
        return 0
    if place in real:
        return real[place]
    if isinstance(place.meta["val"], torch.Tensor):
        val = place.meta["val"]
        return torch.empty_strided([*map(hint_of, val.shape)], [*map(hint_of, val.stride())], dtype=val.dtype,
                                   device="meta")
    return 0


def begin_ahead(graph: fx.Graph, config: Config) -> PendingGraph | None:
    """Begin the same before there are inputs, where that is worthwhile."""
    if not _is_nameable(graph) or not is_self_contained(graph, config):
        return None
    return begin_native(graph, [None for n in graph.nodes if n.op == "placeholder"], config)


def _is_nameable(graph: fx.Graph) -> bool:
    """Return whether a target names no object of this process."""
    return not _generators_of(graph)


def _generators_of(graph: fx.Graph) -> list[torch.Generator]:
    """Return the program's own generators that a graph draws from."""
    given = (a for node in graph.nodes for a in (*node.args, *node.kwargs.values()) if isinstance(a, torch.Generator))
    return list(dict.fromkeys(given))


def _is_foreign(target: Any) -> bool:
    """Return whether an operator is the program's: its kernel may be Python, which must not be captured while the graph
    runs."""
    return (isinstance(target, torch._ops.OpOverload) and target.namespace not in _COMPILED
            or hasattr(target, "positions"))


_COMPILED = frozenset({"aten", "mkldnn", "framesmith"})
"""Namespaces of operators whose kernels are C++."""


def run_eager(graph: fx.Graph, examples: Sequence[Any], config: Config) -> tuple[Compiled, Report | None]:
    """Run the captured graph operator by operator, to find the stage that causes a fault."""
    return uncounted(graph)(_settled(graph, lambda *inputs: run(graph, inputs))), None


def run_user(fn: Callable[..., Any], graph: fx.Graph, examples: Sequence[Any]) -> Compiled:
    """Return what a user's back end makes of a graph."""
    return uncounted(graph)(_settled(graph, fn(fx.GraphModule(torch.nn.Module(), graph), list(examples))))


def _settled(graph: fx.Graph, call: Callable[..., Sequence[Any]]) -> Compiled:
    """Wrap a graph's code to run as recorded, in any modes of its caller: casts are already in it, it is not
    differentiated, and the Python of back ends and custom operators that runs it is not captured. Where it raises,
    generators are as they were."""
    random, own = any(map(draws, graph.nodes)), _generators_of(graph)

    def compiled(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        differentiates = torch.is_grad_enabled()
        if not (random or differentiates or torch._C._is_any_autocast_enabled()):
            return tuple(call(*inputs))
        with torch.no_grad(), torch._C._DisableAutocast(), rewound_on_error(*own) if random else nullcontext():
            found = call(*inputs)
            return tuple([_writable(x, inputs) for x in found] if differentiates else found)

    return _C.CompiledFunction(compiled, None)


def _writable(x: Any, inputs: tuple[Any, ...]) -> Any:
    """Return a graph's result; one that is a view may be written in grad mode, though it was made with that off."""
    if isinstance(x, torch.Tensor) and x._is_view() and all(x is not y for y in inputs):
        meta: Any = torch._C._autograd
        meta._set_creation_meta(x, meta.CreationMeta.DEFAULT)
    return x


BACKENDS: dict[str, Backend] = {
    **dict.fromkeys(("native", "framesmith", "inductor", "cudagraphs"), compile_native),
    **dict.fromkeys(("eager", "aot_eager"), run_eager),
}
NATIVE = frozenset(name for name, backend in BACKENDS.items() if backend is compile_native)
_users: dict[str, Callable[..., Any]] = {}


def register_backend(fn: Callable[..., Any] | None = None, *, name: str | None = None) -> Any:
    """Make `backend=name` (default: the function's name) mean `fn(gm, example_inputs) -> callable`; also a
    decorator."""
    if fn is None:
        return lambda f: register_backend(f, name=name)
    _users[name or fn.__name__] = fn

    def adapter(graph: fx.Graph, examples: Sequence[Any], config: Config) -> tuple[Compiled, Report | None]:
        return run_user(fn, graph, examples), None

    BACKENDS[name or fn.__name__] = adapter
    return fn


def list_backends() -> list[str]:
    """Return the names that `backend=` takes."""
    return sorted(BACKENDS)


def lookup_backend(name: str) -> Callable[..., Any]:
    """Return the callable behind a name: `(gm, example_inputs) -> callable`. Raises `BackendError` for an unknown one.

    The native one takes graphs as another back end receives them from `compile`.
    """
    if name in _users:
        return _users[name]
    if name not in BACKENDS:
        raise BackendError(f"unknown backend {name!r}; known: {', '.join(list_backends())}")

    def compile_module(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        call, _ = BACKENDS[name](gm.graph, example_inputs, Config.from_env())
        return lambda *inputs: call(inputs)

    return compile_module
