"""The side effects of a graph's calls: the one definition of which calls may be dropped or shared."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Node

from framesmith.graph.launch import OfOneGraph

_PURE_MODULES = frozenset(("_operator", "math", "builtins"))
_WRITING_OPERATORS = frozenset(
    getattr(operator, name) for name in
    ("setitem", "delitem", "iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "iand", "ior", "ixor", "imatmul",
     "ipow",
     "ilshift", "irshift", "iconcat")
)
_SPEAKING_BUILTINS = frozenset((print, input, open, exec, eval, setattr, delattr, next, iter))
_RANDOM = torch.Tag.nondeterministic_seeded
_KNOWN: dict[Any, str] = {}

PURE, RANDOM, EFFECT, COLLECTIVE = "pure", "random", "effect", "collective"
_OF_GROUPS = frozenset(("_c10d_functional", "_c10d_functional_autograd"))


def kind_of(target: Any) -> str:
    """Classify a call. PURE: may be dropped and shared. RANDOM: advances a generator, so neither. EFFECT: writes, or is
    unknown. COLLECTIVE: gives a value, but other processes wait for the call."""
    if isinstance(target, OfOneGraph):
        return COLLECTIVE if communicates(target) else PURE if target.is_pure else RANDOM
    try:
        return _KNOWN[target]
    except KeyError:
        _KNOWN[target] = kind = _classify(target)
        return kind
    except TypeError:  # an unhashable callable
        return EFFECT


def communicates(target: Any) -> bool:
    """Return whether a call is one of a collective operator of a process group, or waits for one."""
    return getattr(target, "namespace", None) in _OF_GROUPS or getattr(target, "communicates", False)


def _classify(target: Any) -> str:
    if communicates(target):
        return COLLECTIVE
    if isinstance(target, OpOverload):
        schema = target._schema
        if schema.is_mutable or not schema.returns:
            return EFFECT
        return RANDOM if _RANDOM in target.tags else PURE
    if hasattr(target, "kind") and hasattr(target, "meta"):  # a prim
        return {"random": RANDOM, "effect": EFFECT}.get(target.kind, PURE)
    if getattr(target, "__module__", None) in _PURE_MODULES:
        return EFFECT if target in _WRITING_OPERATORS or target in _SPEAKING_BUILTINS else PURE
    return PURE if getattr(target, "is_pure", False) else EFFECT


def is_pure(node: Node) -> bool:
    """Return whether the node only computes a value, the same for equal arguments (including disabled dropout)."""
    if node.op == "call_function":
        if "binds" in node.meta:  # sizes are computed of the symbol to which it gives a value
            return False
        kind = kind_of(node.target)
        return kind == PURE or (kind == RANDOM and _switched_off(node))
    return node.op == "get_attr"


def draws(node: Node) -> bool:
    """Return whether the node advances a generator: the assignment of numbers to elements then depends on the layout of
    its arguments."""
    return node.op == "call_function" and kind_of(node.target) == RANDOM and not _switched_off(node)


def is_needed(node: Node) -> bool:
    """Return whether the node must stay even if its value is unused."""
    return node.op in ("placeholder", "output") or not is_pure(node)


def is_view(target: Any) -> bool:
    """Return whether the result of a call shares the memory of an argument."""
    if isinstance(target, OpOverload):
        return any(r.alias_info is not None and not r.alias_info.is_write for r in target._schema.returns)
    return getattr(target, "kind", None) == "view" or target is operator.getitem


# Operators whose schema says random, but that draw nothing if an argument has this value: (position, name, value).
_OFF: dict[str, tuple[tuple[int, str, Any], ...]] = {
    "aten::scaled_dot_product_attention": ((4, "dropout_p", 0.0),),
    "aten::_scaled_dot_product_flash_attention_for_cpu": ((3, "dropout_p", 0.0),),
    "aten::_scaled_dot_product_flash_attention": ((3, "dropout_p", 0.0),),
    "aten::_scaled_dot_product_efficient_attention": ((5, "dropout_p", 0.0),),
    "aten::_scaled_dot_product_cudnn_attention": ((5, "dropout_p", 0.0),),
    "aten::_scaled_dot_product_attention_math": ((4, "dropout_p", 0.0),),
    "aten::dropout": ((2, "train", False), (1, "p", 0.0)),
    "aten::native_dropout": ((2, "train", False), (1, "p", 0.0)),
    "aten::feature_dropout": ((2, "train", False),),
    "aten::alpha_dropout": ((2, "train", False),),
    "aten::lstm": ((6, "train", False),),
    "aten::gru": ((6, "train", False),),
    "aten::rnn_tanh": ((6, "train", False),),
    "aten::rnn_relu": ((6, "train", False),),
    "aten::rrelu": ((3, "training", False),),
}
_DEFAULTS = {"dropout_p": 0.0}


def _switched_off(node: Node) -> bool:
    if isinstance(node.target, OfOneGraph):
        return False
    name = node.target._schema.name  # type: ignore[union-attr]
    for position, keyword, value in _OFF.get(name, ()):
        default = _DEFAULTS.get(keyword)
        given = node.args[position] if position < len(node.args) else node.kwargs.get(keyword, default)
        if given is value or (type(given) is type(value) and given == value):
            return True
    return False
