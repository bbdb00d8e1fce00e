"""Random numbers of Python's generators: drawn once, in order, as often as in plain Python."""

import random
import threading

import pytest
import torch

import framesmith
from framesmith.util.errors import Unsupported
from tests.capture import suite

X = torch.tensor([1.0, 2.0, 3.0])
OWN = random.Random(3)
BOX = {}
LOCK = threading.Lock()


class Louder(random.Random):
    def random(self):
        return super().random() + 1


class Counting(random.Random):
    def __init__(self):
        super().__init__(5)
        self.count = 0

    def uniform(self, a, b):
        self.count += 1
        return super().uniform(a, b)


LOUD, COUNTING = Louder(4), Counting()


def of_one_generator(x):
    a, b = random.random(), random.uniform(2, 3)
    return x * 2, b, a, f"{a:.3f} {b}", [random.random() for _ in range(3)]


def of_several(x):
    return x + 1, OWN.random(), LOUD.random(), COUNTING.uniform(1, 2), COUNTING.count, random.random(), OWN.random()


def that_nothing_uses(x, skips=False):
    for i in range(4):
        p = random.uniform(0, 1)
        if skips and p < 0.5:
            continue
        x = x + i
    return x


def without_tensors():
    return random.random() * 2 - 1, random.random() < 2


def kept(x, box=BOX):
    box["last"] = random.random()
    return x.sin(), box["last"] + 1


WHOLE = [of_one_generator, of_several, that_nothing_uses, kept]


def that_decide(x):
    return that_nothing_uses(x, True), random.random()


def with_tensors(x):
    return x * random.random() + random.uniform(1, 2), random.random()


def under_a_lock(x):
    with LOCK:
        a = random.random()
    return x + 1, a


def of_other_kinds(x):
    return x + 1, random.randint(3, 90), random.gauss(0, 1), random.choice("abc"), random.random(), random.sample(
        range(9), 3)


def between_seeds(x):
    a = random.random()
    random.seed(7)
    return x + 1, a, random.random()


def before_an_assertion(x):
    a = random.random()
    if x.max().item() > 2.5:
        raise ValueError("high")
    return x + 1, a


BREAKING = [that_decide, with_tensors, under_a_lock, of_other_kinds, between_seeds, before_an_assertion]


def outcome(fn, seed):
    for n, generator in enumerate((random, OWN, LOUD, COUNTING)):
        generator.seed(seed + n)
    COUNTING.count = 0
    try:
        found = str(fn(X))
    except ValueError as e:
        found = repr(e)
    return found, [g.getstate() for g in (random, OWN, LOUD, COUNTING)]


@pytest.mark.parametrize("fn", WHOLE + BREAKING, ids=lambda fn: fn.__name__)
def test_drawn_as_in_plain_python(fn):
    compiled = framesmith.compile(fn, fullgraph=fn in WHOLE, backend="eager")
    for seed in (1, 2, 2, 3):
        assert outcome(compiled, seed) == outcome(fn, seed)


def test_a_frame_without_tensors():
    compiled = framesmith.compile(without_tensors, backend="eager")
    for seed in range(3):
        random.seed(seed)
        plain = without_tensors(), random.getstate()
        random.seed(seed)
        assert (compiled(), random.getstate()) == plain


def test_what_decides_is_said():
    with pytest.raises(Unsupported, match="a branch on the bool of a random number"):
        framesmith.compile(that_decide, fullgraph=True, backend="eager")(X)


def test_methods_of_numbers_that_vary() -> None:
    def texts(generator):
        return [generator.random().hex() for _ in range(6)]

    fast = suite.kept(texts, standard_library=True, suppress_errors=False)
    for _ in range(2):
        assert fast(random.Random(3)) == texts(random.Random(3))


def test_a_branch_that_every_draw_takes_is_none():
    def layers(x, part):
        for i in range(3):
            if torch.rand([]) < part or not torch.rand(()) >= part:
                continue
            x = x * torch.rand(3) + i
        return x

    for part in (0.0, -1, 0.5, 1.0, 2):
        framesmith.reset()
        compiled = framesmith.compile(layers, fullgraph=True)
        for seed in range(2):
            torch.manual_seed(seed)
            want = layers(X, part), torch.rand(1)
            torch.manual_seed(seed)
            got = compiled(X, part), torch.rand(1)
            torch.testing.assert_close(got, want)


@pytest.mark.parametrize("backend, own", (
    ("eager", None), ("eager", torch.Generator()), ("native", None), ("native", torch.Generator()),
    (lambda graph, examples: graph, None)), ids=("eager", "eager-own", "native", "native-own", "user"))
def test_a_graph_that_fails_has_drawn_nothing(backend, own):
    """Plain Python, which runs instead, draws the numbers and raises."""

    def fn(i):
        return torch.nn.functional.embedding(i, torch.rand(3, 2, generator=own))

    def drawn(call):
        torch.manual_seed(1)
        own.manual_seed(1) if own is not None else None
        with pytest.raises(IndexError):
            call(torch.tensor([5]))
        return torch.rand(2, generator=own)

    compiled = framesmith.compile(fn, backend=backend, options={"suppress_errors": False})
    assert torch.equal(drawn(compiled), drawn(fn))
