"""What stands before `main`: globals, classes, helper functions. Each definition adds the templates that use it."""

from __future__ import annotations

from dataclasses import replace

from tests.fuzz.statements import body
from tests.fuzz.writer import Function, Row, Writer, rows

RESULTS = ("int", "T1", "T2", "ints", "str", "pair")
PARAMETERS = ("int", "int", "T1", "T1", "T2", "ints", "str", "idict", "tensors", "opt", "bool")


def add(g: Writer, kind: str, weight: int, text: str, breaks: bool = False) -> None:
    """One more template of a kind."""
    g.tables.setdefault(kind, []).append(Row(weight, text, breaks))


def globals_(g: Writer) -> None:
    """Module variables that functions read, and some of them write."""
    for kind in g.random.sample(("int", "ints", "idict", "str", "T1", "float", "tensors", "set"), 4):
        name = g.name("G")
        g.emit(f"{name} = {g.choose(g.tables['leaf ' + kind], 0)}")
        g.scope.names[name] = kind


def helper(g: Writer) -> None:
    """A function that `main` and later helpers call."""
    name, result = g.name("h"), g.random.choice(RESULTS)
    kinds = g.random.sample(PARAMETERS, g.random.randint(1, 3))
    head, uses, names = [], [], {}
    for i, kind in enumerate(kinds):
        p = g.name("p")
        names[p] = kind
        style = g.random.randrange(6)
        if style == 0 and i:
            head.append(("kw", f"{p}={g.choose(g.tables['leaf ' + kind], 0)}"))
            uses.append(f"{p}=<{kind}>")
        elif style == 1 and i == len(kinds) - 1 and kind == "ints":
            head.append(("star", f"*{p}"))
            uses.append(g.random.choice(("<int>, <int>", "*<ints>", "*(<int>,), <int>")))
            names[p] = "any"
        elif style == 2 and kind == "int":
            head.append(("plain", p))
            uses.append("*(<int>,)")
        else:
            head.append(("plain", p))
            uses.append(f"<{kind}>")
    positional = [t for s, t in head if s == "plain"] + [t for s, t in head if s == "star"]
    keyword = [t for s, t in head if s == "kw"]
    if keyword and not any(s == "star" for s, _ in head):
        keyword.insert(0, "*")
    uses.sort(key=lambda u: "=" in u)
    recursive = "int" in kinds and g.chance(25)
    if g.chance(15):
        g.emit(g.random.choice(("@logged", "@counted",
                                "@framesmith.disable") if g.options.breaks == "any" else ("@logged", "@counted")))
    with g.block(f"def {name}({', '.join(positional + keyword)}):", Function(result)):
        g.scope.names.update(names)
        write_globals(g)
        body(g, 3)
        if recursive:
            first = next(p for p, k in names.items() if k == "int")
            own = g.fill(f"{name}({', '.join(uses)})", 1)
            with g.block(f"if 0 < {first} < 4 and len(EVENTS) < 60:"):
                g.emit(f"note({first})")
                g.emit(f"return {own}")
        g.emit(f"return {g.expr(result)}")
    add(g, result, 4, f"{name}({', '.join(uses)})")


def write_globals(g: Writer) -> None:
    """Declares some module variables global here, so that the function may assign them."""
    outer = [n for s in g.scope.chain() for n in s.names if n.startswith("G")]
    if outer and g.chance(30):
        name = g.random.choice(outer)
        g.emit(f"global {name}")
        g.scope.shared.add(name)


def generator(g: Writer) -> None:
    """A generator function of the module."""
    name, p = g.name("g"), g.name("p")
    with g.block(f"def {name}({p}):", Function("int", generator=True)):
        g.scope.names[p] = "int"
        write_globals(g)
        body(g, 4)
        g.emit(f"yield {g.expr('int')}")
    add(g, "gen", 4, f"{name}(<int>)")


METHODS = (
    ("def __len__(self):", "int", (), "1 len(<{0}!>)"),
    ("def __getitem__(self, k):", "int", (("k", "int"),), "2 <{0}!>[<int>]"),
    ("def __call__(self, a, b=2):", "int", (("a", "int"), ("b", "int")), "2 <{0}!>(<int>)"),
    ("def __contains__(self, k):", "bool", (("k", "int"),), "2 (<int> in <{0}!>)"),
    ("def __bool__(self):", "bool", (), "1 (not <{0}!>)"),
    ("def __iter__(self):", "gen", (), "2 list(<{0}!>)"),
    ("def __eq__(self, other):", "bool", (), "1 (<{0}!> == <{0}!>)"),
    ("def __lt__(self, other):", "bool", (), "1 (<{0}!> < <{0}!>)"),
    ("def __str__(self):", "str", (), "1 str(<{0}!>)"),
    ("def __radd__(self, k):", "int", (("k", "int"),), "1 (<int> + <{0}!>)"),
    ("def __matmul__(self, k):", "T1", (("k", "T1"),), "2 (<{0}!> @ <T1>)"),
    ("def __neg__(self):", "T2", (), "2 (-<{0}!>)"),
    ("def tensor(self, x, *rest):", "T1", (("x", "T1"),), "3 <{0}!>.tensor(<T1>)"),
    ("def number(self, k, *, m=1):", "int", (("k", "int"), ("m", "int")), "3 <{0}!>.number(<int>, m=<int>)"),
    ("@property\ndef size(self):", "int", (), "3 <{0}!>.size"),
    ("@classmethod\ndef made(cls, k):", "int", (("k", "int"),), "1 <{0}!>.made(<int>)"),
    ("@staticmethod\ndef free(k):", "int", (("k", "int"),), "1 <{0}!>.free(<int>)"),
    ("@functools.wraps(note)\ndef wrapped(self, k):", "int", (("k", "int"),), "1 <{0}!>.wrapped(<int>)"),
)
TABLE_OF = {"bool": "bool", "gen": "ints"}

