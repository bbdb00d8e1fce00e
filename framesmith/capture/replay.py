"""Modules that are called as one before them was, such as the layers of a model: the call is not interpreted again.

A call of a module of the program is kept with what interpreting it asked and did, in order: guards, inputs of the
graph, torch calls. Of a call of another module of the class, arguments are compared, and the guards on what is beneath
the first module are checked, as a guard tree, on what is beneath the second: then interpreting it would ask and do the
same. So these guards are assumed, its tensors become inputs, and the torch calls are made on its fakes: everything that
the recorder does is done again, and nothing that the interpreter does.

Only calls without other effects are kept, while the program has changed nothing that exists outside. Values that such a
call can see are then what guards compare, its arguments, and what is the same for all.
"""

from __future__ import annotations

import builtins
import functools
import itertools
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from framesmith.fake import FakeTensor
from framesmith.util.errors import FramesmithError, GuardError, Unsupported

from . import trackers as t
from .bare_guards import merged
from .call_log import CallEvent, Event, GuardEvent, InputEvent, ObjectEvent, state_of_call
from .contents import plain_names
from .guards import GuardTree, compile_guards
from .registry import EAGER_MODULES
from .sources import Guard, Local, Source
from .thread_state import read_state
from .trackers.objects import namespace_of

LEAST = 40
"""The least number of instructions of a call that is kept."""
MOST = 4
"""The number of calls of one class of modules that are kept."""
TRIES = 8
"""Failures of a kept call to fit after which it is forgotten."""
_ROOT = Local("__fs_module")
_GROWING = frozenset((
    "guards", "seen", "keep", "inputs", "differentiable", "namespaces", "class_cache", "infos", "plainly_named",
    "plain_metas", "followed", "global_values", "_owners", "cells", "turn", "steps", "changes", "readings", "compared",
    "log", "nodes_made", "guards_asked"))
"""Attributes of the tracer that a call may change and still be kept: what they hold is made again, or is the same for
all modules."""
_EMPTY = ("global_writes", "overlay", "class_writes", "made_classes", "branching", "looping", "counting",
          "counters", "settings", "backwards", "numbers", "locks", "wrapped_parts", "varying", "transformed", "touched",
          "questions", "device_changes", "due")
_PLAIN = frozenset((int, float, bool, complex, str, bytes, type(None), type(...), torch.dtype, torch.device,
                    torch.layout, torch.memory_format, torch.Size))
_FUNCTIONS = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
              types.MethodWrapperType, types.MethodType, torch._ops.OpOverload, torch._ops.OpOverloadPacket)


class ReplayDiverged(Unsupported):
    """A torch call of a kept call did not give what it gave before: the frame is captured without kept calls."""


class _NotReplayable(Exception):
    """A value that a kept call cannot have."""


