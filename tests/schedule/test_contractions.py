"""Contractions of the CPU's template as nests, and their epilogues: by the evaluator of the loop IR against eager."""

import pytest
import torch
import torch.nn.functional as F
from torch.fx import GraphModule

from framesmith.graph.freeze import freeze
from framesmith.loops.contract import Contract
from framesmith.loops.evaluate import run_program
from framesmith.loops.ir import Extern, Launch, walk
from framesmith.loops.text import program_text
from framesmith.loops.verify import verify
from framesmith.lower.contractions.geometry import HOST
from framesmith.lower.contractions.pack_linear import choose_contractions, worth_freezing
from framesmith.lower.lower import lower
from framesmith.prims.decompose import decompose
from framesmith.schedule.schedule import schedule
from tests.fake.harness import record


class Own:
    """Chooses the template for each contraction."""

    unit = HOST

    def __call__(self, request):
        return "own"


def compiled(fn, inputs):
    """A program in which each contraction with a weight (all inputs but the first) is the template's, and its inputs,
    the packed weights among them."""
    graph = record(fn, inputs)[0]
    for node in [n for n in graph.nodes if n.op == "placeholder"][1:]:
        node.meta["param"] = True
    frozen = freeze(choose_contractions(graph, Own()), worth_freezing)
    program = schedule(lower(decompose(frozen.main)))
    verify(program)
    constants = GraphModule({}, frozen.constants)(*[inputs[i] for i in frozen.parameters])
    return program, [*[inputs[i] for i in frozen.inputs], *constants]


def contractions(program):
    return [node for step in program.steps if type(step) is Launch for node in walk(step.kernel.body)
            if type(node) is Contract]


def linear(x, w, b):
    return F.gelu(F.linear(x, w, b)) * 2


def convolution(**options):
    return lambda x, w, b: F.relu(F.conv2d(x, w, b, **options)) + 1


def last(*shape):
    return torch.randn(shape).to(memory_format=torch.channels_last)


CASES = {
    "linear": (linear, lambda: (torch.randn(13, 33), torch.randn(100, 33), torch.randn(100))),
    "one row": (linear, lambda: (torch.randn(1, 7), torch.randn(5, 7), torch.randn(5))),
    "convolution": (convolution(stride=2, padding=1), lambda: (last(2, 3, 9, 8), last(16, 3, 3, 3), torch.randn(16))),
    "groups": (convolution(dilation=2, groups=2), lambda: (last(2, 8, 9, 7), last(12, 4, 3, 3), torch.randn(12))),
    "depthwise": (convolution(padding=1, groups=24), lambda: (last(2, 24, 7, 9), last(24, 1, 3, 3), torch.randn(24))),
    "depthwise, steps, dilated": (convolution(stride=(2, 1), padding=(2, 1), dilation=(1, 2), groups=5),
                                  lambda: (last(1, 5, 9, 8), last(5, 1, 5, 3), torch.randn(5))),
}


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_eager(name):
    fn, make = CASES[name]
    torch.manual_seed(0)
    inputs = make()
    program, given = compiled(fn, list(inputs))
    (contraction,) = contractions(program)
    assert (contraction.window is not None) is name.startswith("depthwise")
    [got], want = run_program(program, given), fn(*inputs)
    assert got.shape == want.shape
    torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-5)


def skip(kernel, readers=1):
    """A larger image beside one that was kept at its size, as in a U-Net."""

    def fn(x, kept, down, *last):
        large = F.interpolate(F.conv2d(x, down, stride=4), scale_factor=4, mode="bilinear")
        both = torch.cat([large, F.conv2d(x, kept, padding=1).relu()], 1)
        return sum(F.conv2d(both, w, padding=kernel // 2) for w in last)

    return fn, [last(2, 3, 8, 12), last(8, 3, 3, 3), last(16, 3, 4, 4), *[last(8, 24, kernel, kernel)] * readers]


@pytest.mark.parametrize("kernel, readers", [(1, 1), (3, 1), (1, 2), (3, 2)])
def test_a_join_of_images_is_channels_last_for_what_reads_it(kernel, readers):
    fn, inputs = skip(kernel, readers)
    program, given = compiled(fn, inputs)
    text = program_text(program)
    assert not any(type(step) is Extern for step in program.steps) and "tile" not in text
    [got], want = run_program(program, given), fn(*inputs)
    assert got.shape == want.shape
    torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-5)


def test_pieces_of_a_join_are_stored_where_a_convolution_reads_them():
    program, _ = compiled(*skip(3))
    arena = [tuple(n.const for n in b.size) for b in program.buffers.values() if b.kind == "arena"]
    assert [size for size in arena if 24 in size] == [(2, 10, 14, 24)]  # with its border