ATTRIBUTES = rows("""
    3 <{0}!>.k = <int>
    2 <{0}!>.k += <int>
    3 <{0}!>.t = <T1>
    2 <{0}!>.t += <T1>
    2 <{0}!>.t.mul_(2)
    2 <{0}!>.xs.append(<int>)
    1 <{0}!>.xs = <ints>
    1 <{0}!>.d[<key>] = <T1>
    1 setattr(<{0}!>, "k", <int>)
    r1 del <{0}!>.k
    r1 <{0}!>.xs[0] = <int>
    b1 record(<{0}!>)
    1 <new:{0}> = <{0}>
""")
SLOTLESS = rows("""
    1 <{0}!>.fresh = <int>
    1 <{0}!>.__dict__["k"] = <int>
    1 vars(<{0}!>).update(k=<int>)
""")


def class_(g: Writer) -> None:
    """A class with state of several kinds."""
    name = g.name("K")
    bases = [k for k in g.tables if k.startswith("K")]
    base = g.random.choice(bases) if bases and g.chance(40) else None
    slots = base is None and g.chance(20)
    with g.block(f"class {name}{f'({base})' if base else ''}:", Function("none")):
        if slots:
            g.emit('__slots__ = ("k", "t", "xs", "d")')
        g.emit(f"shared = {g.expr('int', 0)}")
        with g.block("def __init__(self, k, t):"):
            if base:
                g.emit("super().__init__(k, t)")
                g.emit("self.k = self.k + 1")
            else:
                g.emit("self.k = k")
                g.emit("self.t = t")
                g.emit("self.xs = [k, 1]")
                g.emit("self.d = {'a': t}")
        for head, result, parameters, use in g.random.sample(g.methods, g.random.randint(2, 5)):
            method(g, head, result, parameters)
            weight, _, text = use.partition(" ")
            add(g, TABLE_OF.get(result, result), int(weight), text.format(name))
        if g.chance(20):
            with g.block("def __getattr__(self, name):"):
                with g.block("if name.startswith('get_'):"):
                    g.emit("return len(name) + len(self.xs)")
                g.emit("raise AttributeError(name)")
            add(g, "int", 2, f"<{name}!>.get_it")
        if g.chance(12) and not slots:
            with g.block("def __setattr__(self, name, value):"):
                g.emit("note(name)")
                g.emit("object.__setattr__(self, name, value)")
    g.tables["leaf " + name] = rows(f"1 {name}(<int>, <T1>)")
    g.tables[name] = rows(f"1 {name}(<int>, <T1>)")
    add(g, "int", 2, f"<{name}!>.k")
    add(g, "int", 1, f"<{name}!>.shared")
    add(g, "any", 1, f"getattr(<{name}!>, <key>, <int>)")
    add(g, "T1", 3, f"<{name}!>.t")
    add(g, "ints", 2, f"<{name}!>.xs")
    add(g, "tdict", 1, f"<{name}!>.d")
    add(g, "bool", 1, f"isinstance(<any>, {name})")
    add(g, "bool", 1, f"hasattr(<{name}!>, <key>)")
    add(g, "any", 1, f"<{name}>")
    g.simple.extend(replace(r, text=r.text.replace('{0}', name))
                    for r in [*ATTRIBUTES, *([] if slots or base else SLOTLESS)])


def method(g: Writer, head: str, result: str, parameters: tuple[tuple[str, str], ...]) -> None:
    *decorators, definition = head.split("\n")
    for line in decorators:
        g.emit(line)
    with g.block(definition, Function("int" if result == "gen" else result, generator=result == "gen")):
        g.scope.names.update(parameters)
        if "(self" in definition:
            g.scope.names.update({"self.k": "int", "self.t": "T1", "self.xs": "ints"})
        body(g, 2)
        g.emit(f"yield {g.expr('int')}" if result == "gen" else f"return {g.expr(result)}")
