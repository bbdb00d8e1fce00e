"""Control flow on data and on sizes, for `Options(data=True)`: branches and loops that a tensor's values decide, loops
over as many rounds as a size that varies has, what they index, fill and collect, and iterators that they share."""

from __future__ import annotations

from collections.abc import Callable

from tests.fuzz import statements
from tests.fuzz.writer import NoTemplate, Row, Writer, rows

SIZES = ([3, 4, 5, 3, 6], [3, 4, 2, 5, 4], [4, 3, 6, 1, 5], [5, 5, 4, 3, 3])
"""The size `n` of each call."""
KINDS = ("T0", "T1", "T1", "T2", "T2", "tensors", "tensors", "int", "walk", "walk")

TABLES: dict[str, list[Row]] = {kind: rows(text) for kind, text in {
    "test": """
        6 <T0> > <float>
        3 (<T1> > <float>).any()
        2 (<T1> <= <float>).all()
        2 <T1>.sum() < <T2>.mean()
        2 <T0> > 0 and <T0> < <int>
        1 not <T0> > 0 or <bool>
        1 <T1>[0] > <T1>[-1]
        2 n > <2..4>
        1 len(<tensors>) < n""",
    "leaf test": """
        2 n > <2..4>
        2 torch.ones(n).sum() > <2..4>""",
    "bool": """
        3 bool(<T0> > <float>)
        1 (<T1> > 0).any().item()""",
    "int": """
        2 n
        1 <T1>.shape[0]
        1 (n - 1)
        1 (n // 2)
        1 int(<T0>)
        1 (<T1> > 0).sum().item()""",
    "T0": "2 (<T0> if <T0> > <float> else <T0>)",
    "T1": """
        2 (<T1> if <test> else <T1>)
        2 <T2>[<int> % n]
        1 torch.stack(<tensors!>).sum(0)
        1 sum(<T1> for <bind:int> in range(n))
        1 torch.stack([<T0> for <bind:int> in range(n)])
        1 torch.stack([<T0> for <bind:T1> in <^T2>])""",
    "T2": """
        1 (<T2> if <test> else <T2>)
        2 torch.stack([<T1> for <bind:T1> in <^T2>])
        2 torch.stack([<T1> for <bind:int> in range(n)])""",
    "tensors": """
        2 [<T1> for <bind:int> in range(n)]
        1 [<T1> for <bind:T1> in <^T2> if <test>]""",
    "leaf walk": """
        2 iter(range(n))
        1 iter([<0..9>, <0..9>, <0..9>])""",
    "walk": """
        2 iter(range(n))
        2 reversed(range(n))
        1 iter(range(<int>))
        1 iter([<int>, <int>, <int>])
        1 (<int> for <bind:int> in range(n))
        1 map(lambda <bind:int>: <int>, range(n))
        1 iter(<ints!>[:4])""",
}.items()}

SIMPLE = rows("""
    3 <T1=> = <T1> if <test> else <T1>
    2 <T2!>[<int> % n] = <T1>
    2 <T2!>[<int> % n] += <T1>
    2 <T1!>[<int> % n] = <T0>
    2 <tensors!>.append(<T1>)
    2 <int=> = next(<walk!>, <int>)
    r1 <T1=> += next(<walk!>)
    1 <ints!>.extend(<walk!>)
    1 <int=> = sum(<walk!>)
    1 <int=> += 1
""")

LOOPS = rows("""
    6 for <new:int> in range(n):
    3 for <new:int> in range(<T1>.shape[0]):
    2 for <new:int> in range(1, n):
    2 for <new:int> in reversed(range(n)):
    1 for <new:int> in range(<int> % 5):
    4 for <new:T1> in <T2>:
    3 for <new:int>, <new:T1> in enumerate(<T2>):
    2 for <new:T1>, <new:T0> in zip(<T2>, <T1>):
    2 for <new:T1> in <tensors>[:6]:
    2 for <new:int>, <new:T1> in zip(range(n), <tensors>):
    4 for <new:int> in <walk!>:
    2 for <new:int>, <new:T1> in zip(<walk!>, <T2>):
""")


def branch(g: Writer, budget: int) -> None:
    """A branch on data, of which each path may leave the function."""
    with g.block(f"if {g.expr('test')}:"):
        statements.body(g, budget)
        if g.chance(15):
            statements.give_back(g)
    if g.chance(60):
        with g.block("else:"):
            statements.body(g, budget)
            if g.chance(15):
                statements.give_back(g)


def counted(g: Writer, budget: int) -> None:
    """A loop over a number of rounds that a size gives."""
    function = g.scope.function
    if function.loops >= 2:
        raise NoTemplate
    head, names = statements.loop_head(g, LOOPS)
    function.loops += 1
    with g.block(head):
        g.scope.names.update(names)
        statements.body(g, budget)
        if g.chance(15):
            g.emit(f"if {g.expr('test')}:")
            g.emit("    " + g.random.choice(("break", "continue")))
    function.loops -= 1
    if g.chance(15):
        with g.block("else:"):
            statements.body(g, 1)


def ended_by_data(g: Writer, budget: int) -> None:
    """A `while` over a value of a tensor, or over a number, that grows in each round."""
    function = g.scope.function
    if function.loops >= 2:
        raise NoTemplate
    if g.chance(50):
        name, head, step = g.name("w"), "{0} < n", "{0} += 1"
        g.emit(f"{name} = {g.random.choice(('0', '1', 'n // 2'))}")
        kind = "int"
    else:
        name, head, step = g.name("w"), "{0}.sum() < " + str(g.random.randint(2, 20)), "{0} = {0}.abs() + 0.75"
        g.emit(f"{name} = {g.expr('T1', 1)}")
        kind = "T1"
    function.loops += 1
    with g.block(f"while {head.format(name)}:"):
        g.emit(step.format(name))
        read = g.name("v")
        g.emit(f"{read} = {name} + 0")
        g.scope.names[read] = kind
        statements.body(g, budget)
    function.loops -= 1


BLOCKS: list[tuple[int, Callable[[Writer, int], None]]] = [(30, branch), (30, counted), (10, ended_by_data)]