class RecordedCall:
    """A call of `module` with arguments, in a state of the thread, from event `first` of the tracer's log on."""

    def __init__(self, tracer: Any, module: t.Module, args: list[t.Tracker], kwargs: dict[str, t.Tracker]) -> None:
        self.source: Source = module.source  # type: ignore[assignment]
        self.names = tuple(kwargs)
        self.given = [*args, *kwargs.values()]
        self.looks = [_metadata_of(tracer, x) for x in _tensors(self.given)]
        self.first, self.steps, self.depth = len(tracer.log), tracer.steps, len(tracer.frames)
        self.state = read_state(), state_of_call(tracer), tracer.changes_outside
        self.fresh = is_fresh(tracer, module)
        self.before = _effects(tracer)
        self.events: list[Event] = []
        self.result: t.Tracker = t.NONE
        self.misses = 0

    def end(self, tracer: Any, result: t.Tracker) -> bool:
        """Return whether the call can be kept, which has given `result`."""
        self.steps = tracer.steps - self.steps
        if self.steps < LEAST or not self.fresh or not is_quiet(tracer) or self.before != _effects(tracer):
            return False
        if self.state != (read_state(), state_of_call(tracer), tracer.changes_outside):
            return False
        self.events, self.result = tracer.log[self.first:], result
        calls = [e for e in self.events if isinstance(e, CallEvent)]
        try:
            list(_tensors([result]))
            for e in calls:
                _renewed((e.args, e.kwargs, e.out), {})
        except _NotReplayable:
            return False
        return (all(e.state == self.state[1] and _is_known(e.fn) for e in calls)
                and [_metadata_of(tracer, x)[-1] for x in _tensors(self.given)] == [look[-1] for look in self.looks])

    @functools.cached_property
    def beneath(self) -> set[Source]:
        """The sources of events that are beneath the module."""
        known: dict[Source, bool] = {self.source: True}

        def ask(source: Source) -> bool:
            if source not in known:
                known[source] = source.base is not None and ask(source.base)
            return known[source]

        for e in self.events:
            if not isinstance(e, CallEvent):
                ask(e.source)
                if type(e) is GuardEvent and e.kind == "same":
                    ask(e.value)
        return {source for source, found in known.items() if found}

    @functools.cached_property
    def plan(self) -> list[Event]:
        """The events to repeat: of those on what is beneath the module, guards once, merged as they are in the end."""
        events: list[Event] = []
        for happens, group in itertools.groupby(self.events, lambda e: isinstance(e, (CallEvent, InputEvent))):
            if happens:
                events += group
                continue
            asked: dict[Any, Guard] = {}
            for e in group:
                if type(e) is not GuardEvent or e.source not in self.beneath:
                    events.append(e)
                elif e.kind != "tensor":
                    key = e.source, e.kind, e.value if type(e.value) is str else id(e.value)
                    asked.setdefault(key, Guard(e.source, e.kind, e.value, e.place))
            events += [GuardEvent(g.source, g.kind, g.value, g.stack) for g in merged(asked.values())]  # type: ignore[arg-type]
        return events

    @functools.cached_property
    def tree(self) -> GuardTree | None:
        """The guards on what is beneath the module; it gives the inputs there, and then the objects. None: no tree can
        hold them."""
        moved: dict[Source, Source] = {self.source: _ROOT}
        guards: list[Guard] = []
        inputs: list[Source] = []
        met: list[Source] = []
        for e in self.events:
            if isinstance(e, CallEvent) or e.source not in self.beneath:
                continue
            source = rebased(e.source, moved)
            if type(e) is GuardEvent:
                guards.append(Guard(source, e.kind, rebased(e.value, moved) if e.kind == "same" else e.value))
            else:
                (inputs if type(e) is InputEvent else met).append(source)
        try:
            return compile_guards(guards, [*inputs, *met], {})
        except (GuardError, ValueError, TypeError):
            return None


