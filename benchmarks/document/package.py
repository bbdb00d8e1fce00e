"""Tables of the package itself: its scalar operations, the operators that become primitives, and the passes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from benchmarks.document.markers import table
from framesmith.passes import Context
from framesmith.pipeline import PASSES
from framesmith.prims.registry import rules
from framesmith.prims.scalars import SCALAR_OPS


def scalar_operations() -> str:
    """One row a scalar operation: operands, cost, the overloads that become it, its text in each language."""
    rows = []
    for op in SCALAR_OPS.values():
        operands = ", ".join("abcde"[:op.arity])
        triton = next(op.triton[kind] for kind in ("float32", "float", "any", "integer", "bool") if kind in op.triton)
        cpp = op.cpp or f"{op.name}({', '.join(['{}'] * op.arity)})"
        texts = [f"`{text.format(*operands.split(', '))}`" for text in (cpp, triton)]
        rows.append([f"`{op.name}`", operands, op.result, str(op.cost), " ".join(op.aten), *texts])
    return table(["operation", "operands", "result", "cost", "ATen", "C++", "Triton"], rows)


def decompositions() -> str:
    """The operators that become primitives, by the file of their rules; those of scalar operations are not repeated."""
    scalar = {path.partition(".")[0] for op in SCALAR_OPS.values() for path in op.aten}
    families: dict[str, set[str]] = defaultdict(set)
    for func, rule in rules.items():
        name = func.__name__.partition(".")[0]
        if name not in scalar:
            families[rule.__module__.rpartition(".")[2]].add(name)
    return table(["family", "operators"], [[f"`{family}`", ", ".join(sorted(names))]
                                           for family, names in sorted(families.items())])


def passes() -> str:
    """One row a pass, in the order in which they run."""
    rows = [[f"`{one.name}`", one.form, ", ".join(one.targets) or "all", _condition(one.when)] for one in PASSES]
    return table(["pass", "form", "devices", "condition"], rows)


def _condition(when: Callable[[Context], bool] | None) -> str:
    return "" if when is None else when.__name__.strip("_")
