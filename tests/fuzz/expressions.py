"""Templates of expressions over Python values."""

from __future__ import annotations

from tests.fuzz.writer import Row, rows

TABLES: dict[str, list[Row]] = {kind: rows(text) for kind, text in {
    "leaf int": "1 <-3..9>",
    "leaf float": """
        1 0.5
        1 -1.25
        1 2.0""",
    "leaf bool": """
        1 True
        1 False""",
    "leaf str": "1 <word>",
    "leaf ints": """
        2 [<0..9>, <0..9>, <0..9>]
        1 [<0..9>]
        1 []""",
    "leaf strs": "1 [<word>, <word>]",
    "leaf tensors": """
        1 [<T1>, <T1>]
        1 [<T1>]""",
    "leaf idict": """
        2 {<key>: <0..9>, <key>: <0..9>}
        1 {}""",
    "leaf tdict": "1 {<key>: <T1>, <key>: <T1>}",
    "leaf set": """
        1 {<0..9>, <0..9>}
        1 set()""",
    "leaf pair": "1 (<0..9>, <T1>)",
    "leaf opt": """
        1 None
        1 <0..9>""",
    "leaf fii": "1 (lambda <bind:int>: <int>)",
    "leaf ftt": "1 (lambda <bind:T1>: <T1>)",
    "leaf gen": "1 iter([<0..9>, <0..9>])",
    "leaf any": """
        1 <int>
        1 <str>
        1 <T1>
        1 <ints>
        1 None""",
    "int": """
        4 (<int> + <int>)
        3 (<int> - <int>)
        2 (<int> * <int> % 97)
        2 (<int> // <1..4>)
        2 (<int> % <1..5>)
        r1 (<int> // <int>)
        1 (-<int>)
        1 abs(<int>)
        1 (<int> & <int>)
        1 (<int> ^ <int>)
        1 (<int> | 1)
        1 (~<int>)
        1 (<int> ** 2 % 31)
        1 (<int> << <0..2>)
        1 divmod(<int>, <2..4>)[<0..1>]
        2 len(<ints>)
        1 len(<str>)
        1 len(<idict>)
        1 len(<tensors>)
        1 len(<set>)
        1 len(<T1>)
        2 min(<int>, <int>)
        1 max(<int>, <int>, <int>)
        2 max(<ints>, default=<int>)
        2 (<ints!> or [<int>])[<-1..0>]
        1 (<ints!>[:1] + [<int>])[0]
        1 [*<ints>, <int>, <int>][<0..1>]
        2 sum(<ints>)
        1 sum(<int> * <int> for <bind:int> in <^ints>)
        1 sum(<ints>, <int>)
        r2 <ints!>[<0..3>]
        r1 <ints!>[-1]
        r2 <idict!>[<key>]
        2 <idict!>.get(<key>, <int>)
        1 <idict!>.pop(<key>, <int>)
        1 <idict!>.setdefault(<key>, <int>)
        r1 <ints!>.pop()
        1 <ints!>.count(<int>)
        r1 <ints!>.index(<int>)
        1 <pair!>[0]
        2 (<int> if <bool> else <int>)
        1 (<opt!> or <int>)
        1 (<opt!> if <opt!> is not None else <int>)
        1 int(<float>)
        1 int(<bool>)
        r1 int(<str!>)
        1 round(<float>)
        1 <str>.find("b")
        1 <str>.count("a")
        r1 ord(<str>[0])
        1 <T2!>.shape[0]
        1 <T1!>.dim()
        1 <T2!>.numel()
        1 <T2!>.stride(<0..1>)
        1 <T1!>.size(0)
        2 <fii!>(<int>)
        1 next(iter(<ints>), <int>)
        1 (lambda <bind:int>, <bind:int>=<^int>: <int>)(<^int>)
        1 [<int>, <int>][<bool>]
        1 (<int>, <int>, <int>)[<-1..2>]
        1 functools.reduce(lambda <bind:int>, <bind:int>: <int>, <^ints>, <^int>)
        1 functools.partial(<fii!>, <int>)()
        1 operator.add(<int>, <int>)
        1 (<ints> + [<int>])[0]
        1 {<key>: <int>, <key>: <int>}.get(<key>, 7)
        b1 int((<T1>.sum() > 0).item())
        b1 broken(<int>)
        y2 ((yield <int>) or <int>)""",
    "float": """
        3 (<float> + <float>)
        2 (<float> * <float>)
        1 (<float> - <int>)
        1 (<int> / <2..4>)
        1 float(<int>)
        1 round(<float>, 2)
        1 abs(<float>)
        1 math.sqrt(abs(<float>))
        1 math.floor(<float>)
        1 (<float> if <bool> else <float>)
        1 max(<float>, <float>)
        1 float(<bool>)
        1 math.pi""",
    "bool": """
        3 (<int> > <int>)
        2 (<int> == <int>)
        2 (<int> < <int> <= <int>)
        2 (not <bool>)
        2 (<bool> and <bool>)
        2 (<bool> or <bool>)
        1 (<int> in <ints>)
        1 (<int> not in <set>)
        1 (<key> in <idict>)
        1 (<str> in <str>)
        1 (<str> == <str>)
        1 (<str> < <str>)
        1 (<opt!> is None)
        1 (<float> >= <float>)
        1 isinstance(<any>, (int, list))
        1 isinstance(<any>, torch.Tensor)
        1 (<T1!> is <T1!>)
        1 (<ints!> is <ints!>)
        1 any(<bool> for <bind:int> in <^ints>)
        1 all(<bool> for <bind:int> in <^ints>)
        1 bool(<ints>)
        1 bool(<str>)
        1 <str>.startswith("a")
        1 hasattr(<any>, "append")
        1 (<ints> == <ints>)
        1 ((<int>, <str>) == (<int>, <str>))
        1 ((<int>, <int>) < (<int>, <int>))
        1 (<idict> == <idict>)
        1 (<set> <= <set>)
        1 callable(<any>)
        b1 bool(<T0> > 0)
        b1 torch.equal(<T1>, <T1>)
        b1 (<T1>.sum() > <T0>).item()""",
    "str": """
        3 f"{<int!> + <int!>}"
        2 f"{<int!>:>3}|{<str!>!r}"
        1 f"{<float!>:.2f}{<int!>:03d}"
        1 f"{<bool!>}{<opt!>}"
        1 f"{<ints!>} {len(<ints!>)}"
        2 (<str> + <str>)
        1 <str>.upper()
        1 <str>.replace("a", <str>)
        1 <str>[<0..2>:<1..4>]
        1 <str>[::-1]
        1 (<str> * <0..2>)
        1 "-".join(<strs>)
        1 ",".join(str(<int>) for <bind:int> in <^ints>)
        1 str(<int>)
        1 repr(<ints>)
        1 repr(<str>)
        1 type(<any>).__name__
        1 ("%d:%s" % (<int>, <str>))
        1 "{} {k}".format(<int>, k=<str>)
        1 <str>.strip().title()
        1 (<str> if <bool> else <str>)
        1 (<str> or <word>)
        1 str(<T1!>.dtype)
        1 str(tuple(<T2!>.shape))
        r1 <strs!>[<0..2>]
        1 <str>.split("b")[0]
        1 chr(97 + <int> % 26)
        1 max(<str>, <str>, key=len)
        b1 broken(<str>)""",
    "ints": """
        3 [<int> for <bind:int> in <^ints>]
        2 [<int> for <bind:int> in <^ints> if <bool>]
        1 [<int> for <bind:int> in range(2) for <bind:int> in <^ints>][:8]
        1 [<int> for <bind:int>, <bind:int> in zip(<^ints>, <^ints>)]
        1 [<int> for <bind:int>, <bind:int> in enumerate(<^ints>)]
        1 [<int> for <bind:str>, <bind:int> in <^idict>.items()]
        1 [*<ints>, <int>]
        1 (<ints> + <ints>)[:8]
        1 sorted(<ints>)
        1 sorted(<ints>, key=lambda <bind:int>: <int>, reverse=<^bool>)
        1 list(range(<int> % 5))
        1 list(range(<1..3>, <4..9>, <1..3>))
        1 list(reversed(<ints>))
        1 list(map(<fii>, <ints>))
        1 list(filter(lambda <bind:int>: <bool>, <^ints>))
        1 list(<idict>.values())
        1 sorted(<set>)
        2 <ints>[<0..2>:]
        1 <ints>[::-1]
        1 <ints>[-2:]
        1 (<ints> * 2)[:6]
        1 <ints!>.copy()
        1 list(<gen>)
        1 [*<gen>]
        1 [len(<str>) for <bind:str> in <^strs>]
        1 [<int> for <bind:int>, _ in [<^pair>]]
        1 list(itertools.chain(<ints>, <ints>))[:8]
        1 list(itertools.islice(<gen>, <1..3>))
        1 list(dict.fromkeys(<ints>))
        1 (<ints> if <bool> else <ints>)
        1 (<ints!> or [<int>])
        b1 [broken(<int>) for <bind:int> in <^ints>]""",
    "strs": """
        2 [<str> for <bind:int> in <^ints>]
        1 <str>.split()
        1 list(<str>)[:4]
        1 list(<idict>)
        1 sorted(<strs>)
        1 [<str>, *<strs>]
        1 list(map(str, <ints>))""",
    "idict": """
        2 {<key>: <int>, **<idict>}
        1 {<str>: <int> for <bind:int> in <^ints>}
        1 {<str>: <int> for <bind:str>, <bind:int> in <^idict>.items() if <bool>}
        1 dict(zip("abcd", <ints>))
        1 dict(<idict>, a=<int>)
        1 (<idict> | <idict>)
        1 <idict!>.copy()
        1 collections.OrderedDict(<idict>)""",
    "set": """
        2 set(<ints>)
        1 {<int> for <bind:int> in <^ints>}
        1 (<set> | <set>)
        1 (<set> & <set>)
        1 (<set> - {<int>})
        1 (<set> ^ <set>)""",
    "pair": """
        2 (<int>, <T1>)
        1 divmod(<int>, 3)[:1] + (<T1>,)
        1 tuple([<int>, <T1>])""",
    "opt": """
        1 (<int> if <bool> else None)
        1 <idict>.get(<key>)""",
    "fii": """
        2 (lambda <bind:int>: <int>)
        1 (lambda <bind:int>, <bind:int>=<^int>: <int>)
        1 (lambda *<bind:ints>: sum(<ints!>) + <int>)
        1 functools.partial(lambda <bind:int>, <bind:int>: <int>, <^int>)
        1 abs
        1 (<fii> if <bool> else <fii>)
        b1 broken""",
    "ftt": """
        2 (lambda <bind:T1>: <T1>)
        1 torch.sin
        1 functools.partial(torch.add, <T1>)
        1 (lambda <bind:T1>, *, <bind:int>=<^int>: <T1>)""",
    "gen": """
        2 (<int> for <bind:int> in <^ints>)
        1 (<int> for <bind:int> in <^ints> if <bool>)
        1 iter(<ints>)
        1 map(<fii>, <ints>)
        1 (<int> for <bind:int>, <bind:int> in zip(<^ints>, <^gen>))""",
    "any": """
        1 <int>
        1 <str>
        1 <T1>
        1 <ints>
        1 <idict>
        1 <opt>
        1 (<int>, <str>)""",
}.items()}
