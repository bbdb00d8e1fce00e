"""Entries made by hand: a residual function stands for what capture would build."""

from __future__ import annotations

from framesmith import _C
from framesmith.capture.guards import compile_guards
from framesmith.capture.sources import Guard, Local


def variant(residual, guards=(), inputs=()):
    """A frame callback that offers `residual` for every frame of the function named as it, and counts its calls."""

    def callback(code, func, f_locals):
        if code.co_name != residual.__name__:
            return None
        callback.calls += 1
        made = guards(f_locals) if callable(guards) else guards
        tree = compile_guards(made, inputs, func.__globals__)
        return _C.Entry(tree, code, residual.__code__, callback)

    callback.calls = 0
    return callback


def type_of(name, cls=int):
    return Guard(Local(name), "type", cls)


def equals(name):
    """Guards that specialise on the value of an argument."""
    return lambda f_locals: [Guard(Local(name), "equals", f_locals[name])]
