"""Branches on a relation between sizes whose paths do nothing but choose a value: a short circuit (`n > 1 and mask is
None`), a conditional expression. Both paths are followed, each under its assumption, and no guard is taken: a value
that both give is kept, and of two truth values a relation is made."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from framesmith.symbolic.env import ShapeEnv
from framesmith.symbolic.expr import Rel, and_, ne, not_, or_, truth
from framesmith.symbolic.node import SymNode, expr_of, symbool
from framesmith.util.errors import Unsupported

from . import trackers as t
from .arms import same
from .bytecode.liveness import liveness
from .frame import Frame

_JUMPS = frozenset({"JUMP", "POP_JUMP_IF_FALSE", "POP_JUMP_IF_TRUE", "POP_JUMP_IF_NONE", "POP_JUMP_IF_NOT_NONE",
                    "JUMP_IF_FALSE_OR_POP", "JUMP_IF_TRUE_OR_POP"})
_PURE = _JUMPS | {"LOAD_FAST", "LOAD_CONST", "LOAD_GLOBAL", "LOAD_DEREF", "STORE_FAST", "POP_TOP", "COPY", "SWAP",
                  "NOP", "IS_OP", "UNARY_NOT"}
_OPERANDS: dict[str, tuple[tuple[type, ...], tuple[type, ...]]] = {
    "COMPARE_OP": ((t.Const, t.Sym), (t.Const, t.Sym)), "BINARY_OP": ((t.Const, t.Sym), (t.Const, t.Sym)),
    "BINARY_SUBSCR": ((t.Tuple,), (t.Const,))}
"""Instructions that do nothing else for operands of these types."""
LONGEST = 32
"""The maximal number of instructions on a path."""


def relation_of(v: t.Tracker) -> tuple[ShapeEnv, Rel] | None:
    """Return the relation that is the truth of a size, or of a comparison of sizes, if ranges and guards do not decide
    it."""
    if type(v) is not t.Sym or isinstance(v.value, torch.SymFloat) or not isinstance(v.value.node, SymNode):
        return None
    node = v.value.node
    rel = node.value if isinstance(v.value, torch.SymBool) else ne(node.value, 0)  # type: ignore[arg-type]
    return (node.env, rel) if isinstance(rel, Rel) and node.env.known(rel) is None else None


def merged(f: Frame, target: int, jumps: bool, keeps: bool) -> bool:
    """Follow both paths of a jump to `target`, if the truth of the value on top of the stack is `jumps`, and move the
    frame to where they meet; the value stays on the stack where it jumps if it `keeps` it. Returns False, and changes
    nothing, if the value is no undecided relation, or if the paths do or give something else."""
    found = relation_of(f.stack[-1])
    if found is None:
        return False
    env, rel = found
    before, stack, ip, compared = list(f.locals), list(f.stack), f.ip, f.tracer.compared
    starts = [(f.ip, stack[:-1]), (target, stack if keeps else stack[:-1])]
    paths = [_Path(f, before, *starts[jumps], env, rel), _Path(f, before, *starts[not jumps], env, not_(rel))]
    meet = next((k for k in paths[1].places if k in paths[0].places), -1)
    joined = _joined(f, paths, meet)
    if joined is None:
        f.locals[:], f.stack[:], f.ip, f.tracer.compared = before, stack, ip, compared
        return False
    slots = len(f.locals)
    f.locals[:], f.stack[:], f.ip, f.tracer.compared = joined[:slots], joined[slots:], meet, ()  # type: ignore[assignment]
    return True


def refuse_assumed(v: t.Tracker) -> None:
    """Refuse to decide a branch on a relation between sizes on a path of another such branch."""
    found = relation_of(v)
    if found is not None and found[0].supposed:
        raise Unsupported("a branch on a size whose paths differ")


class _Path:
    """A path from a branch, under the assumption that `holds`."""

    def __init__(self, f: Frame, before: list[t.Tracker | None], start: int, stack: list[t.Tracker], env: ShapeEnv,
                 holds: Rel) -> None:
        self.frame, self.before, self.start, self.stack, self.env, self.holds = f, before, start, stack, env, holds
        self.places: list[int] = []
        """The instructions that it comes to, as far as it computes nothing but a value."""
        self.run(len(f.dec.instrs))

    def run(self, stop: int) -> None:
        """Follow the path to an instruction, or to the first that does something else."""
        f = self.frame
        f.locals[:], f.stack[:], f.ip = self.before, self.stack, self.start
        self.places = [f.ip]
        with self.env.supposing(self.holds):
            while f.ip != stop and len(self.places) <= LONGEST and self._is_pure(f.ip):
                handler, arg = f.ops[f.ip]
                f.ip += 1
                try:
                    handler(f, arg)
                except (Unsupported, t.CapturedError):
                    break
                if f.ip <= self.places[-1]:
                    break
                self.places.append(f.ip)

    def _is_pure(self, at: int) -> bool:
        f = self.frame
        ins, top = f.dec.instrs[at], f.stack[-2:]
        unread = f.tracer.pending if f is f.tracer.frames[0] else ()
        if ins.op == "LOAD_FAST" and f.locals[ins.val] is None and ins.val in unread:
            self.before[ins.val] = f.tracer.local(f, ins.val)
        kinds = _OPERANDS.get(ins.op)
        if ins.op == "LOAD_ATTR":
            return ins.val == "shape" and type(top[-1]) is t.Tensor and top[-1].pyclass is torch.Tensor
        return ins.op in _PURE or kinds is not None and all(type(x) in types for x, types in zip(top, kinds))

    def values_at(self, place: int) -> list[t.Tracker | None] | None:
        """Return locals and stack where the path comes to an instruction; None if it does not."""
        self.run(place)
        f = self.frame
        if self.places[-1] != place:
            return None
        return [*f.locals, *f.stack]

    def known(self, x: t.Tracker | None) -> t.Tracker | None:
        """Return the constant for a number of sizes that is known under the assumption, others unchanged."""
        if type(x) is not t.Sym or not isinstance(x.value.node, SymNode):
            return x
        with self.env.supposing(self.holds):
            if isinstance(x.value, torch.SymBool):
                known = self.env.known(x.value.node.value)  # type: ignore[arg-type]
                return x if known is None else t.boolean(known)
            found = self.env.simplify(expr_of(x.value)) if isinstance(x.value, torch.SymInt) else None
            return x if found is None or not found.is_const else t.Const(found.const)


def _joined(f: Frame, paths: Sequence[_Path], meet: int) -> list[t.Tracker | None] | None:
    """Return the values where the paths meet; None if they are not known without the branch's outcome."""
    both = [path.values_at(meet) for path in paths]
    if None in both or len(both[0]) != len(both[1]):  # type: ignore[arg-type]
        return None
    live, names, found = liveness(f.code, meet), f.code.co_varnames, []
    for k, (a, b) in enumerate(zip(*both)):  # type: ignore[arg-type]
        if not same(a, b):
            if k < len(names) and names[k] not in live:
                a = None
            elif not same(a := paths[0].known(a), b := paths[1].known(b)):
                one, other = truth_of(a), truth_of(b)
                if one is None or other is None:
                    return None
                a = f.tracer.made(symbool(or_(and_(paths[0].holds, one), and_(paths[1].holds, other)), paths[0].env))
        found.append(a)
    return found


def truth_of(x: t.Tracker | None) -> Rel | None:
    """Return a truth value as a relation; None for other values."""
    if type(x) is t.Const and type(x.value) is bool:
        return truth(x.value)
    return x.value.node.value if type(x) is t.Sym and isinstance(x.value, torch.SymBool) else None


__all__ = ["merged", "refuse_assumed", "relation_of", "truth_of"]
