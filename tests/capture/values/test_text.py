"""Strings, bytes, and their formatting."""

from __future__ import annotations

import string
import textwrap
from functools import partial

from tests.capture.values.harness import agree
from tests.programs import Programs

taken = Programs(agree)
broken = partial(taken, whole=False)


@taken
def methods(x):
    s = "Hello, World"
    n = x.shape[0]
    parts = (s.split(", ") + s.rsplit("o", 1) + list(s.partition(",")) + list(s.rpartition("o"))
             + "a\nb\r\nc".splitlines())
    cases = [s.upper(), s.lower(), s.swapcase(), s.title(), s.casefold(), s.capitalize()]
    pads = [s.center(20, "*"), s.ljust(n + 14) + "|", s.rjust(14), s.zfill(20), "a\tb".expandtabs(4)]
    finds = [s.find("o"), s.rfind("o"), s.index("l"), s.rindex("l"), s.count("l"), s.find("zz"),
             s.startswith(("x", "He")),
        s.endswith("ld")]
    strips = ["  a ".strip(), "xxaxx".lstrip("x"), "xxaxx".rstrip("x"), s.removeprefix("Hello"),
              s.removesuffix("World"),
        s.replace("l", "L", 2)]
    kinds = [s.isalpha(), "ab".isalnum(), "12".isdigit(), "12".isdecimal(), "½".isnumeric(), "a".isidentifier(),
             " ".isspace(),
             s.istitle(), "A".isupper(), "a".islower(), "é".isascii(), "a".isprintable()]
    return x + n, parts, cases, pads, finds, strips, kinds, s.encode(), s.encode("utf-16"), s[::-1], s[-5:], s[
        n], s * n, "W" in s, len(s)


@taken
def formats(x):
    n, r = x.shape[1], x.dim() / 3
    old = "%d|%5.2f|%-6s|%r|%x|%%|%(a)s" if False else "%d|%5.2f|%-6s|%r|%x|%%" % (n, r, "ab", "q", 255)
    named = "%(a)s-%(b)03d" % {"a": "z", "b": n}
    new = "{} {!r:>5} {0:{1}}".replace("{0:{1}}", "") .format(n, "a")
    fields = "{a[0]} {b.real} {0:>{w}} {c[k]}".format(n, a=[1, 2], b=3, c={"k": "v"}, w=6)
    fstr = f"{n:>4}|{r:.3f}|{n!r}|{'a' if n else 'b'}|{n=}|{r:{n}.{n}}|{{}}|{[1, 2, n]}|{(n,)}|{ {'k': n} }"
    return x * r, old, named, new, fields, fstr, format(n, "05d"), format(r, "e"), str(n), repr(r), ascii("é"), \
        "{:,}".format(1234567), f"{x.shape}"


@taken
def joined(x):
    words = [f"w{i}" for i in range(x.shape[1])]
    table = str.maketrans({"w": "v", "1": None})
    return x + 1, ",".join(words), ",".join(w.upper() for w in words), "".join({"a": 1, "b": 2}), ",".join(
        words).translate(table), \
        "abc".translate(str.maketrans("ab", "xy", "c")), "{a}".format_map({"a": 1}), str.join("-", words), str.upper(
            "a"), \
        list(map(str.strip, [" a "]))


@taken
def compared(x):
    a, b = "abc", "abd"
    return x + 1, a < b, a == "abc", a != b, a >= b, max("xyz"), min(a, b), sorted("hello"), list(reversed(a)), [
        ord(c) for c in a], \
        chr(97), hash(a) == hash("abc"), \
        all(c in "abc" for c in a), list(enumerate(a)), dict(zip(a, b)), set(a) == {"a", "b", "c"}, tuple(
            a), a.__len__(), \
        a.__contains__("b"), a.__add__(b)


