"""What CPython's own tests found about state: locks, attributes of functions, the very objects that constants are."""

import copy
import threading
import warnings
from typing import Any

import pytest

from tests.capture.suite import kept


def nested(lock, other):
    with lock:
        first = lock.acquire(False)
        with other, other:
            seen = other._is_owned()
    return first, seen, other._is_owned(), lock.locked()


def takes(lock, other):
    other.acquire()
    return lock.acquire(), lock.locked()


def gives(lock, other):
    lock.release()
    return lock.locked()


def counts(lock, box):
    with lock:
        box.append(lock.locked())
    return lock.locked()


def test_locks():
    fast = kept(nested)
    lock, other = threading.Lock(), threading.RLock()
    for _ in range(3):
        assert fast(lock, other) == nested(lock, other) == (False, True, False, False)
    held, given = kept(takes), kept(gives)
    for _ in range(2):
        assert held(lock, other) == (True, True)
        assert lock.locked() and other._is_owned()
        assert given(lock, other) is False
        assert not lock.locked()
        other.release()
    with pytest.raises(RuntimeError, match="release unlocked lock"):
        given(lock, other)
    box: list[bool] = []
    assert kept(counts)(lock, box) is False
    assert box == [True]


def once():
    if once.first:
        once.first = False
        return "first"
    return "later"


once.first = True  # type: ignore[attr-defined]


def test_an_attribute_of_a_function_is_guarded():
    fast = kept(once)
    assert [fast() for _ in range(3)] == ["first", "later", "later"]


def passes(n, s, x, pair):
    return n, s, x, (n, s), copy.copy(pair)


def test_constants_are_the_very_objects():
    fast = kept(passes)
    for k in range(3):
        n, s, x, pair = 10 ** 5000 + k - k, "".join(["a", " b"]), float("1.5"), (1, [2])
        out = fast(n, s, x, pair)
        assert out[0] is n and out[1] is s and out[2] is x and out[3][1] is s and out[4] is pair


def test_no_warning_of_ours():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kept(passes)(1, "a", 2.0, ()) == (1, "a", 2.0, (1, "a"), ())


class Node:
    def __init__(self, value):
        self.value = value

    def __deepcopy__(self, memo):
        return Node(copy.deepcopy(self.value, memo))


def copies(items):
    new = copy.deepcopy(items)
    loop: list[Any] = []
    loop.append((loop, 1))
    again = copy.deepcopy(loop)
    return new, again[0][0] is again, again is loop


def test_deep_copies():
    fast = kept(copies)
    for _ in range(2):
        shared = [1]
        items = [((1, 2), 3), (shared, shared), Node(shared)]
        new, loops, same = fast(items)
        assert new[0] is items[0]
        assert new[1] is not items[1] and new[1][0] is new[1][1]
        assert new[2].value == [1] and new[2].value is new[1][0] and new[2].value is not shared
        assert loops and not same


def circle_of_contexts():
    a, b, c = KeyError("a"), ValueError("b"), TypeError("c")
    a.__context__, b.__context__ = b, a
    try:
        try:
            raise a
        except KeyError:
            raise c from None
    except TypeError as e:
        return e.__context__ is a, a.__context__ is b, b.__context__ is a


def test_a_circle_of_contexts_ends():
    assert kept(circle_of_contexts)() == circle_of_contexts()


def class_of_an_error(n):
    e = KeyError(n)
    return e.__class__, type(e), e.__class__.__name__


def test_the_class_of_an_error():
    assert kept(class_of_an_error)(3) == class_of_an_error(3)


LONG = "def long(items, x):\n    if items.marked:\n" + "".join(f"        x = x + {i}\n"
                                                               for i in range(300)) + "    return x, items\n"


class Marked:
    @property
    def marked(self):
        return self.items

    def __init__(self, items):
        self.items = bytearray(items)


def test_a_break_at_a_jump_over_much_code():
    space: dict[str, Any] = {}
    exec(LONG, space)
    fast, plain = kept(space["long"]), space["long"]
    for items in (b"", b"a", b""):
        m = Marked(items)
        assert fast(m, 1) == plain(m, 1)
