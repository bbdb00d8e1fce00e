"""torch.autograd.Function: the forward is captured without gradients, and the backward as a graph of its own, which
autograd uses as the derivative of the forward's results; see `graph.derivative`."""

from __future__ import annotations

import inspect
import itertools
from typing import Any

import torch
from torch.fx import Node
from torch.nn.modules._functions import BackwardHookFunction

from framesmith.fake.layout import broadcast, same_shape
from framesmith.fake.tensor import FakeTensor, is_differentiable
from framesmith.graph.derivative import Pattern, Traced
from framesmith.graph.purity import draws
from framesmith.graph.traversal import nodes_after
from framesmith.util.errors import Unsupported

from .. import trackers as t
from ..arms import effects, like, mutates_existing, mutations_collected, share
from ..break_points import choose_stop
from ..history import attach, refusing, tangent
from ..registry import CODES, PLAIN, calls
from ..trackers import Args, Kwargs

own = torch.autograd.function
MOST = 3
"""The maximal number of results of a function that takes missing gradients as None: there is a graph for each pattern
of them."""

PLAIN.add(torch._C._FunctionBase)  # an instance is good for nothing but `apply`


def _backward_class(cls: Any) -> None:
    """Make the class of the nodes of a new class of functions, which has a number."""
    own.FunctionMeta.__init__(cls, cls.__name__, cls.__bases__, vars(cls))


