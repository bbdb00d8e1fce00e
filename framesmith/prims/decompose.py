"""Decompose an ATen graph into prims: every call with a rule is replaced, every other stays as an extern call.

Contract: placeholders keep their names, order and meta; the output keeps its form. Every node's `meta["val"]` is a
`Spec` (a tuple of them for several results, an `Expr` for a symbolic integer); a node that stands for an ATen call's
result, or that a random draw takes, has eager's strides there. A result that eager would have made fresh is never a
view of an input, and two results that eager makes apart are apart.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from framesmith.graph.dce import dce
from framesmith.graph.devices import devices_of, main_device
from framesmith.graph.digest import target_name
from framesmith.graph.launch import OfOneGraph
from framesmith.graph.purity import draws
from framesmith.graph.traversal import escaping
from framesmith.prims.builder import ALIASES, Builder, Opaque, Value
from framesmith.prims.core import DTYPES, Spec, size_as_made, size_of
from framesmith.prims.registry import rules
from framesmith.prims.rules import FAMILIES
from framesmith.util.errors import GuardError, VerifyError
from framesmith.util.log import warn_once
from framesmith.util.precision import HALF

assert FAMILIES  # importing the package fills the table

# what makes a number: where its value is among the arguments
_NUMBERS = {torch.ops.aten.full.default: 1, torch.ops.aten.scalar_tensor.default: 0}
_ROUNDS_WITHIN = frozenset(
    (torch.ops.aten.cross_entropy_loss.default, torch.ops.aten.soft_margin_loss.default,
     torch.ops.aten.soft_margin_loss_backward.default)
)
"""Operators with their own rule that eager composes of others: the intermediate results are rounded, too."""
_ROUNDING = frozenset(("", "convert", "rounded"))
_WRITE_BACK = torch.ops.aten.copy_.default
_MOVING = ALIASES | {"abs", "neg", "relu", "copy", "where", "maximum", "minimum", "flip", "roll"}
"""Prims that return elements of their arguments, up to the sign."""


def decompose(graph: fx.Graph, *, strict: bool = False, device: torch.device | None = None,
              rounding: bool = False) -> fx.Graph:
    """Return the same computation over prims and extern calls. `rounding`: each ATen operator's 16-bit results are
    rounded, as eager stores them; otherwise a later stage may continue with the float32 values.

    A rule that disagrees with the recorded shapes or dtypes is a bug of the table: `strict` raises VerifyError,
    otherwise a warning names the operator and eager's kernel is called.

    Prims represent computations on `device` (default: the graph's main device); calls on other devices stay.
    """
    return _Decomposition(graph, strict, device or main_device(graph), rounding).run()


def _spec_of(val: Any, size: Callable[[Any], Any] = size_of) -> Any:
    """Return the Spec of a tensor, int or `Expr` of an integer, a tuple for several values; anything else unchanged."""
    if isinstance(val, torch.Tensor):
        return Spec.of(val, size)
    if isinstance(val, (tuple, list)):
        return tuple([_spec_of(item, size) for item in val])
    return size(val) if isinstance(val, torch.SymInt) else val


def _is_view(target: Any) -> bool:
    return target in (operator.getitem, torch.ops.aten._unsafe_view.default) or getattr(target, "is_view", False)


def _origin(node: fx.Node) -> Any:
    """Return the node whose memory an ATen view chain shares; for one of several results, the node and the number."""
    while node.op == "call_function" and _is_view(node.target) and node.args and isinstance(node.args[0], fx.Node):
        source = node.args[0]
        if node.target is operator.getitem and not _is_view(source.target):
            return source, node.args[1]
        node = source
    return node


def _is_foreign(val: Any) -> bool:
    """Return whether a result has a dtype that prims do not support."""
    if isinstance(val, tuple):
        return any(map(_is_foreign, val))
    return isinstance(val, Spec) and val.dtype not in DTYPES


def _is_of_nothing(node: fx.Node, args: Any, val: Any) -> bool:
    """Return whether the first argument is empty, but others or results are not: eager's kernel defines the reduction
    of nothing, and checks indices."""
    first = args[0] if args and node.target is not torch.ops.aten.cat.default else None
    if not isinstance(first, Value) or not _has_none(first.spec):
        return False
    others = (*(a.spec for a in args if isinstance(a, Value)), *(val if isinstance(val, tuple) else (val,)))
    return not all(_has_none(spec) for spec in others if isinstance(spec, Spec))


def _has_none(spec: Spec) -> bool:
    return any(type(n) is int and n == 0 for n in spec.shape)


class _Decomposition:
    """One run over one graph: `env` maps each old node to its replacement."""

    def __init__(self, graph: fx.Graph, strict: bool, device: torch.device, rounding: bool) -> None:
        self.old = graph
        self.strict = strict
        self.rounding = rounding
        self.new = fx.Graph()
        self.b = Builder(self.new, rounding)
        self.env: dict[fx.Node, Any] = {}
        self.escaping = escaping(graph, _is_view)
        self.device = device
        self.numbers: dict[Value, Value] = {}
        self.exact: set[Value] = set()
        """16-bit results of operators, which are exact numbers of their dtype."""

    def run(self) -> fx.Graph:
        for number, node in enumerate(self.old.nodes):
            self.b.number = number
            self.env[node] = getattr(self, node.op)(node)
        dce(self.new)
        return self.new

    # -- one method a kind of node ------------------------------------------------------------------------------------

    def placeholder(self, node: fx.Node) -> Any:
        return self._leaf(node, self.new.create_node("placeholder", node.target, node.args))

    def get_attr(self, node: fx.Node) -> Any:
        return self._leaf(node, self.new.create_node("get_attr", node.target))

    def _leaf(self, node: fx.Node, made: fx.Node) -> Any:
        spec = _spec_of(node.meta.get("val"))
        if "layout" in node.meta:
            spec = Spec(spec.shape, spec.dtype, spec.device, node.meta["layout"])
        made.meta = {**node.meta, "val": spec}
        if isinstance(spec, Spec):
            return Value(self.b, made, spec)
        return Opaque(made) if spec is None or isinstance(spec, (bool, float, torch.SymFloat, torch.SymBool)) else spec

    def call_function(self, node: fx.Node) -> Any:
        val = _spec_of(node.meta["val"]) if "val" in node.meta else None
        args = self._arguments(node.args)
        if node.target is operator.getitem and isinstance(args[0], tuple):
            return args[0][args[1]]
        if "binds" in node.meta:
            return self._binding(node, args)
        if not isinstance(val, (Spec, tuple)) and _is_integer(val):
            return val
        b = self.b
        b.stack, b.origin, b.out, b.source = node.meta.get("stack", ()), target_name(node.target), val, node
        kwargs = {name: self._arguments(arg) for name, arg in node.kwargs.items()}
        rule = rules.get(node.target)
        if rule is not None and self._is_ours(node, val) and not _is_of_nothing(node, args, val):
            named = {name: self._moved(arg) for name, arg in kwargs.items()}
            result = self._replaced(node, rule, self._moved(args), named, val)
            if result is not NotImplemented:
                return result
        if drawn := draws(node):
            b.interrupt_draws()
        if drawn or isinstance(node.target, OfOneGraph):
            args, kwargs = self._laid_out(node.args), {name: self._laid_out(arg) for name, arg in node.kwargs.items()}
        return b.extern(node.target, args, kwargs, val=val)

    def _binding(self, node: fx.Node, args: Any) -> Any:
        """Keep a call that defines a symbol; an integer result is the symbol."""
        b, val = self.b, _spec_of(node.meta["val"])
        b.stack, b.origin = node.meta.get("stack", ()), target_name(node.target)
        if isinstance(node.target, OfOneGraph):
            args = self._laid_out(node.args)
        made = b.extern(node.target, args, {name: self._arguments(arg) for name, arg in node.kwargs.items()}, val=val)
        call = next(n for n in reversed(self.new.nodes) if n.target is node.target)
        call.meta.update(binds=node.meta["binds"], val=_spec_of(node.meta["val"], size_as_made))
        return made if isinstance(val, Spec | tuple) else val

    def _replaced(self, node: fx.Node, rule: Any, args: Any, kwargs: dict[str, Any], val: Any) -> Any:
        if self.rounding and node.target in _ROUNDS_WITHIN and val.dtype in HALF:
            return NotImplemented
        try:
            result = rule(self.b, *args, **kwargs)
            return result if result is NotImplemented else self._settle(node, result, val)
        except (VerifyError, GuardError) as error:  # it takes other sizes, or asks of symbols what is not known
            if self.strict:
                raise
            warn_once(f"decompose {node.target}", f"{node.target} runs in eager's kernel: {error}")
            return NotImplemented

    def output(self, node: fx.Node) -> None:
        owners: dict[Value, Any] = {}
        self.b.stack, self.b.origin = (), "output"
        result = self._result(node.args[0], owners)
        made = self.new.create_node("output", "output", (result,))
        made.meta = {**node.meta}
        for written in self.new.find_nodes(op="call_function", target=_WRITE_BACK):
            made.prepend(written)  # copies of results are taken before

    # -- helpers ------------------------------------------------------------------------------------------------------

    def _arguments(self, arg: Any) -> Any:
        if isinstance(arg, fx.Node):
            return self.env[arg]
        if isinstance(arg, (tuple, list)):
            return tuple([self._arguments(item) for item in arg])
        return size_of(arg) if isinstance(arg, torch.SymInt) else arg

    def _laid_out(self, arg: Any) -> Any:
        """Return arguments as `_arguments` does, each tensor with the strides that eager gives it."""
        if isinstance(arg, (tuple, list)):
            return tuple([self._laid_out(item) for item in arg])
        value = self._arguments(arg)
        if isinstance(value, Value) and value.spec.stride != (stride := _spec_of(arg.meta["val"]).stride):
            value = self.b.fresh(value)
            value.spec.stride = stride
        return value

    def _is_ours(self, node: fx.Node, val: Any) -> bool:
        """Return whether prims may replace a call: its results, its numbers, and its tensors except scalars, have
        supported dtypes, and results and tensors are on the graph's device."""
        if _is_foreign(val) or complex in map(type, node.args):
            return False
        if any(device != self.device for device in devices_of(val)):
            return False
        return not any(map(self._takes_foreign, node.all_input_nodes))

    def _moved(self, arg: Any) -> Any:
        """Move CPU scalars, which eager accepts together with tensors of another device, to the graph's device."""
        if isinstance(arg, (tuple, list)):
            return tuple([self._moved(item) for item in arg])
        if not isinstance(arg, Value) or arg.spec.device == self.device:
            return arg
        known = self.numbers.get(arg)
        if known is None:
            known = self.numbers[arg] = self._bring(arg)
        return known

    def _bring(self, number: Value) -> Value:
        made = number.node
        if made.target in _NUMBERS:
            return self.b.full((), made.args[_NUMBERS[made.target]], number.dtype, self.device)
        spec = Spec((), number.dtype, self.device, ())
        return self.b.extern(torch.ops.aten._to_copy.default, (number,), {"device": self.device}, val=spec)

    def _takes_foreign(self, node: fx.Node) -> bool:
        """Return whether an argument has an unsupported dtype, or is neither tensor nor integer, so that the call stays
        extern."""
        value = self.env[node]
        if not isinstance(value, Value):
            return isinstance(value, Opaque)
        spec = value.spec
        return spec.dtype not in DTYPES or spec.device != self.device and not (spec.device.type == "cpu"
                                                                               and not spec.shape)

    def _settle(self, node: fx.Node, result: Any, val: Any) -> Any:
        """Check a rule's result against the recorded metadata, set eager's strides, and copy results that must not
        share memory."""
        if isinstance(val, tuple):
            if not isinstance(result, tuple) or len(result) != len(val):
                raise VerifyError(f"{node.target} gives {len(val)} results, its rule {result}")
            # elements outside the mask are never read
            read = {user.args[1] for user in node.users if user.target is operator.getitem}
            checked = [isinstance(spec, Spec) and (one is not None or k in read) for k,
                       (one, spec) in enumerate(zip(result, val))]
            return tuple([self._settle(node, *pair) if check else pair[0] for check,
                          pair in zip(checked, zip(result, val))])
        if not isinstance(result, Value) or not result.spec.same(val):
            raise VerifyError(f"{node.format_node()}: its rule gives {result}, recorded was {val}")
        if self.rounding and val.dtype in HALF:
            result = result if self._is_exact(result) else self.b.rounded(result)
            self.exact.add(result)
        if node in self.escaping and not _is_view(node.target):
            roots = {one.root for one in map(self.env.get, node.all_input_nodes) if isinstance(one, Value)}
            if result.root in roots:
                result = self.b.fresh(result)
        if result.spec.stride is None:
            result.spec.stride = val.stride
        return result

    def _is_exact(self, x: Any) -> bool:
        """Return whether each element of a 16-bit value is a number of its dtype, even if it was computed in a wider
        one."""
        if not isinstance(x, Value) or x.dtype not in HALF or x in self.exact or x.prim in _ROUNDING:
            return type(x) is not float
        return x.prim in _MOVING and all(map(self._is_exact, x.args))

    def _result(self, arg: Any, owners: dict[Value, Any]) -> Any:
        if isinstance(arg, (tuple, list)):
            return tuple([self._result(item, owners) for item in arg])
        if not isinstance(arg, fx.Node):
            return size_of(arg) if isinstance(arg, torch.SymInt) else arg
        value = self.env[arg]
        if not isinstance(value, Value):
            return value.node if isinstance(value, Opaque) else value
        owner = _origin(arg)
        stride = _spec_of(arg.meta["val"]).stride
        if owners.setdefault(value.root, owner) != owner or value.spec.stride != stride:
            value = self.b.fresh(value)
            value.spec.stride = stride
        if "layout" in arg.meta:
            value.node.meta["layout"] = arg.meta["layout"]
        return value.node


def _is_integer(val: Any) -> bool:
    """Return whether a recorded value is an integer, known or symbolic, that needs no node."""
    return val is not None and not isinstance(val, (bool, float, str, torch.SymFloat, torch.SymBool, torch.dtype,
                                                    torch.device))
