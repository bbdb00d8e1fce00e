"""Statements: templates of the simple ones, and writers of the compound ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tests.fuzz.writer import Function, NoTemplate, Row, Writer, rows

KINDS = ("int", "int", "int", "T1", "T1", "T2", "T2", "T0", "ints", "ints", "str", "bool", "float", "idict", "tensors",
         "tdict", "set",
         "pair", "opt", "I1", "B1", "fii", "ftt", "gen", "strs", "any")
ERRORS = ("ValueError", "KeyError", "IndexError", "TypeError", "Oops", "ZeroDivisionError")
CAUGHT = (*ERRORS, "Exception", "(ValueError, Oops)", "LookupError", "ArithmeticError", "RuntimeError")

SIMPLE = rows("""
    6 <int=> = <int>
    4 <T1=> = <T1>
    4 <T2=> = <T2>
    2 <ints=> = <ints>
    2 <str=> = <str>
    1 <idict=> = <idict>
    1 <float=> = <float>
    1 <tensors=> = <tensors>
    1 <any=> = <any>
    1 <opt=> = <opt>
    4 <int=> += <int>
    1 <int=> -= <int>
    1 <int=> *= <-2..3>
    r1 <int=> //= <int>
    1 <str=> += <str>[:3]
    2 <T1=> = <T1=> * 0.5 + <T1>
    2 <T1=> += <T1>
    1 <T2=> += <T2>
    1 <T1=> *= 0.5
    1 <T0=> -= <T0>
    2 <new:int> = <new:int> = <int>
    2 <new:int>, <new:T1> = <pair>
    2 <new:int>, <new:int> = <int>, <int>
    2 <int=>, <int=> = <int>, <int>
    r1 <new:int>, *<new:ints> = <ints>
    r1 *<new:ints>, <new:int> = <ints>
    r1 <new:int>, *<new:ints>, <new:int> = <ints>
    1 <new:int>, (<new:int>, <new:str>) = <int>, (<int>, <str>)
    2 <new:int>, *<new:ints> = [<int>, *<ints>]
    1 *<new:ints>, <new:int> = *<ints>, <int>
    1 <new:int>, <new:int> = <fii!>(<int>), <int>
    1 <new:T1>, <new:T1>, *_ = <T2>
    r1 [<new:T1>, <new:T1>] = <tensors>
    3 <ints!>.append(<int>)
    2 <ints!>.extend(<ints>[:4])
    1 <ints!>.insert(<0..2>, <int>)
    r1 <ints!>.pop(<0..1>)
    r1 <ints!>.remove(<int>)
    1 <ints!>.clear()
    1 <ints!>.reverse()
    1 <ints!>.sort()
    1 <ints!>.sort(key=lambda <bind:int>: -<int>)
    r1 del <ints!>[<0..2>]
    1 del <ints!>[<0..1>:<1..3>]
    r2 <ints!>[<0..2>] = <int>
    1 <ints!>[<0..1>:<1..3>] = <ints>[:3]
    r1 <ints!>[::2] = <ints>
    1 <ints=> += [<int>]
    r1 <ints!>[0] += <int>
    1 <ints!>[:] = <gen>
    2 <strs!>.append(<str>)
    2 <tensors!>.append(<T1>)
    r1 <tensors!>[<0..1>] = <T1>
    r1 <tensors!>[<0..1>] += <T1>
    1 <tensors!>.extend(<T1> for <bind:T1> in <^tensors>[:3])
    r1 <tensors!>.pop()
    3 <idict!>[<key>] = <int>
    r1 <idict!>[<key>] += <int>
    1 <idict!>.update(<idict>)
    1 <idict!>.update(a=<int>)
    r1 <idict!>.pop(<key>)
    r1 del <idict!>[<key>]
    1 <idict!>.clear()
    r1 <idict!>.popitem()
    1 <idict=> |= <idict>
    1 <idict!>.setdefault(<key>, <int>)
    2 <tdict!>[<key>] = <T1>
    1 <tdict!>.pop(<key>, None)
    r1 <tdict!>[<key>] = <tdict!>[<key>] + <T1>
    2 <set!>.add(<int>)
    1 <set!>.discard(<int>)
    r1 <set!>.remove(<int>)
    1 <set!>.update(<ints>)
    1 <set=> |= <set>
    1 <set=> -= <set>
    1 <set!>.difference_update(<ints>)
    3 <T1!>.add_(<T1>)
    2 <T2!>.mul_(<float>)
    1 <T2!>.add_(<T1>)
    2 <T1!>[<0..2>] = <T0>
    1 <T1!>[<0..2>] = <int>
    1 <T2!>[<0..2>] = <T1>.clone()
    1 <T2!>[:, <0..2>] = <T1>.clone()
    1 <T2!>[<0..2>] += <T1>
    1 <T1!>[<B1>] = <float>
    r1 <T1!>[<I1>.clamp(0, 2)] = <T0>
    1 <T1!>.copy_(<T1>)
    1 <T2!>.t().add_(<T1>)
    1 <T1!>.zero_()
    1 <T1!>.clamp_(-2, 2)
    1 <T2!>.fill_diagonal_(<int>)
    1 <T2!>[0, :].sub_(<T1>)
    r1 torch.add(<T1>, <T1>, out=<T1!>)
    r2 next(<gen!>)
    1 <int=> = next(<gen!>, <int>)
    3 note(<str>)
    2 note(<int>)
    2 print(<int>, <str>)
    1 print(f"{<int!>}", <float>, sep=<word>)
    1 print(<ints>)
    b4 record(<int>, <ints>)
    b3 record(<any>)
    b3 record(<T1>, <idict>)
    b4 framesmith.graph_break()
    b2 <int=> = broken(<int>)
    b2 <T1=> = broken(<T1>) + <T1>
    b1 broken(<ints>).append(<int>)
    b1 record(<gen!>)
    r1 assert <bool>, <str>
    1 <fii!>(<int>)
    1 <ftt!>(<T1>)
    y6 yield <int>
    y2 <new:int> = (yield <int>) or <int>
    y2 yield from <ints>
    y1 yield from <gen>
