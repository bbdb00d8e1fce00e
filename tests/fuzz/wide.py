"""More kinds of values and statements, for `Options(wide=True)`: the collections module, iterators that are kept,
exceptions as values, containers of containers, records, views of tensors, numbers handed to tensors, more special
methods."""

from __future__ import annotations

from collections.abc import Callable

from tests.fuzz import statements
from tests.fuzz.writer import Function, Row, Writer, rows

KINDS = ("deq", "odict", "ddict", "cnt", "it", "it", "it", "point", "box", "exc", "fset", "lol", "lol", "dol", "view",
         "view", "sl")

TABLES: dict[str, list[Row]] = {kind: rows(text) for kind, text in {
    "leaf deq": "1 collections.deque([<0..9>, <0..9>], <2..5>)",
    "deq": """
        2 collections.deque(<ints>)
        1 collections.deque(<gen>, <1..4>)
        1 collections.deque(<it>, maxlen=3)
        1 <deq!>.copy()
        1 (<deq!> + <deq!>)""",
    "leaf odict": "1 collections.OrderedDict(a=<0..9>, b=<0..9>)",
    "odict": """
        1 collections.OrderedDict(<idict>)
        1 collections.OrderedDict((<key>, <int>) for <bind:int> in <^ints>)
        1 collections.OrderedDict(reversed(<odict!>.items()))""",
    "leaf ddict": """
        1 collections.defaultdict(list)
        1 collections.defaultdict(list, a=<ints>)""",
    "ddict": """
        1 collections.defaultdict(list, <dol>)
        1 collections.defaultdict(lambda: [<int>])""",
    "leaf cnt": "1 collections.Counter('abca')",
    "cnt": """
        1 collections.Counter(<str>)
        1 collections.Counter(<ints>)
        1 (<cnt> + <cnt>)""",
    "leaf it": """
        1 iter([<0..9>, <0..9>, <0..9>])
        1 enumerate("abc")""",
    "it": """
        2 zip(<ints>, <gen>)
        2 enumerate(<ints>, <int>)
        2 map(<fii>, <gen>)
        1 filter(None, <ints>)
        1 filter(lambda <bind:int>: <bool>, <^it>)
        2 itertools.chain(<ints>, <gen>)
        1 itertools.islice(itertools.count(<int>, <1..3>), 6)
        1 itertools.islice(itertools.cycle([<int>, <int>]), 6)
        1 itertools.accumulate(<ints>)
        1 itertools.takewhile(lambda <bind:int>: <bool>, <^ints>)
        1 itertools.dropwhile(lambda <bind:int>: <bool>, <^gen>)
        1 itertools.zip_longest(<ints>, <strs>, fillvalue=<int>)
        1 itertools.pairwise(<ints>)
        1 itertools.islice(<it>, <1..3>)
        1 itertools.starmap(lambda <bind:int>, <bind:int>: <int>, zip(<^ints>, <^ints>))
        1 itertools.product(<ints>[:2], <strs>[:2])
        1 itertools.repeat(<int>, <1..4>)
        1 reversed(<ints!>)
        1 iter(<idict!>)
        1 iter(<idict!>.items())
        1 iter(<ints!>)
        1 iter(<str>)
        1 iter(<deq!>)
        1 (<int> for <bind:int> in <^it>)
        1 (<T1> for <bind:T1> in <^tensors>)""",
    "leaf point": "1 Point(<0..9>, <word>)",
    "point": """
        2 Point(<int>, <str>)
        1 Point(b=<str>, a=<int>)
        1 <point!>._replace(a=<int>)
        1 Point(*(<int>, <str>))""",
    "leaf box": "1 Box(<0..9>, <T1>)",
    "box": """
        2 Box(<int>, <T1>)
        1 Box(<int>, <T1>, xs=<ints>)
        1 copy.copy(<box!>)
        1 copy.deepcopy(<box!>)
        1 dataclasses.replace(<box!>, k=<int>)""",
    "leaf exc": "1 ValueError(<word>)",
    "exc": """
        1 Oops(<int>)
        1 KeyError(<str>)
        1 ValueError(<int>, <str>)
        1 StopIteration(<int>)""",
    "leaf fset": "1 frozenset([<0..9>, <0..9>])",
    "fset": """
        1 frozenset(<ints>)
        1 (<fset> | <set>)
        1 (<fset> - <fset>)""",
    "leaf sl": "1 slice(<0..1>, <1..4>)",
    "sl": "1 slice(<int> % 3, None, <1..2>)",
    "leaf lol": "1 [[<0..9>], [<0..9>, <0..9>]]",
    "lol": """
        2 [<ints>, <ints>]
        1 [<ints!>] * 2
        1 [list(<ints!>) for <bind:ints> in <^lol>]
        1 [[<int> for <bind:int> in <^ints>] for <bind:int> in <^ints>][:3]
        1 copy.deepcopy(<lol!>)
        1 copy.copy(<lol!>)
        1 list(map(list, zip(<ints>, <ints>)))
        1 sorted(<lol>, key=len)""",
    "leaf dol": "1 {'a': [<0..9>], 'b': []}",
    "dol": """
        1 {<key>: <ints>, **<dol>}
        1 dict(zip("ab", <lol>))
        1 {<str>: <ints> for <bind:str> in <^strs>}""",
    "leaf view": "1 torch.ones(n, n)[0]",
    "view": """
        2 <T2!>[<0..2>]
        2 <T2!>[:, <0..2>]
        1 <T2!>.diagonal()
        1 <T2!>.t()[<0..2>]
        1 <T1!>[:]
        1 <T2!>.view(-1)[:n]
        1 <T2!>.unbind(<0..1>)[<0..2>]
        1 <T1!>.view(n, 1).squeeze(1)
        1 <T1!>.flip(0)
        1 <T2!>.split(1)[0].squeeze(0)
        1 <view!>.detach()""",
    "int": """
        1 len(<deq!>)
        r1 <deq!>[<-1..1>]
        r1 <deq!>.popleft()
        r1 <deq!>.pop()
        2 <point!>.a
        2 <point!>[0]
        2 <box!>.k
        1 len(<box!>.xs)
        1 <cnt!>[<key>]
        1 <cnt!>.total()
        1 len(<fset!>)
        r1 <lol!>[<0..1>][0]
        1 len(<lol!>)
        1 sum(len(<ints!>) for <bind:ints> in <^lol>)
        1 len(<ddict!>[<key>])
        1 len(<dol!>.get(<key>, []))
        1 (<int>).bit_length()
        1 math.gcd(<int>, <int>)
        1 operator.itemgetter(0)([<int>, *<ints>])
        1 len(<exc!>.args)
        1 len(<ints!>[<sl!>])
        1 <view!>.storage_offset()
        1 <view!>.stride(0)
        1 pow(<int>, 2, 7)
        1 int(f"{<int>}")
        1 min(<ints>, key=lambda <bind:int>: -<int>, default=<^int>)
        1 functools.cache(<fii!>)(<int>)
        1 eval("<0..9> + 1")""",
    "T1": """
        3 <view!>
        2 <view!> * <int>
        2 <box!>.t
        1 <T1> * len(<deq!>)
        2 <T1> + <int> * 0.5
        1 <T1>.add(<T1>, alpha=<int>)
        1 torch.full((n,), <int> * 0.5)
        1 torch.full((n,), <float>)
        1 <T1>.clamp(max=<float>)
        1 torch.tensor([float(<int>)] * n)
        1 torch.stack([<T0>] * n)
        1 torch.cat([<T1>[:1], <T1>[1:]])
        1 <T2>.sum(<0..1>)
        1 <T1>.roll(<int>)
        1 torch.where(<B1>, <T1>, <float>)
        1 <T2>[<I1>.clamp(0, 0), 0]
        1 <T2>.expand(n, n)[0]""",
    "str": """
        1 repr(<deq!>)
        1 repr(<odict!>)
        1 f"{<lol!>} {<point!>}"
        1 str(<cnt!>)
        1 <point!>.b
        1 f"{<exc!>!r}"
        1 "%s" % (<ints!>,)
        1 f"{<int!>:{<2..5>}}"
        1 f"{sorted(<fset!>)}"
        1 str(<ddict!>["a"])
        1 repr(<sl!>)
        1 type(<it!>).__name__
        1 <str>.join(<strs>)
        1 <str>.format_map({'a': 1})
        1 <str>.translate({97: "z"})
        1 bytes(<str>, "ascii").hex()""",
    "bool": """
        1 (<int> in <deq!>)
        1 (<point!> == <point!>)
        1 (<box!> is <box!>)
        1 (<lol!> == <lol!>)
        1 (<int> in <fset!>)
        1 (<odict!> == <odict!>)
        1 (<key> in <ddict!>)
        1 (<deq!> < <deq!>)
        1 isinstance(<exc!>, (LookupError, Oops))
        1 (<lol!>[:1] is <lol!>)
        1 any(<lol!>)""",
    "ints": """
        1 list(<deq!>)
        1 [<int> for <bind:ints> in <^lol>]
        1 list(itertools.chain.from_iterable(<lol!>))[:8]
        1 sorted(<fset!>)
        1 <ints>[<sl!>]
        1 list(<odict!>.values())
        1 <box!>.xs
        1 [<point!>.a, *<ints>]
        1 <dol!>.get(<key>, [])
        1 [<int> for <bind:int> in <^it>][:6]""",
}.items()}