class Replays:
    """The kept calls of one capture, by the class of the module."""

    def __init__(self) -> None:
        self.kept: dict[type, list[RecordedCall]] = {}
        self.met: set[int] = set()
        """Objects that calls which were not interpreted have read."""
        self.count = 0

    def call(self, tracer: Any, module: t.Module, args: list[t.Tracker], kwargs: dict[str, t.Tracker],
             follow: Callable[[], t.Tracker]) -> t.Tracker:
        """Call a module from outside; `follow` interprets the call."""
        if not is_quiet(tracer):
            return follow()
        for kept in self.kept.get(module.cls, ()):
            found = self._fit(tracer, kept, module, args, kwargs)
            if found is not None:
                self.count += 1
                return self._replay(tracer, kept, module.source, *found)  # type: ignore[arg-type]
        try:
            kept = RecordedCall(tracer, module, args, kwargs)
        except _NotReplayable:
            return follow()
        result = follow()
        if kept.end(tracer, result) and len(known := self.kept.setdefault(module.cls, [])) < MOST:
            known.insert(0, kept)
        return result

    def _fit(self, tracer: Any, kept: RecordedCall, module: t.Module, args: list[t.Tracker],
             kwargs: dict[str, t.Tracker]) -> tuple[dict[int, Any], list[Any]] | None:
        """Return the fakes that take the place of the kept call's, by identity, and the tensors that become inputs;
        None: the call is another one."""
        fakes: dict[int, Any] = {}
        given = [*args, *kwargs.values()]
        if (kept.misses >= TRIES or not (is_fresh(tracer, module) or module.source == kept.source)
                or kept.names != tuple(kwargs) or len(kept.given) != len(given)
                or tracer.steps < tracer.break_step <= tracer.steps + kept.steps
                or not all(_same(a, b, fakes) for a, b in zip(kept.given, given, strict=True))
                or len({id(x) for x in fakes.values()}) != len(fakes)):
            return None
        try:
            looks = [_metadata_of(tracer, x) for x in _tensors(given)]
        except _NotReplayable:
            return None
        if looks != kept.looks or (read_state(), state_of_call(tracer), tracer.changes_outside) != kept.state:
            return None
        tree = kept.tree
        root = tracer.frames[0]
        arguments = {root.dec.localsplus[slot]: value for slot, value in tracer.arguments.items()}
        cells = {name: cell.real_cell for name, cell in zip(root.code.co_freevars, root.fn.closure, strict=False)}
        values: Any = tree and tree.check({**arguments, _ROOT.name: module.value}, tracer.root_globals,
                                          builtins.__dict__, cells)
        if values is None:
            kept.misses += 1
            return None
        count = sum(type(e) is InputEvent and e.source in kept.beneath for e in kept.events)
        met = {id(x): x for x in values[count:]}
        if module.source != kept.source and (not self.met.isdisjoint(met) or not tracer.seen.keys().isdisjoint(met)):
            return None  # another path leads to one of them, which is guarded where it is read
        changed = {type(getattr(x, "value", None)) for x in tracer.mutated.values()}
        if not all(map(_is_plain, met.values())) or not changed.isdisjoint(map(type, met.values())):
            return None
        self.met.update(met)
        tracer.keep.extend(met.values())
        return fakes, list(values[:count])

    def _replay(self, tracer: Any, kept: RecordedCall, source: Source, fakes: dict[int, Any],
                tensors: list[Any]) -> t.Tracker:
        """Do what the kept call did for another module, the one at `source`."""
        moved, beneath, inputs = {kept.source: source}, kept.beneath, iter(tensors)
        base = len(tracer.user_stack())
        try:
            for e in kept.plan:
                if isinstance(e, CallEvent):
                    tracer.inside = e.stack[kept.depth:], e.place
                    fn = e.fn
                    if type(owner := getattr(fn, "__self__", None)) is FakeTensor:
                        fn = getattr(fakes.get(id(owner), owner), fn.__name__)
                    args, kwargs = _renewed(e.args, fakes), _renewed(e.kwargs, fakes)
                    tracer.recorded(fn, args, kwargs)
                    _pair(e.out, tracer.log[-1].out, fakes)
                elif e.source not in beneath:
                    tracer.log.append(e)
                elif type(e) is GuardEvent:
                    tracer.inside = (), e.place
                    tracer.guard(rebased(e.source, moved), e.kind,
                                 rebased(e.value, moved) if e.kind == "same" else e.value)
                elif type(e) is InputEvent:
                    tracer.inside = (), e.place
                    _pair(e.fake, tracer.input(next(inputs), rebased(e.source, moved)).fake, fakes)
                else:
                    tracer.log.append(ObjectEvent(rebased(e.source, moved)))
        except (FramesmithError, t.CapturedError, _NotReplayable) as error:
            raise ReplayDiverged(f"a call like one before it: {error}") from error
        finally:
            tracer.inside = None
        assert base == len(tracer.user_stack())
        tracer.steps += kept.steps
        return _result(tracer, kept.result, fakes)


def is_fresh(tracer: Any, module: t.Module) -> bool:
    """Return whether nothing of a module was read or changed yet by its path."""
    return not module.attrs and not module.subs and id(module) not in tracer._views


def is_quiet(tracer: Any) -> bool:
    """Return whether the program has changed nothing that exists outside, and is on no path of its own."""
    shapes, modes = tracer.shapes, tracer.modes
    return (tracer.functions and not any(map(vars(tracer).get, _EMPTY))
            and not (shapes.symbols or shapes.data or modes.active or modes.functions))


def _effects(tracer: Any) -> Any:
    """Return a value that another effect of the program changes than those that events tell."""
    made = [len(v) if isinstance(v, (list, dict, set)) else v for name, v in vars(tracer).items()
            if name not in _GROWING and isinstance(v, (list, dict, set, int, types.NoneType))]
    surroundings = tracer.surroundings
    return [*made, len(tracer.recorder.graph.nodes) - tracer.nodes_made, len(surroundings.answers), surroundings.bound,
            len(tracer.seeds.before), len(tracer.guards) - tracer.guards_asked]


def _metadata_of(tracer: Any, x: t.Tensor) -> Any:
    """Return what a call sees of a tensor, but its elements."""
    fake = x.fake
    alias = fake._alias
    return (tuple(fake.shape), fake.stride(), fake.dtype, fake.device, fake.storage_offset(), tracer.wants_grad(fake),
            fake.is_inference(), fake.is_conj(), fake.is_neg(), alias.parent is None, alias.storage.input is None,
            alias.storage.version, alias.storage.several, alias.version == alias.storage.version, x.attrs or None)


