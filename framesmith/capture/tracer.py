"""One capture of one frame: everything that trackers and handlers share."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch

from framesmith._C import is_plain
from framesmith.fake import FakeTensor, Recorder
from framesmith.fake.dynamic_scalars import Number
from framesmith.fake.tensor import is_differentiable
from framesmith.fake.wrappers import is_wrapper
from framesmith.symbolic.relation import Rel
from framesmith.util.errors import FirstCall, OddTensor, TooLong, Unsupported

from . import data
from . import trackers as t
from .arms import Shared
from .bare_guards import merged
from .break_points import Stop
from .call_log import Event, GuardEvent, InputEvent, Places
from .calls import Calls
from .class_making import ClassMaking
from .classes import Namespaces
from .closures import guard_same_cell
from .comparison_guards import Outcomes
from .default_dtypes import DefaultDtypes
from .dynamic_sizes import Sizes
from .errors import Errors
from .formatting import Showing
from .frame import Frame
from .gradients import Gradients, is_leaf
from .hashing import Hashing
from .identity import kept_apart
from .inference import Modes
from .iteration import Iteration
from .lifetimes import cannot_be_bridged, check_mutation, may_have_died
from .listed_slices import listed_slices
from .modes import devices, restore_devices
from .operations import Operations
from .overrides import has_function, is_class_of_programs, is_followed
from .registry import OPAQUE
from .replay import Replays
from .resume import STACK
from .run_time_indices import Copies
from .seeds import Seeds
from .settings import Written
from .sources import MISSING, OWN, Attr, Cell, DictAttr, Guard, Item, Local, Pinned, Source, TensorSpec
from .surroundings import Surroundings
from .symbolic_arithmetic import varying_local
from .text import Texts
from .thread_state import casting, read_state, restore_state
from .torch_functions import TorchFunctions
from .trackers.objects import namespace_of
from .values import CONSTANT_TYPES, Values
from .wrapper_tensors import distinct_part_guards, wrapper

_dispatch_keys = torch._C._dispatch_keys


class BreakHere(Exception):
    """Capture has reached the instruction at which an earlier attempt failed."""

    def __init__(self, depth: int) -> None:
        super().__init__(depth)
        self.depth = depth


class Tracer(Outcomes, Copies, Sizes, Gradients, Values, Namespaces, ClassMaking, Calls, Errors, Operations, Iteration,
             Hashing, Texts, Showing, TorchFunctions):
    """See the module.  `frames[0]` is the frame that is captured, the others are inlined below it."""

    branches = False
    """Branches on data may be nodes of the graph."""
    touched: list[Any] | None = None
    """The objects that were mutated, while mutations are being recorded; else None."""
    makes_parameters = False
    """The program made a parameter that requires grad."""
    transformed = False
    """The program is in a function transform: gradients there are part of what it computes."""
    takes_numbers = True
    """Numbers that are computed before the graph runs may be inputs of it."""
    lists_data = False
    """`tolist` gives numbers that depend on data."""
    symbolic_contents = False
    """The contents of small inputs are symbols, not assumed."""
    left_symbolic = False
    """One was read that would have been assumed otherwise."""
    branched = False
    """A branch on data was recorded."""
    unrolled: frozenset[t.Place] = frozenset()
    """Loops of a symbolic number of rounds whose rounds are followed one after the other."""
    assumes = True
    """Assertions on data may be assumed to hold."""

    def __init__(self, recorder: Recorder, root_globals: dict[str, Any], break_step: int = -1, break_depth: int = 0,
                 max_steps: int = -1) -> None:
        Namespaces.__init__(self)
        Gradients.__init__(self)
        Outcomes.__init__(self)
        Copies.__init__(self)
        Sizes.__init__(self)
        self.shapes.where = self.user_place
        self.recorder = recorder
        self.root_globals = root_globals
        self.guards: dict[tuple[Source | None, str, Any], Guard] = {}
        self.seen: dict[int, t.Tracker] = {}
        self.keep: list[Any] = []
        self.frames: list[Frame] = []
        self.handled: list[t.Tracker] = []
        self.showing: list[t.Tracker] = []
        self.totals: dict[int, tuple[FakeTensor, Any]] = {}
        """Tensors of lengths of parts, by identity, and the size that the lengths sum up to."""
        self.followed: set[FunctionType] = set()
        """The functions that are inlined, whatever their arguments are."""
        self.traced: list[Frame] = []
        """Frames that tracebacks show: each refers to itself."""
        self.steps = 0
        self.breaking = break_step >= 0
        self.break_step = break_step if self.breaking else max_steps
        """The instruction before which capture stops: to break, or because it has gone on for too long."""
        self.last_step = self.break_step
        self.break_depth = break_depth
        self.due: Unsupported | None = None
        """The reason to end capture at the next instruction that a bridge can run, or None."""
        self.inputs: list[t.Tensor] = []
        self.cleaning: list[tuple[t.Generator, Stop | None]] = []
        """Generators with handlers that the frame made, and the points before them at which capture could stop."""
        self.settings: dict[Any, Written] = {}
        """Settings of the process that the program has changed, by what reads them."""
        self.backwards: list[type] = []
        """Functions of the program's own whose backward is being captured, the innermost last."""
        self.readings: dict[tuple[Any, tuple[Any, ...]], Any] = {}
        """Settings of the process that were read and are guarded, by function and arguments."""
        self.locks: dict[int, t.Tracker] = {}
        """Locks that captured code has acquired or released."""
        self.deferred: list[tuple[t.Tracker, list[t.Tracker], dict[str, t.Tracker]]] = []
        self.branching: list[tuple[Frame, int, int]] = []
        """Branches and loops on data that are being followed: frame, instruction, and the step at which each began."""
        self.looping: list[Any] = []
        """Those of them that are loops, see `looping`."""
        self.counting: list[Any] = []
        """Loops of a symbolic number of rounds that are being followed, see `counted_loops`."""
        self.counters: dict[int, Any] = {}
        """Their counters, by the identity of the number in this round."""
        self.compared: tuple[t.Tracker, ...] = ()
        """The operands of the last comparison."""
        self.shared: list[Shared] = []
        """Results of branches on data that may be earlier tensors."""
        self.resized: list[tuple[FakeTensor, FakeTensor, Rel]] = []
        """Results of branches on sizes, those whose memory they may share, and where they are copies of them."""
        self.draws: list[t.Draw] = []
        """Random numbers that the program drew from Python's generators, in order."""
        self.checks: list[t.Tracker] = []
        """Conditions that the program asserts: see `assertions`."""
        self.surroundings = Surroundings()
        self.mutated: dict[int, t.Tracker] = {}
        self.dtypes, self.seeds = DefaultDtypes(recorder), Seeds(recorder)
        self.devices = devices()
        self.device_changes: list[tuple[Any, tuple[Any, ...]]] = []
        """Calls that change the default device, not undone yet."""
        self.keyed: dict[int, t.Tracker] = {}
        """Values from outside that were elements of sets, or keys of dicts, by identity."""
        self.cells: dict[int, t.Cell] = {}
        self.pending: dict[int, tuple[Source, Any]] = {}
        """Arguments of the root frame that have not been read yet, by fast slot."""
        self.arguments: dict[int, Any] = {}
        """All arguments of the root frame, by fast slot."""
        self.varying: frozenset[str] | None = None
        """Sources, as text, of the dynamic numbers; None: all are specialised."""
        self.numbers: dict[int, tuple[t.SymbolicNumber | t.Data, Number]] = {}
        """Dynamic numbers that operators have received."""
        self.log: list[Event] = []
        """What calls of modules that are kept ask and do, see `replay`."""
        self.replays: Replays | None = Replays()
        self.inside: tuple[Places, Places] | None = None
        """Of a call that is not interpreted: the frames below the present ones, and the user's place."""
        self.nodes_made = self.guards_asked = self.data_asked = self.changes_outside = 0
        """Nodes and guards of which the log tells; questions about the elements of tensors; changes of what may exist
        outside."""
        TorchFunctions.__init__(self)
        self.modes = Modes()
        recorder.autocast = casting(self.state)
        recorder.follows_grad = self.state.grad_enabled
        recorder.allows, recorder.content = self.allows, lambda node: data.content(self, node)
        recorder.keeps_history = lambda x: torch.is_grad_enabled() and self.wants_grad(x)

    # --- guards -------------------------------------------------------------------------------------------------------
    def guard(self, source: Source | None, kind: str, value: Any = None) -> None:
        """Guard that the value at `source` satisfies `kind` with `value`; a value that capture made needs no guard."""
        if source is None:
            return
        cls = type(value)
        key = (source, kind, value if cls is str or cls is int or value is None else id(value))
        place = self.user_place()
        self.log.append(GuardEvent(source, kind, value, place))
        if key not in self.guards:
            self.guards_asked += 1
            self.guards[key] = Guard(source, kind, value, place)
            self.keep.append(value)

    def all_guards(self) -> list[Guard]:
        """Return all guards."""
        for fake in self.recorder.placed:
            self.guard_owners(fake, torch.Tensor.storage_offset)
        apart = list(kept_apart(self))  # may guard the identity of functions
        out = [Guard(None, "globals_state", self.state)]
        out.extend(merged([g for g in self.guards.values() if not self.made_classes or not self.of_stand_in(g.source)]))
        out.extend(self.outcome_guards())
        out.extend(self.size_guards())
        out.extend(Guard(Pinned(space), "namespace", names) for space, names in self.namespaces.values())
        out.extend(apart)
        out.extend(distinct_part_guards(self.wrapped_parts))
        return out

    def varies(self, source: Source) -> bool:
        """Return whether a number is dynamic: because an earlier specialisation failed, or because a bridge's
        instruction computed it."""
        if self.is_early(source):
            return True
        if self.varying is None:
            return False
        if type(source) is Local and (source.name.startswith(STACK) or varying_local(self.frames[0].code, source.name)):
            return True
        return bool(self.varying) and str(source) in self.varying

    def size_or_real(self, x: t.Tracker) -> Any:
        """Return the argument for a function that is run for real: an integer of data, or one that varies, as a symbol
        if it may be one."""
        if type(x) is t.SymbolicNumber and self.may_be_size(x):
            return self.integer(x)
        return data.size(self, x) if type(x) is t.Data and data.is_size(self, x) else x.real(self)

    def integer_in(self, x: t.Tracker) -> t.Tracker:
        """Return an integer that only a tensor's data can tell as a number, other values unchanged."""
        return data.integer_in(self, x)

    def listed_slices(self, x: t.Tensor) -> t.Tracker | None:
        """Return `x.tolist()` for a length that varies, as numbers of the graph; None where its values are known or
        assumed instead."""
        return listed_slices(self, x)

    def by_range(self, x: t.Data) -> bool | None:
        """Return the truth of a comparison of data-dependent sizes, if their known ranges decide it."""
        return data.decided(self, x)

    # --- tensors ------------------------------------------------------------------------------------------------------
    def input(self, value: torch.Tensor, source: Source | None) -> t.Tracker:
        """Make a real tensor an input of the graph."""
        before = len(self.recorder.graph.nodes)
        found = self.known(value, source)
        made = found if found is not None else self.new_input(value, source)
        self.nodes_made += len(self.recorder.graph.nodes) - before
        self.log.append(InputEvent(source, made.fake, self.user_place()))  # type: ignore[arg-type, attr-defined]
        return made

    def new_input(self, value: torch.Tensor, source: Source | None) -> t.Tracker:
        """Make a tensor that was not met before an input."""
        if source is None:
            raise Unsupported("a tensor that has no path from the frame")
        if torch.nn.parameter.is_lazy(value):
            raise FirstCall("a parameter that the first call makes")
        if is_wrapper(type(value)):
            return wrapper(self, value, source)
        if is_class_of_programs(type(value)):
            if not is_followed(type(value)):
                raise OddTensor(f"tensor subclass {type(value).__name__}")
            for name in ("__torch_function__", "__torch_dispatch__", "__getattribute__", "__getattr__"):
                self.lookup(type(value), name)
        if value.is_nested:
            raise OddTensor("a nested tensor")
        if value.layout != torch.strided:
            raise OddTensor(f"a tensor of layout {value.layout}")
        if not is_plain(value):
            raise OddTensor("a tensor whose numbers are not in its memory alone (quantized, batched, or zeros without "
                            "memory)")
        if value.requires_grad and not is_differentiable(value.dtype):
            raise OddTensor("an integer tensor that requires grad")
        name = f"i{len(self.inputs)}"
        param = is_param(source) or (type(source) is Attr and source in self.wrapped_parts and is_param(source.base))
        shape = None if param else self.symbolic_shape(value, source)
        fake = self.fake_input(value, name, shape)
        if value.requires_grad:
            # autograd makes the node of a view that was written by operators, which are no part of the graph
            with self.recorder.off() if value._is_view() else nullcontext():
                self.differentiable[fake._alias.node] = source, is_leaf(value)
            fake._alias.node.meta["requires_grad"] = self.recorder.follows_grad = True
        layout = () if shape is None else self.symbolic_layout(value, source, shape)
        self.guard(source, "tensor", tensor_spec(value, *layout))
        if param and not has_function(type(value)):
            fake._alias.node.meta["param"] = True
        else:
            fake._alias.node.meta["passing"] = True
        fake._alias.node.meta["source"] = str(source)
        tracker = t.Tensor(fake, value=value, source=source, pyclass=type(value))
        self.inputs.append(tracker)
        self.keep.append(fake)
        self.seen[id(fake)] = tracker
        self.remember(value, tracker)
        return tracker

    def fake_input(self, value: torch.Tensor, name: str, shape: tuple[Any, ...] | None = None) -> FakeTensor:
        """Return a fake input, an inference tensor if the real one is: it was created earlier, whatever mode the
        program is in now."""
        if torch.is_inference_mode_enabled() is value.is_inference():
            return self.recorder.input(value, name, shape=shape)
        with torch._C._InferenceMode(value.is_inference()):
            return self.recorder.input(value, name, shape=shape)

    def release(self) -> None:
        """Drop all references (trackers are in reference cycles, and would keep the user's model until the next
        collection), and leave the devices that the program has entered."""
        if self.device_changes or devices() != self.devices:
            restore_devices(self.devices)
        for frame in self.traced:
            frame.end = None
        self.__dict__.clear()

    def guard_owners(self, x: FakeTensor, read: Callable[[torch.Tensor], Any]) -> list[Any]:
        """Return `read` of each input that `x` shares memory with, guarded: graphs do not depend on it, this program
        does."""
        owners = [i for i in self.inputs if i.fake._alias.storage is x._alias.storage]
        with torch._C._DisableTorchDispatch():  # the recorder is not always on
            values = [read(i.value) for i in owners]
        for owner, value in zip(owners, values, strict=True):
            self.guard(owner.source, "callable", _Reads(read, value))
        return values

    def input_slot(self, x: t.Tensor) -> int:
        """Return the place of an input among the graph's inputs."""
        node = x.fake._alias.storage.input
        places = (n for n in self.recorder.graph.nodes if n.op == "placeholder")
        return next(i for i, n in enumerate(places) if n is node)

    def same_grad_flag(self, obj: t.Tensor, args: list[t.Tracker], kwargs: dict[str, t.Tracker]) -> bool:
        """requires_grad_ that has no effect."""
        flag = args[0] if args else kwargs.get("requires_grad", t.TRUE)
        return isinstance(flag, t.Const) and flag.value == obj.get(self, "requires_grad").real(self)

    def makes_leaf(self, obj: t.Tensor, args: list[t.Tracker], kwargs: dict[str, t.Tracker]) -> bool:
        """Let a tensor that the frame has made require grad, if that is seen in it alone: grad mode is off, and must
        stay so. Return whether it does."""
        flag = args[0] if args else kwargs.get("requires_grad", t.TRUE)
        fresh = obj.value is None and obj.pyclass is torch.Tensor and obj.fake._alias.parent is None
        if flag is not t.TRUE or not fresh or torch.is_grad_enabled() or not is_differentiable(obj.fake.dtype):
            return False
        obj.note(self, "requires_grad", t.TRUE)
        self.new_leaves.append(obj.fake)
        self.makes_parameters = True
        return True

    def user_place(self) -> tuple[tuple[str, int, str], ...]:
        """Return the innermost place in the user's own code, or in any if there is none, as a stack of one; empty
        before the first instruction."""
        if self.inside is not None:
            return self.inside[1]
        for f in reversed(self.frames):
            if not f.dec.foreign:
                break
        else:
            if not self.frames:
                return ()
            f = self.frames[-1]
        if f.place is None or f.place[0] != f.ip:
            f.place = f.ip, ((f.code.co_filename, f.line, f.code.co_name),)
        return f.place[1]

    def where(self) -> tuple[str, int, str] | None:
        """Return the same as (file, line, function), or None."""
        return next(iter(self.user_place()), None)

    def user_stack(self) -> tuple[tuple[str, int, str], ...]:
        """(file, line, function) of the frames, innermost last."""
        here = [(f.code.co_filename, f.dec.instrs[f.ip - 1].line, f.code.co_name) for f in self.frames]
        return tuple(here) if self.inside is None else (*here, *self.inside[0])

    # --- locals, cells, mutation --------------------------------------------------------------------------------------
    def local(self, frame: Frame, index: int) -> t.Tracker | None:
        """Return the value that a fast slot holds, or None."""
        if frame.locals[index] is None and frame is self.frames[0] and index in self.pending:
            return self.unset_local(frame, index)
        return frame.locals[index]

    def unset_local(self, frame: Frame, index: int) -> t.Tracker:
        """Return the value of an empty fast slot: an argument of the root frame not read yet, or an unbound local."""
        if frame is self.frames[0] and index in self.pending:
            source, value = self.pending.pop(index)
            found = frame.locals[index] = self.wrap(value, source)
            return found
        name = frame.dec.localsplus[index]
        return self.unset(name, True)

    def cell(self, real: Any, source: Source | None, of: t.Function | None = None) -> t.Cell:
        """Return the tracker of an existing cell. `of`: the function that it was found in, if that is guarded by its
        parts."""
        found = self.cells.get(id(real))
        if found is None:
            found = self.cells[id(real)] = t.Cell(None, real, source, of)
            self.keep.append(real)
        elif found.source != source and not (of is None and found.of is None):
            guard_same_cell(self, found, source, of)
        return found

    def load_cell(self, cell: Any, name: str, own: bool = False) -> t.Tracker:
        """Return the content of a cell; `own`: it is a variable of the frame itself, not of one around it."""
        found = self.cell_value(cell)
        return found if found is not None else self.unset(name, own)

    def cell_value(self, cell: Any) -> t.Tracker | None:
        """Return the content of a cell; None if it is empty."""
        if cell.content is None and cell.real_cell is not None and not cell.written:
            value = contents(cell.real_cell)
            if value is not UNSET:
                cell.content = self.wrap(value, cell_content(cell.source, cell.real_cell))
            elif type(cell.source) is Cell:
                raise Unsupported(f"the variable {cell.source.name.removeprefix(OWN)!r} is not set")
            else:
                self.guard(cell.source if cell.source is not None else Pinned(cell.real_cell), "callable", _is_empty)
        return cell.content

    def unset(self, name: str, own: bool) -> t.Tracker:
        """Raise the error of a variable that is not set."""
        if own:
            return self.raise_(UnboundLocalError(f"cannot access local variable '{name}' where it is not associated "
                                                 "with a value"))
        text = f"cannot access free variable '{name}' where it is not associated with a value in enclosing scope"
        return self.raise_(NameError(text, name=name))

    def touch(self, what: Any) -> None:
        """Note a mutation of a tracked object: a tracker, a cell, a namespace, a class from before the frame."""
        self.changes += 1
        if not isinstance(what, t.Tracker) or any(getattr(what, n, None) is not None for n in ("value", "real_cell")):
            self.changes_outside += 1
        if self.touched is not None:
            self.touched.append(what)

    def store_cell(self, cell: Any, value: t.Tracker | None) -> None:
        self.touch(cell)
        cell.content = value
        cell.written = True
        if cell.real_cell is not None:
            self.mutated.setdefault(id(cell), cell)

    def mutates(self, tracker: t.Tracker) -> None:
        """Note a mutation of a tracker's value; if it exists outside, its final state is replayed."""
        self.touch(tracker)
        if getattr(tracker, "value", None) is not None:
            if id(tracker.value) in self.global_values or tracker.value is _BUILTINS:  # type: ignore[attr-defined]
                raise Unsupported("a change of a namespace as a dict, of which names were read")
            if self.locks and any(lock.held > 0 for lock in self.locks.values()):  # type: ignore[attr-defined]
                raise Unsupported("a change under a lock")
            if id(tracker) not in self.mutated:
                check_mutation(tracker)
                self.mutated[id(tracker)] = tracker

    def may_have_died(self, target: Any) -> bool:
        """Return whether an object that the frame has dropped or changed so far may have held `target`."""
        return may_have_died(self, target)

    # --- small protocols ----------------------------------------------------------------------------------------------
    def special_method(self, obj: t.Tracker, name: str) -> t.Tracker:
        """Return a method of the context manager protocol, bound."""
        raw = self.lookup(obj.pytype(), name)
        if raw is MISSING:
            missed = " (missed __exit__ method)" if name == "__exit__" else ""
            return self.raise_(TypeError(f"'{obj.pytype().__name__}' object does not support the context manager "
                                         f"protocol{missed}"))
        return self.bound_special(obj, name, raw)

    def tuple_fields(self, cls: type) -> dict[str, int]:
        """Field names of a namedtuple or a structseq."""
        fields = getattr(cls, "_fields", None)
        if fields is None and hasattr(cls, "n_sequence_fields"):
            fields = [n for n in vars(cls) if type(vars(cls)[n]).__name__ == "member_descriptor"]
        return {n: i for i, n in enumerate(fields or ())}

    def tuple_attr(self, tup: t.Tuple, name: str) -> t.Tracker:
        """Return an attribute of an instance of a subclass of tuple that is no field."""
        raw = self.lookup(tup.cls, name)
        if tup.value is not None and tup.cls.__dictoffset__ and (raw is MISSING or not hasattr(type(raw), "__set__")):
            own = namespace_of(tup.value)
            if name in own:
                return self.wrap(own[name], None if tup.source is None else DictAttr(tup.source, name))
            self.guard(tup.source, "not_hasattr", name)
        if raw is MISSING:
            if self.class_info(tup.cls).getattr is not None:
                raise Unsupported(f"__getattr__ of {tup.describe()}")
            return self.no_attribute(tup, name)
        if (isinstance(raw, (FunctionType, property, classmethod, staticmethod))
            or isinstance(getattr(type(raw), "__get__", None), FunctionType)):
            return self.bound_special(tup, name, raw)
        if name == "__class__":
            return self.made(tup.cls)
        if type(raw).__name__ == "_tuplegetter":  # a namedtuple's field, in another class
            return tup.item(self, t.Const(raw.__reduce__()[1][0]))
        return t.by_class(self, tup, tup.cls,
                          name) if hasattr(type(raw), "__get__") else self.class_value(tup.cls, name, raw)

    def is_passable(self, obj: t.Object) -> bool:
        """Return whether the real object may be passed to a function that is run for real."""
        return obj.before is None and type(obj.value) in CONSTANT_TYPES

    def opaque_method(self, obj: t.Object, name: str, args: list[t.Tracker], kwargs: dict[str, t.Tracker]) -> t.Tracker:
        for base in obj.cls.__mro__:
            row = OPAQUE.get((base, name))
            if row is not None:
                return row(self, obj, *args, **kwargs)
        raise Unsupported(f"method {name!r} of {obj.describe()}")

    # --- breaks -------------------------------------------------------------------------------------------------------
    def stop_after(self, reason: Unsupported) -> None:
        """Let the present instruction be the last one that is captured."""
        if self.due is None and self.last_step != self.steps + 1:
            self.due = reason
            self.break_step = self.steps + 1

    def break_here(self, frame: Frame) -> None:
        if self.due is not None and self.steps != self.last_step:
            if not cannot_be_bridged(frame):
                raise self.due
            self.break_step = self.steps + 1
        elif self.breaking:
            if len(self.frames) != self.break_depth + 1 or not all(f.direct for f in self.frames):
                raise Unsupported("the program went another way than in the attempt before")
            raise BreakHere(self.break_depth)
        else:
            raise TooLong(self.last_step)