@taken
def letters(x):
    out = ""
    for c in "abc":
        out += c * x.dim()
    first, *rest = out
    return x + 1, out, first, rest, int("12"), int("ff", 16), float("1.5"), complex("1+2j"), bool(""), bytes(3), bytes(
        [1, 2]), \
        str(b"a", "ascii")


@taken
def binary(x):
    b = b"hello"
    return x + 1, b.upper(), b[0], b[1:3], b.decode(), b + b"!", b * 2, b.find(b"l"), b.hex(), bytes.fromhex(
        "ff00"), list(b), \
        b.split(b"l"), b == b"hello", len(b), \
        int.from_bytes(b"\x01\x02",
                       "big"), (258).to_bytes(2, "little"), b.startswith(b"h"), b.join(
                           [b"a", b"b"]), 104 in b, b"%d" % 3


@broken
def byte_array(x):
    a = bytearray(b"abc")
    a.append(100)
    a[0] = 65
    a.extend(b"xy")
    return x + len(a), a, bytes(a), a.decode(), memoryview(b"abc")[1]


@broken(make=lambda: (bytearray(b"abc"),))
def byte_array_argument(x, a):
    a.append(1)
    return x + len(a), a


@taken
def templates(x):
    return x + 1, string.Template("$a and ${b}").substitute(a=1, b="two"), string.Template("$a $c").safe_substitute(
        a=1), \
        string.ascii_lowercase, string.capwords("a b c")


@taken
def wrapped(x):
    return x + 1, textwrap.dedent("  a\n  b"), textwrap.indent("a\nb", "> "), textwrap.shorten("hello big world", 12), \
        textwrap.fill("aaa bbb ccc", 7)


class Text(str):
    """A str with more."""

    __slots__ = ()

    def shout(self):
        return self.upper() + "!"


@taken(make=lambda: (Text("abc"),), others=[lambda: (Text("abd"),)])
def subclass(x, s):
    return x + 1, s.shout(), s + "d", len(s), s[0], s == "abc", isinstance(s, str), f"{s}", s.upper(), {"abc": 1}.get(
        s), str(s), \
        s.join(["a", "b"]), "abc" == s, s in ("abc",)


@taken
def subclass_made(x):
    t = Text("xy")
    return x + 1, t, t.shout(), t == "xy", [t, t], "%s" % t, t.replace("x", "z")


@taken(make=lambda: ("abc", 2), others=[lambda: ("abd", 3), lambda: ("", 0), lambda: (b"abc", 1)])
def varying(x, s, n):
    return x * n, s * n, s[:1], len(s), s.upper(), n if s else -n


@taken
def raised(x):
    out = []
    for make in (lambda: "abc".index("z"), lambda: int("x"), lambda: "%d" % "a", lambda: "a" + 1, lambda: "abc"[5],
                 lambda: "{}".format(),
                 lambda: "a" < 1, lambda: "abc".encode("nope"), lambda: b"\xff".decode("ascii"), lambda: "-".join([1])):
        try:
            out.append(make())
        except Exception as e:
            out.append((type(e), str(e)))
    return x + 1, out


class Money:
    def __init__(self, n):
        self.n = n

    def __format__(self, spec):
        return f"${self.n:{spec or 'd'}}"

    def __str__(self):
        return f"{self.n} dollars"

    def __repr__(self):
        return f"Money({self.n})"


@taken(make=lambda: (Money(3),))
def objects(x, m):
    return x + 1, f"{m}", f"{m:04d}", f"{m!r}", f"{m!s}", str(m), repr(m), "{}|{:03d}|{!r}".format(m, m, m), "%s %r" % (
        m, m), \
        format(m, "x"), repr([m, Money(4)]), \
        str({"a": m}), f"{[m]}", f"{(m, m)}", str((m,)), repr({m.n: Money(5)}), "".join(map(str, [m, m]))


@broken
def tensors(x):
    return f"{x}", str(x + 1), "%s" % (x * 2), "{}".format([x]), repr((x,))


test_program = taken.test()