def _tensors(values: list[t.Tracker]) -> Iterator[t.Tensor]:
    """Yield the tensors among values. Raises _NotReplayable for a value that a kept call may not have."""
    for x in values:
        if type(x) is t.Tensor:
            if type(x.fake) is not FakeTensor or x.pyclass not in (torch.Tensor, torch.nn.Parameter):
                raise _NotReplayable
            yield x
        elif type(x) is t.Tuple and x.cls is tuple and x._items is not None:
            yield from _tensors(x._items)
        elif not (x is t.NONE or type(x) is t.Const and type(x.value) in _PLAIN
                  or isinstance(x, (t.Object, t.Static)) and x.source is not None and x.value is not None):
            raise _NotReplayable


def _same(a: t.Tracker, b: t.Tracker, fakes: dict[int, Any]) -> bool:
    """Return whether an argument corresponds to one of a kept call; note the fakes that do."""
    if type(a) is not type(b):
        return False
    if type(a) is t.Tensor:
        if a is not b and (a.value is not None or b.value is not None):  # type: ignore[attr-defined]
            return False
        return fakes.setdefault(id(a.fake), b.fake) is b.fake  # type: ignore[attr-defined]
    if a is b:
        return True
    if type(a) is t.Tuple:
        return (b._items is not None and len(a._items) == len(b._items)  # type: ignore[attr-defined]
                and all(_same(x, y, fakes) for x, y in zip(a._items, b._items, strict=True)))  # type: ignore[attr-defined]
    return type(a) is t.Const and _equal(a.value, b.value)  # type: ignore[attr-defined]


def _equal(a: Any, b: Any) -> bool:
    return type(a) is type(b) and type(a) in _PLAIN and (repr(a) == repr(b) if type(a) in (float, complex) else a == b)


def _is_known(fn: Any) -> bool:
    """Return whether a torch function holds no values but those that it is called with, and the tensor that it is a
    method of."""
    return isinstance(fn, _FUNCTIONS) or isinstance(fn, types.FunctionType) and fn.__closure__ is None


def _is_plain(x: Any) -> bool:
    """Return whether the interpreter would follow an object of the kept call's class, whatever guards compare."""
    if isinstance(x, torch.nn.Module) and any(ask(x) is not None for ask in EAGER_MODULES):
        return False
    return plain_names(namespace_of(x))


def _renewed(value: Any, fakes: dict[int, Any]) -> Any:
    """Return an argument of a torch call with other fakes. Raises _NotReplayable."""
    kind = type(value)
    if kind is FakeTensor:
        return fakes.get(id(value), value)
    if kind in _PLAIN:
        return value
    if kind in (list, tuple):
        return kind([_renewed(x, fakes) for x in value])
    if kind is dict:
        return {k: _renewed(x, fakes) for k, x in value.items()}
    if kind is slice:
        return slice(*[_renewed(x, fakes) for x in (value.start, value.stop, value.step)])
    if isinstance(value, tuple) and hasattr(kind, "n_sequence_fields"):
        return kind([_renewed(x, fakes) for x in value])
    raise _NotReplayable(f"a {kind.__name__}")


def _pair(old: Any, new: Any, fakes: dict[int, Any]) -> None:
    """Note which fakes a torch call has given for which. Raises _NotReplayable unless the results are alike."""
    if type(old) is not type(new):
        raise _NotReplayable("another result")
    if type(old) is FakeTensor:
        if (old.shape, old.stride(), old.dtype, old.device) != (new.shape, new.stride(), new.dtype, new.device):
            raise _NotReplayable("a result of another layout")
        if fakes.setdefault(id(old), new) is not new:
            raise _NotReplayable("a result that is another tensor")
    elif isinstance(old, (list, tuple)) and type(old) is not torch.Size:
        if len(old) != len(new):
            raise _NotReplayable("another number of results")
        for a, b in zip(old, new, strict=True):
            _pair(a, b, fakes)
    elif not _equal(old, new):
        raise _NotReplayable("another result")


def _result(tracer: Any, x: t.Tracker, fakes: dict[int, Any]) -> t.Tracker:
    if type(x) is t.Tensor:
        return tracer.fake(fakes.get(id(x.fake), x.fake))  # type: ignore[no-any-return]
    return t.Tuple([_result(tracer, item, fakes) for item in x.items]) if type(x) is t.Tuple else x


def rebased(source: Source, moved: dict[Source, Source]) -> Source:
    """Return the path whose beginning is moved: `moved` has the beginning, and collects what is beneath it."""
    found = moved.get(source)
    if found is None:
        base = source.base
        to = base if base is None else rebased(base, moved)
        found = moved[source] = source if to is base else source.beneath(to)  # type: ignore[arg-type]
    return found
