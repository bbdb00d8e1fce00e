"""What makes containers of iterables: code that gives the values sees them grow, and is asked first how many there will
be."""

from __future__ import annotations

import collections

import torch

import framesmith
from tests.capture.lang import X, check
from tests.programs import Programs

program = Programs(check)


class Asked:
    """Notes what is asked of it."""

    def __init__(self, length=2):
        self.length = length
        self.asked = []

    def __iter__(self):
        self.asked.append("iter")
        for i in range(2):
            self.asked.append(i)
            yield i

    def __len__(self):
        self.asked.append("len")
        return self.length


class Hinted:
    def __init__(self, hint):
        self.left = 2
        self.hint = hint
        self.asked = []

    def __iter__(self):
        return self

    def __next__(self):
        self.asked.append(self.left)
        if not self.left:
            raise StopIteration
        self.left -= 1
        return self.left

    def __length_hint__(self):
        self.asked.append("hint")
        return self.hint


class Keyed:
    """Notes when it is hashed, and compared."""

    def __init__(self, notes, n):
        self.notes = notes
        self.n = n

    def __hash__(self):
        self.notes.append(("hash", self.n))
        return self.n

    def __eq__(self, other):
        return self.n == other.n


@program(make=Asked)
def length_is_asked_for_lists_and_tuples(x, a):
    out = []
    out.extend(a)
    out += a
    out[1:1] = a
    return [list(a), tuple(a), [*a, 1], (1, *a), sorted(a), out, max(*a), sum(a), set(a), collections.deque(a)]


@program(make=lambda: [Asked(length) for length in (-1, "x", 3)])
def lengths_that_are_none(x, many):
    out = []
    for a in many:
        try:
            out.append(list(a))
        except (ValueError, TypeError) as e:
            out.append(repr(e))
    return out


@program(make=lambda: [Hinted(hint) for hint in (7, NotImplemented, "x", -1)])
def hints(x, many):
    out = []
    for a in many:
        try:
            out.append(tuple(a))
        except (ValueError, TypeError) as e:
            out.append(repr(e))
    return out


@program(make=lambda: [1, 2, 3])
def a_list_grows_while_it_is_read(x, xs):
    xs.extend(sum(xs) for _ in xs[:3])
    xs += (len(xs) for _ in range(2))
    xs.extend(map(len, [xs, xs]))
    return xs


@program(make=lambda: [1, 2, 3])
def what_came_before_an_error_stays(x, xs):
    def some():
        yield 1
        raise KeyError(len(xs))

    try:
        xs.extend(some())
    except KeyError as e:
        return e.args


@program(make=lambda: [1, 2, 3])
def a_slice_is_settled_before_its_values_are_made(x, xs):
    def grow(n):
        xs.append(n)
        return -n

    xs[1:] = (grow(i) for i in range(2))
    xs[:0] = (grow(i) for i in range(2))
    return xs


@program(make=lambda: [{}, collections.deque(maxlen=3), set()])
def other_containers_grow(x, many):
    d, q, s = many
    d.update((i, len(d)) for i in range(3))
    d |= ((i, len(d)) for i in range(5))
    q.extend(len(q) for _ in range(5))
    q.extendleft(q[0] for _ in range(2))
    return dict(zip("ab", (len(d) for _ in range(3))))


@program(make=dict)
def pairs_before_a_wrong_one_are_kept(x, d):
    out = []
    for pairs in ([(1, 2), (3,)], [(4, 5), 6], [(7, 8), "abc"]):
        try:
            d.update(pairs)
        except (ValueError, TypeError) as e:
            out.append(repr(e))
    return out


def each_value_is_used_before_the_next_is_made(x, notes):
    def made(n):
        for i in range(n):
            notes.append(i)
            yield Keyed(notes, i)

    sizes = [len(set(made(2))), len(dict.fromkeys(made(2))), len({*made(2)}), len({(k, 1) for k in made(2)})]
    least = min(made(3), key=lambda k: notes.append(("key", k.n)) or -k.n)
    return sizes, least.n, max((notes.append(i) or i for i in range(2)), key=lambda v: notes.append(("key", v)) or v)


test_programs = program.test()


def test_a_hash_that_is_seen_is_asked_by_plain_python():
    mine, theirs = [], []
    want = each_value_is_used_before_the_next_is_made(X, mine)
    compiled = framesmith.compile(each_value_is_used_before_the_next_is_made, backend="eager")
    with torch.no_grad():
        for _ in range(2):
            theirs.clear()
            assert compiled(X, theirs) == want
            assert theirs == mine
