"""What CPython's own tests found about itertools: its objects cross breaks as what they are, and refuse what they
refuse."""

import itertools
import pickle

import framesmith
from tests.capture.suite import said, twice
from tests.programs import Programs

program = Programs(twice)


def small(x):
    return x < 2


@program
def types_across_a_break():
    its = [itertools.accumulate([1, 2, 3], initial=5), itertools.compress("abc", [1, 0, 1]), itertools.cycle("ab"),
           itertools.dropwhile(small, [1, 2, 3]), itertools.takewhile(small, [1, 2, 3]),
           itertools.filterfalse(None, [0, 1]),
           itertools.starmap(pow, [(2, 3)]), itertools.pairwise("abc"), itertools.zip_longest("ab", "c", fillvalue=9),
           itertools.chain("a", "b"), itertools.chain.from_iterable(["ab"]), itertools.count(3),
           itertools.islice("abc", 1)]
    before = [type(it).__name__ for it in its]
    framesmith.graph_break()
    return before, [type(it).__name__ for it in its], [next(it) for it in its], repr(itertools.count(2))


@program
def in_the_middle():
    total, groups = itertools.accumulate([1, 2, 3]), itertools.groupby("aabb")
    next(total)
    key, group = next(groups)
    one, other = itertools.tee([1, 2, 3])
    next(one)
    framesmith.graph_break()
    return list(total), key, list(group), type(group).__name__, list(one), list(other), type(one).__name__


@program
def pickled():
    return [list(pickle.loads(pickle.dumps(it))) for it in (itertools.accumulate([1, 2]), itertools.chain("ab", "c"))]


@program
def refused():
    return said(itertools.accumulate, lambda: itertools.accumulate([1], 2, 3, 4), lambda: itertools.accumulate(5),
                itertools.cycle,
                lambda: itertools.cycle(5), lambda: itertools.pairwise(None), lambda: itertools.starmap(10),
                lambda: itertools.islice("a", "b"), lambda: itertools.count("a"), lambda: itertools.count(1, 2, 3),
                lambda: itertools.zip_longest(5), lambda: itertools.chain(5), lambda: list(itertools.chain(5)),
                lambda: itertools.groupby(None), lambda: itertools.groupby("a", bad=1),
                lambda: itertools.islice([1], -1),
                of=lambda it: type(it).__name__)


class Odd:
    """Equal by a number, and says what it was compared with."""

    def __init__(self, number, log):
        self.number = number
        self.log = log

    def __eq__(self, other):
        self.log.append((self.number, other.number))
        return self.number == other.number

    __hash__ = None


def failing(error):
    def fails(v):
        if v == 2:
            raise error
        return v

    return fails


@program
def what_functions_raise_in_iterators():
    goes_on = map(failing(ValueError("x")), [1, 2, 3])
    out = [next(goes_on)]
    try:
        next(goes_on)
    except ValueError as e:
        out.append(str(e))
    try:
        list(itertools.starmap(pow, [1]))
    except TypeError as e:
        out.append(str(e))
    ends = [list(map(failing(StopIteration()), [1, 2, 3])), list(filter(failing(StopIteration()), [1, 2, 3]))]
    return out, list(goes_on), ends


@program
def keys_of_groups_are_compared_as_often():
    log = []
    groups = itertools.groupby([Odd(1, log), Odd(1, log), Odd(2, log)])
    return [(key.number, len(list(group))) for key, group in groups], log


@program
def used():
    return (list(itertools.accumulate([1, 2, 3])), list(itertools.zip_longest("ab", "c")),
            list(itertools.islice(itertools.count(2, 3), 3)),
            [(k, list(g)) for k, g in itertools.groupby("aabbc")], list(itertools.islice(itertools.cycle("ab"), 5)),
            [list(one) for one in itertools.tee("ab", 3)])


test_itertools = program.test()