@calls(own.FunctionMeta.__init__)
def _begin(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    """Number a class that the frame makes where residual code makes it."""
    made = args[0]
    if not isinstance(made, t.MadeClass):
        raise Unsupported(f"FunctionMeta.__init__ of {made.describe()}")
    _backward_class(made.value)
    made.after.append(_backward_class)
    return t.NONE


@calls(torch.autograd.Function.apply.__func__)  # type: ignore[attr-defined]
def _apply(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    if tracer.transformed:
        raise Unsupported("torch.autograd.Function within a function transform")
    if any(isinstance(a, t.WrapperTensor) and tracer.wants_grad(a.fake) for a in args[1:]):
        raise Unsupported("torch.autograd.Function of a tensor that wraps others, where gradients are wanted")
    if tracer.asks(*[a for a in args[1:] if isinstance(a, t.Tensor)]):
        raise Unsupported("torch.autograd.Function of a tensor of a class with a __torch_function__")
    klass, given = args[0], args[1:]
    real = klass.real(tracer)
    ctx = t.Object(own.FunctionCtx)
    wanted = [isinstance(a, t.Tensor) and bool(a.get(tracer, "requires_grad").real(tracer)) for a in given]
    ctx.attrs["needs_input_grad"] = tracer.made(tuple(wanted))
    differentiable = torch.is_grad_enabled() and any(wanted)
    if differentiable and (kwargs or getattr(real, "boxed_grads_call", False)):
        raise Unsupported(f"{real.__name__}.apply with keywords, or with boxed gradients")
    if differentiable and real is BackwardHookFunction:
        raise Unsupported("hooks on a module's backward")
    with torch.no_grad():
        out = _forward(tracer, klass, real, ctx, given, kwargs)
        dirty = _listed(tracer, ctx, "dirty_tensors")
        if differentiable and dirty:
            raise Unsupported(f"{real.__name__}.forward writes its arguments")
        out = _wrapped(tracer, out, given, dirty)
    if differentiable and real in tracer.backwards:
        return _refusing(tracer, out, given, f"a derivative of {real.__name__} whose backward calls itself")
    return _Application(tracer, real, ctx, given, wanted, out).result() if differentiable else out


def _forward(tracer: Any, klass: t.Tracker, real: Any, ctx: t.Object, given: Args, kwargs: Kwargs) -> t.Tracker:
    forward = klass.get(tracer, "forward")
    if real.setup_context is own._SingleLevelFunction.setup_context:
        return forward.call(tracer, [ctx, *given], kwargs)
    out = forward.call(tracer, given, kwargs)
    if not kwargs:
        rest = list(inspect.signature(real.forward).parameters.values())[len(given):]
        inputs = [*given, *[tracer.wrap_static(p.default, None) for p in rest if p.default is not p.empty]]
        klass.get(tracer, "setup_context").call(tracer, [ctx, t.Tuple(inputs), out], {})
    return out


def _listed(tracer: Any, ctx: t.Object, name: str) -> list[t.Tracker]:
    """Return the tensors that a method of the context received."""
    found = ctx.attrs.get(name)
    return list(found.open(tracer)) if isinstance(found, t.Tuple) else []


def _wrapped(tracer: Any, out: t.Tracker, args: Args, dirty: Any) -> t.Tracker:
    """Return a result; an argument that is returned without having been written is returned as a view of itself."""
    if isinstance(out, t.Tuple):
        return t.Tuple([_wrapped(tracer, o, args, dirty) if isinstance(o, t.Tensor) else o
                             for o in out.open(tracer)])
    if isinstance(out, t.Tensor) and any(out is a for a in args) and not any(out is d for d in dirty):
        return tracer.torch_call(torch.Tensor.view_as, [out, out], {})
    return out


class _Application:
    """One call under grad mode, its forward done."""

    def __init__(self, tracer: Any, real: Any, ctx: t.Object, given: Args, wanted: list[bool], out: t.Tracker) -> None:
        self.tracer, self.real, self.ctx = tracer, real, ctx
        self.count = len(given)
        self.wanted = [k for k, flag in enumerate(wanted) if flag]
        self.inputs = [tracer.recorder.nodes(given[k].fake) for k in self.wanted]  # type: ignore[attr-defined]
        self.single = not isinstance(out, t.Tuple)
        self.outs: list[t.Tracker] = list(out.open(tracer)) if isinstance(out, t.Tuple) else [out]
        fixed = _listed(tracer, ctx, "non_differentiable")
        self.places = [k for k, o in enumerate(self.outs) if isinstance(o, t.Tensor) and is_differentiable(o.fake.dtype)
                       and not any(o is f for f in fixed)]

    def result(self) -> t.Tracker:
        """Return the result of the call, with its history."""
        tracer = self.tracer
        if self.places:
            for k in self.places:
                self.outs[k] = self._apart(self.outs[k])
            results: list[FakeTensor] = [self.outs[k].fake for k in self.places]  # type: ignore[attr-defined]
            if len(set(map(id, results))) < len(results):
                raise Unsupported(f"{self.real.__name__}.forward gives a tensor twice")
            zeros = self._materializes()
            if not zeros and len(results) > MOST:
                raise Unsupported(f"{self.real.__name__}: more than {MOST} results, whose gradients may be None")
            patterns = ([(True,) * len(results)] if zeros
                        else [p for p in itertools.product((True, False), repeat=len(results)) if any(p)])
            traced = {p: found for p in patterns if (found := _Backward(self, p).trace()) is not None}
            if patterns[0] not in traced:
                raise Unsupported(f"{self.real.__name__}.backward raises")
            attach(tracer, results, self.inputs, traced, zeros)
        return self.outs[0] if self.single else t.Tuple(self.outs)

    def _materializes(self) -> bool:
        flag = self.ctx.attrs.get("materialize_grads")
        return True if flag is None else flag.truth(self.tracer)

    def _apart(self, out: t.Tracker) -> t.Tracker:
        """Return a tensor in memory of its own: history belongs to a whole storage. Eager's is a view; where the
        program can tell, plain Python makes the call."""
        assert isinstance(out, t.Tensor)
        alias = out.fake._alias
        if alias.parent is None and alias.storage.input is None:
            return out
        with torch.no_grad():
            apart = self.tracer.torch_call(torch.clone, [out], {})
        share(self.tracer, [(apart, alias.storage, False)], choose_stop(self.tracer.frames, self.tracer.steps),
              f"{self.real.__name__}.forward gives a view, which is written later or leaves with its base")
        return apart  # type: ignore[no-any-return]


class _Backward:
    """The backward being captured, for one pattern of gradients."""

    def __init__(self, application: _Application, pattern: Pattern) -> None:
        self.of = application
        self.tracer = application.tracer
        self.given = dict(zip(application.places, pattern))
        self.tangents: list[Node] = []

    def trace(self) -> Traced | None:
        """Trace the backward; return None if it raises for these gradients."""
        of, tracer = self.of, self.tracer
        last, writes = tracer.end()
        before = effects(tracer)
        attrs = dict(of.ctx.attrs)
        of.ctx.attrs["saved_tensors"] = of.ctx.attrs.get("to_save") or t.Tuple([])
        tracer.backwards.append(of.real)
        try:
            with mutations_collected(tracer) as touched, torch.enable_grad():
                told = self._function().call(tracer, [of.ctx, *[self._gradient(k) for k in range(len(of.outs))]], {})
        except t.CapturedError:
            told = None
        finally:
            tracer.backwards.pop()
        region = nodes_after(tracer.recorder.graph, last)
        written = [n for _, _, n in tracer.recorder.written[writes:]]
        if (effects(tracer) != before or self._touches(touched) or any(map(draws, region))
            or not set(region).issuperset(written)):
            raise Unsupported(f"{of.real.__name__}.backward changes objects or tensors, or draws random numbers")
        of.ctx.attrs.clear()
        of.ctx.attrs.update(attrs)
        for node in region:
            node.meta["spare"] = True
        return None if told is None else Traced(region, self.tangents, self._read(told))

    def _touches(self, changed: list[Any]) -> bool:
        """Return whether the backward changed an object that existed before it, other than attributes of the
        context."""
        ctx = self.of.ctx
        return mutates_existing([x for x in changed if x is not ctx], [*ctx.attrs.values(), self._function()])

    def _function(self) -> t.Tracker:
        real = self.of.real
        return self.tracer.made(real).get(self.tracer,  # type: ignore[no-any-return]
                                          "vjp" if real.vjp is not own._SingleLevelFunction.vjp else "backward")

    def _gradient(self, k: int) -> t.Tracker:
        """Return the gradient that the backward gets for result `k` of the forward: a tangent, zeros or None."""
        tracer, out = self.tracer, self.of.outs[k]
        if not isinstance(out, t.Tensor) or k in self.given and not self.given[k]:
            return t.NONE
        if k not in self.given:
            if not self.of._materializes():
                return t.NONE
            return tracer.torch_call(torch.zeros, [tracer.made(tuple(out.fake.shape))],  # type: ignore[no-any-return]
                                     {"dtype": tracer.made(out.fake.dtype)})
        val = like(out.fake)
        node = tracer.recorder.emit(tangent, (), val)
        node.meta.update(grad=True, turn=tracer.turn)
        self.tangents.append(node)
        return tracer.made(tracer.recorder.own(val, node))  # type: ignore[no-any-return]

    def _read(self, told: t.Tracker) -> list[Node | None]:
        """Return the gradients of the inputs that require one."""
        of, tracer = self.of, self.tracer
        grads = list(told.open(tracer)) if isinstance(told, t.Tuple) else [told]
        if len(grads) < of.count or any(g is not t.NONE for k, g in enumerate(grads) if k >= of.count):
            raise Unsupported(f"{of.real.__name__}.backward gives {len(grads)} gradients for {of.count} arguments")
        if any(g is not t.NONE and not isinstance(g, t.Tensor) for g in grads):
            raise Unsupported(f"{of.real.__name__}.backward returns an object that is not a tensor")
        nodes = [None if grads[k] is t.NONE else tracer.recorder.nodes(grads[k].fake)  # type: ignore[attr-defined]
                 for k in of.wanted]
        for x, grad in zip(of.inputs, nodes):
            if grad is None:
                continue
            shape = grad.meta["val"].shape
            common = broadcast(x.meta["val"].shape, shape)
            if common is None or not same_shape(common, shape):
                raise Unsupported(f"{of.real.__name__}.backward gives a gradient of a shape that its input does not "
                                  "expand to")
        return nodes


def _once(tracer: Any, fn: t.Function, args: Args, kwargs: Kwargs) -> t.Tracker:
    """Call a backward as `once_differentiable` does: its results cannot be differentiated again."""
    backward = dict(zip(fn.code.co_freevars,
                        fn.value.__closure__ or ()))["fn"].cell_contents  # type: ignore[union-attr]
    with torch.no_grad():
        out = tracer.made(backward).call(tracer, args, kwargs)
    return _refusing(tracer, out, args[1:], _ONCE)


def _refusing(tracer: Any, out: t.Tracker, args: Args, message: str) -> t.Tracker:
    """`out`, computed of `args` with grad mode off, whose derivative is an error."""
    given = [a for a in args if isinstance(a, t.Tensor) and tracer.wants_grad(a.fake)]
    outs = list(out.open(tracer)) if isinstance(out, t.Tuple) else [out]
    found = [o for o in outs if isinstance(o, t.Tensor) and is_differentiable(o.fake.dtype)]
    if not torch.is_grad_enabled() or not given or not found:
        return out
    with torch.no_grad():
        fresh = {id(o): tracer.torch_call(torch.clone, [o], {}) for o in found}
    inputs = [tracer.recorder.nodes(a.fake) for a in given]
    refusing(tracer, [o.fake for o in fresh.values()], inputs, message)
    results: Args = [fresh.get(id(o), o) for o in outs]
    return t.Tuple(results) if isinstance(out, t.Tuple) else results[0]


_ONCE = "trying to differentiate twice a function that was marked with @once_differentiable"
CODES[id(own.once_differentiable(lambda ctx: None).__code__)] = _once