@dataclass(frozen=True, slots=True)
class _Reads:
    """A method of a tensor that reads its memory's state, such as `storage_offset`, returns this value."""

    read: Callable[[torch.Tensor], Any]
    value: Any

    def __call__(self, x: torch.Tensor) -> bool:
        with torch._C.DisableTorchFunctionSubclass():
            return self.read(x) == self.value


_BUILTINS = vars(builtins)
UNSET = object()


def contents(cell: Any) -> Any:
    """Return the object that a cell holds, or UNSET."""
    try:
        return cell.cell_contents
    except ValueError:
        return UNSET


def _is_empty(cell: Any) -> bool:
    """Return whether a variable is not set."""
    return contents(cell) is UNSET


def cell_content(source: Source | None, real: Any) -> Source | None:
    """Return the source of a cell's content."""
    from_cell = source if source is not None else Pinned(real)
    if isinstance(from_cell, Cell):
        return from_cell
    return Attr(from_cell, "cell_contents")


def is_param(source: Source) -> bool:
    """Return whether a source is the path of a parameter or buffer of a module."""
    return type(source) is Item and type(source.base) is DictAttr and source.base.name in ("_parameters", "_buffers")


def tensor_spec(x: torch.Tensor, sizes: tuple[int | None, ...] | None = None,
                strides: tuple[int | None, ...] | None = None) -> TensorSpec:
    """Return the conditions that the graph assumes of an input; by default, of all its sizes and strides."""
    return TensorSpec(type(x), x.dtype, x.device, x.layout, tuple(x.shape) if sizes is None else sizes,
                      x.stride() if strides is None else strides, x.requires_grad, _dispatch_keys(x).raw_repr())


__all__ = ["BreakHere", "Tracer", "is_param", "read_state", "restore_state", "tensor_spec"]