""")


def assign(g: Writer) -> None:
    """A new variable."""
    kind = g.random.choice(g.kinds)
    text = g.expr(kind, 3)
    name = g.name("v")
    g.emit(f"{name} = {text}")
    g.scope.names[name] = kind


def simple(g: Writer) -> None:
    """A statement of one line."""
    g.emit(g.choose(g.simple, 2))


def delete(g: Writer) -> None:
    """The end of a variable of this block."""
    if not g.scope.names or g.scope.outer is None:
        raise NoTemplate
    name = g.random.choice(list(g.scope.names))
    del g.scope.names[name]
    g.emit(f"del {name}")


def conditional(g: Writer, budget: int) -> None:
    head = f"if {g.expr('bool')}:"
    if g.chance(15):
        walrus = g.fill("if (<new:int> := <int>) > <0..3>:", 2)
        head = walrus
    with g.block(head):
        body(g, budget)
    while g.chance(25):
        with g.block(f"elif {g.expr('bool')}:"):
            body(g, budget)
    if g.chance(50):
        with g.block("else:"):
            body(g, budget)


LOOPS = rows("""
    4 for <new:int> in range(<1..4>):
    2 for <new:int> in <ints>[:4]:
    2 for <new:int>, <new:int> in enumerate(<ints>[:4]):
    1 for <new:int>, <new:T1> in zip(<ints>, <tensors>):
    1 for <new:T1> in <tensors>[:4]:
    2 for <new:T1> in <T2>:
    1 for <new:T0> in <T1>:
    1 for <new:str>, <new:int> in list(<idict>.items())[:4]:
    1 for <new:str>, <new:T1> in <tdict>.items():
    1 for <new:str> in sorted(<idict>):
    1 for <new:int> in sorted(<set>)[:4]:
    1 for <new:int> in reversed(<ints>[:3]):
    1 for <new:int> in itertools.islice(<gen>, 4):
    1 for <new:str> in <str>[:3]:
    1 for <new:int>, (<new:str>, <new:int>) in enumerate(zip(<strs>, <ints>)):
    1 for <new:int> in (<int>, <int>, <int>):