# CPython computes the places of an extended slice before it runs the generator, and crashes if that shrinks the list.
SIMPLE = rows("""
    2 <deq!>.append(<int>)
    1 <deq!>.appendleft(<int>)
    1 <deq!>.rotate(<int>)
    1 <deq!>.extend(<gen>)
    1 <deq!>.extendleft(<ints>)
    r1 del <deq!>[0]
    r1 <deq!>.remove(<int>)
    r1 <odict!>.move_to_end(<key>, last=<bool>)
    r1 <odict!>.popitem(last=<bool>)
    2 <odict!>[<key>] = <int>
    2 <ddict!>[<key>].append(<int>)
    1 <cnt!>.update(<str>)
    2 <cnt!>[<key>] += <int>
    1 <cnt!>.subtract(<ints>)
    r2 <lol!>[<0..1>].append(<int>)
    1 <lol!>.append(<ints!>)
    1 <lol!>[:] = <lol!>[::-1]
    1 <lol!>.sort(key=len)
    r1 <lol!>[0], <lol!>[1] = <lol!>[1], <lol!>[0]
    1 <dol!>.setdefault(<key>, []).append(<int>)
    2 <new:int> = len(list(itertools.islice(<it!>, <1..2>)))
    3 note(next(<it!>, None))
    1 note(list(<it!>)[:8])
    r1 next(<it!>)
    r1 <new:any>, <new:any>, *_ = <it!>
    b1 record(next(<it!>, None))
    b1 record(<it!>)
    b1 record(<lol!>, <deq!>)
    b1 record(<box!>, <point!>)
    b1 record(<view!>)
    2 <box!>.k += <int>
    1 <box!>.t = <box!>.t + 1
    1 <box!>.t.add_(<T1>)
    1 <box!>.xs.append(<int>)
    1 <exc!>.args = (<int>,)
    1 <exc!>.__cause__ = <exc>
    1 <exc!>.note = <str>
    1 <exc!>.add_note(<str>)
    1 note(<exc!>)
    1 del <ints!>[::2]
    1 del <ints!>[<sl!>]
    1 <ints!>[1:1] = <gen>
    1 <ints!>[<sl!>] = <ints>
    r1 <ints!>[::2] = list(<gen>)
    1 <ints=> *= <0..2>
    3 <view!>.add_(<int>)
    2 <view!>.mul_(<T1>)
    2 <view!>[<0..2>] = <float>
    1 <view!>.copy_(<T1>)
    1 <view!>.neg_()
    1 <T2!>[<0..2>].copy_(<view>)
    1 <T2!>[torch.eye(n).bool()] = <float>
    1 <T1!>.add_(<T1>, alpha=<int>)
    1 <T1!>.fill_(<int>)
    1 <T1!>.index_add_(0, <I1>, <T1>)
    1 torch.mul(<T1>, <int>, out=<T1!>)
    1 <new:T1> = <T1!>
    1 print(*<ints>, end=<word>)
    1 print(<deq!>, <lol!>)
    1 globals()["G0"] = <int>
    1 <new:T1>, <new:T1> = <T2>.aminmax(dim=0)
""")