""")


def loop_head(g: Writer, heads: list[Row]) -> tuple[str, dict[str, str]]:
    """The first line of a `for` loop, and the names that exist in its body alone, with their kinds."""
    before = dict(g.scope.names)
    head = g.choose(heads, 1)
    names = {k: v for k, v in g.scope.names.items() if k not in before}
    g.scope.names = before
    return head, names


def loop(g: Writer, budget: int) -> None:
    function = g.scope.function
    if function.loops >= 2:
        raise NoTemplate
    if g.chance(25):
        counter = g.name("w")
        g.emit(f"{counter} = 0")
        head = f"while {counter} < {g.random.randint(1, 4)}" + (f" and {g.expr('bool')}:" if g.chance(40) else ":")
        step = f"{counter} += 1"
        names = {}
    else:
        step = None
        head, names = loop_head(g, LOOPS)
    function.loops += 1
    with g.block(head):
        g.scope.names.update(names)
        if step:
            g.emit(step)
        body(g, budget)
    function.loops -= 1
    if g.chance(20):
        with g.block("else:"):
            body(g, 1)


def leave_loop(g: Writer) -> None:
    if not g.scope.function.loops:
        raise NoTemplate
    g.emit(f"if {g.expr('bool')}:")
    g.emit("    " + g.random.choice(("break", "continue")))


def leave_function(g: Writer) -> None:
    with g.block(f"if {g.expr('bool')}:"):
        give_back(g)


def give_back(g: Writer) -> None:
    """A return of what the function returns."""
    kind = g.scope.function.result
    g.emit("return" if kind == "none" else f"return {g.expr(kind)}")


def throw(g: Writer) -> None:
    error = g.random.choice(ERRORS)
    text = g.random.choice((f"raise {error}({g.expr('str')})", f"raise {error}({g.expr('int')}, {g.expr('str', 1)})",
                            f"raise {error}"))
    if g.scope.function.protected and g.chance(50):
        g.emit(text)
    elif g.risky:
        with g.block(f"if {g.expr('bool')}:"):
            g.emit(text)
    else:
        raise NoTemplate


def attempt(g: Writer, budget: int) -> None:
    function = g.scope.function
    function.protected += 1
    with g.block("try:"):
        body(g, budget)
        if g.chance(50):
            throw(g)
    handlers = g.chance(85)
    if handlers:
        for caught in g.random.sample(CAUGHT, g.random.choice((1, 1, 2))):
            name = g.name("e")
            with g.block(f"except {caught} as {name}:"):
                g.emit(f"note(repr({name}))" if g.chance(70) else f"note(type({name}).__name__)")
                body(g, 1)
                if g.chance(15):
                    g.emit(g.random.choice(("raise", f"raise Oops('again') from {name}", "raise ValueError('new')")))
        if g.chance(25):
            with g.block("except Exception:"):
                body(g, 1)
        if g.chance(25):
            with g.block("else:"):
                body(g, 1)
    if not handlers or g.chance(35):
        with g.block("finally:"):
            body(g, 1)
            if g.chance(8):
                give_back(g)
    function.protected -= 1


MANAGERS = rows("""
    3 Noted(<str>)
    2 Noted(<str>) as <new:int>
    2 noted(<int>) as <new:int>
    2 Suppress(ValueError)
    1 Suppress(Exception)
    2 contextlib.suppress(KeyError, Oops)
    2 torch.no_grad()
    1 torch.enable_grad()
    1 contextlib.nullcontext(<int>) as <new:int>
    1 torch.set_grad_enabled(<bool>)
""")


def within(g: Writer, budget: int) -> None:
    function = g.scope.function
    before = dict(g.scope.names)
    heads = [g.choose(MANAGERS, 1) for _ in range(g.random.choice((1, 1, 1, 2)))]
    function.protected += 1
    with g.block(f"with {', '.join(heads)}:"):
        body(g, budget)
        if g.chance(25):
            throw(g)
    function.protected -= 1
    g.scope.names = {k: v for k, v in g.scope.names.items() if k in before}


PATTERNS = rows("""
    1 case <-2..4>:
    1 case <-2..4> | <5..9>:
    1 case [<new:int>, *_] if <bool>:
    1 case []:
    1 case (<new:int>, <new:str>):
    1 case str():
    1 case int(<new:int>):
    1 case {"a": <new:int>, **_rest}:
    1 case torch.Tensor():
    1 case None:
    1 case bool() | float():
    1 case list() as <new:ints>:
""")


def match(g: Writer, budget: int) -> None:
    g.emit(f"match {g.expr(g.random.choice(('any', 'any', 'int', 'ints')))}:")
    g.indent += 1
    before = dict(g.scope.names)
    for _ in range(g.random.randint(1, 3)):
        head = g.choose(PATTERNS, 1)
        names = {k: v for k, v in g.scope.names.items() if k not in before}
        g.scope.names = dict(before)
        with g.block(head):
            g.scope.names.update(names)
            body(g, budget)
    with g.block("case _:"):
        body(g, 1)
    g.indent -= 1


def inner_function(g: Writer, budget: int) -> None:
    """A closure; sometimes it writes to the function around it."""
    result = g.random.choice(("int", "T1"))
    kind = {"int": "fii", "T1": "ftt"}[result]
    name, parameter = g.name("f"), g.name("p")
    default = f", {g.name('q')}={g.expr('int', 1)}" if g.chance(30) else ""
    own = [n for n in g.scope.find("int", True) if n[0] in "vp"]
    if g.chance(20):
        g.emit(g.random.choice(("@logged", "@counted")))
    with g.block(f"def {name}({parameter}{default}):", Function(result)):
        if own and g.chance(50):
            shared = g.random.choice(own)
            g.emit(f"nonlocal {shared}")
            g.scope.shared.add(shared)
        g.scope.names[parameter] = result
        if default:
            g.scope.names[default[2:].split("=")[0]] = "int"
        body(g, budget)
        g.emit(f"return {g.expr(result)}")
    g.scope.names[name] = kind


def inner_generator(g: Writer, budget: int) -> None:
    """A generator made here, and consumed in some way."""
    name, parameter, made = g.name("g"), g.name("p"), g.name("v")
    with g.block(f"def {name}({parameter}):", Function("int", generator=True)):
        g.scope.names[parameter] = "int"
        body(g, budget)
        g.emit(f"yield {g.expr('int')}")
    g.emit(f"{made} = {name}({g.expr('int')})")
    g.scope.names[made] = "gen"
    if g.chance(40):
        use = g.random.choice(("next({0})", "{0}.send(None)", "note(next({0}, None))", "note(sum({0}))", "{0}.close()",
                               "note(list({0}))", "note({0}.throw(ValueError('in')))",
                               "note([next({0}), {0}.send(5)])"))
        if g.chance(50):
            with g.block("try:"):
                g.emit(use.format(made))
            with g.block("except (StopIteration, ValueError) as e:"):
                g.emit("note(repr(e))")
        else:
            g.emit(use.format(made))


def inner_class(g: Writer, budget: int) -> None:
    """A class made in the function."""
    name, made = g.name("L"), g.name("v")
    with g.block(f"class {name}:"):
        g.emit(f"value = {g.expr('int', 1)}")
        with g.block("def get(self, k=1):"):
            g.emit("return self.value + k")
    g.emit(f"{made} = {name}().get({g.expr('int', 1)})")
    g.scope.names[made] = "int"


Writing = Callable[[Writer], None]
_PLAIN: list[tuple[int, Writing]] = [(30, assign), (55, simple), (2, delete), (3, leave_loop), (2, leave_function),
                                     (2, throw)]
BLOCKS: list[tuple[int, Callable[[Writer, int], None]]] = [
    (14, conditional), (14, loop), (9, attempt), (7, within), (4, match), (6, inner_function), (4, inner_generator),
    (1, inner_class),
]


def body(g: Writer, budget: int) -> None:
    """Some statements; `budget` bounds their number and depth."""
    for _ in range(g.random.randint(1, max(1, budget))):
        statement(g, budget)


def statement(g: Writer, budget: int) -> None:
    """One statement; a writer that does not fit here is passed over."""
    while True:
        size, indent, scope, names, function = len(g.lines), g.indent, g.scope, dict(g.scope.names), replace(
            g.scope.function)
        try:
            if budget > 1 and g.chance(40):
                g.random.choices([w for _, w in g.blocks], [n for n, _ in g.blocks])[0](g, budget - 2)
            else:
                g.random.choices([w for _, w in _PLAIN], [n for n, _ in _PLAIN])[0](g)
            return
        except NoTemplate:
            del g.lines[size:]
            g.indent, g.scope, scope.names = indent, scope, names
            scope.function.loops, scope.function.protected = function.loops, function.protected