def drain(g: Writer, budget: int) -> None:
    """An iterator that is read by hand to its end."""
    name = g.variable("it", False)
    with g.block("for _ in range(6):"):
        with g.block("try:"):
            value = g.name("v")
            g.emit(f"{value} = next({name})")
        with g.block("except StopIteration:"):
            g.emit("note('end')")
            g.emit("break")
        g.scope.names[value] = "any"
        statements.body(g, budget)


def partly(g: Writer, budget: int) -> None:
    """A loop over an iterator that is left early."""
    name, value = g.variable("it", False), g.name("v")
    g.scope.function.loops += 1
    with g.block(f"for {value} in {name}:"):
        g.scope.names[value] = "any"
        statements.body(g, budget)
        g.emit(f"if {g.expr('bool')} or len(EVENTS) > 40:")
        g.emit("    break")
    g.scope.function.loops -= 1


def manager(g: Writer, budget: int) -> None:
    """A context manager written as a generator, and used."""
    name, parameter, value = g.name("m"), g.name("p"), g.name("v")
    g.emit("@contextlib.contextmanager")
    with g.block(f"def {name}({parameter}):", Function("int", generator=False)):
        g.scope.names[parameter] = "int"
        statements.body(g, budget)
        with g.block("try:"):
            g.emit(f"yield {g.expr('int')}")
        if g.chance(50):
            with g.block("except (ValueError, Oops) as e:"):
                g.emit("note(repr(e))")
        with g.block("finally:"):
            g.emit(f"note({g.expr('int')})")
    g.scope.function.protected += 1
    with g.block(f"with {name}({g.expr('int')}) as {value}:"):
        g.scope.names[value] = "int"
        statements.body(g, budget)
        if g.chance(40):
            statements.throw(g)
    g.scope.function.protected -= 1


def chained(g: Writer, budget: int) -> None:
    """Exceptions that are raised from others, and looked at."""
    error = g.name("e")
    g.scope.function.protected += 1
    with g.block("try:"):
        with g.block("try:"):
            statements.body(g, budget)
            statements.throw(g)
        with g.block(f"except Exception as {error}:"):
            g.emit(g.random.choice((f"raise Oops('outer') from {error}", f"raise Oops({error}.args)", "raise",
                                    "raise KeyError('k') from None", f"raise {g.expr('exc')} from {error}")))
    with g.block(f"except Exception as {error}:"):
        g.emit(f"note((repr({error}), repr({error}.__cause__), repr({error}.__context__), "
               f"{error}.__suppress_context__))")
        g.scope.names[error] = "exc"
        statements.body(g, budget)
    g.scope.function.protected -= 1


def grouped(g: Writer, budget: int) -> None:
    """An exception group, split."""
    g.scope.function.protected += 1
    with g.block("try:"):
        statements.body(g, budget)
        g.emit(f"raise ExceptionGroup('g', [ValueError({g.expr('int')}), {g.expr('exc')}])")
    with g.block("except* ValueError as e:"):
        g.emit("note([repr(x) for x in e.exceptions])")
    with g.block("except* Exception as e:"):
        g.emit("note(len(e.exceptions))")
    g.scope.function.protected -= 1


def heir(g: Writer, budget: int) -> None:
    """A class made in the function, with a base and a cell of the function around it."""
    base, name, made = g.name("L"), g.name("L"), g.name("v")
    shared = g.expr("int", 1)
    with g.block(f"class {base}:"):
        with g.block("def __init__(self, k):"):
            g.emit("self.k = k")
        with g.block("def get(self):"):
            g.emit("return self.k")
        with g.block("def __enter__(self):"):
            g.emit("note(self.k)")
            g.emit("return self")
        with g.block("def __exit__(self, *args):"):
            g.emit("note(args[0] is None)")
    with g.block(f"class {name}({base}):"):
        with g.block("def get(self):"):
            g.emit(f"return super().get() + {shared}")
        g.emit("@property")
        with g.block("def twice(self):"):
            g.emit("return 2 * self.get()")
    with g.block(f"with {name}({g.expr('int')}) as {made}:"):
        statements.body(g, budget)
    g.emit(f"{made} = {made}.twice")
    g.scope.names[made] = "int"


BLOCKS: list[tuple[int, Callable[[Writer, int], None]]] = [(6, drain), (6, partly), (6, manager), (5, chained),
                                                           (2, grouped), (3, heir)]

HEADER = """import copy
import dataclasses

Point = collections.namedtuple("Point", "a b")


@dataclasses.dataclass
class Box:
    k: int
    t: torch.Tensor
    xs: list = dataclasses.field(default_factory=list)


G0 = 0
"""

METHODS = (
    ("def __setitem__(self, k, v):", "int", (("k", "int"), ("v", "int")), "1 <{0}!>.__setitem__(<int>, <int>)"),
    ("def __hash__(self):", "int", (), "1 len({{<{0}!>: 1, <{0}!>: 2}})"),
    ("def __index__(self):", "int", (), "1 [1, 2, 3][<{0}!>]"),
    ("def __iadd__(self, k):", "int", (("k", "int"),), "1 operator.iadd(<{0}!>, <int>)"),
    ("def __repr__(self):", "str", (), "1 len(repr(<{0}!>))"),
    ("def __format__(self, spec):", "str", (), "1 len(f'{{<{0}!>:x}}')"),
    ("def __reversed__(self):", "gen", (), "2 list(reversed(<{0}!>))"),
    ("def __enter__(self):", "int", (), "1 <{0}!>.__enter__()"),
    ("def __ge__(self, other):", "bool", (), "1 (<{0}!> <= <{0}!>)"),
    ("def __int__(self):", "int", (), "1 int(<{0}!>)"),
    ("@functools.cached_property\ndef kept(self):", "int", (), "3 <{0}!>.kept"),
    ("@contextlib.contextmanager\ndef open(self):", "gen", (), "1 list(<{0}!>.open().gen)"),
)
