"""Results of kernels of tiles in the memory of what dies with them."""

import pytest
import torch

from framesmith.loops.ir import Extern, Launch
from framesmith.loops.product import MatrixProduct
from framesmith.loops.verify import verify
from tests.codegen_triton.products import program
from tests.gpu.fakes import recorded, scheduled


def over_one_another(fn, *sizes):
    """Of each launch of `fn`'s program on inputs of these sizes: the places of arguments that are read, and written as
    well."""
    made = scheduled(recorded(fn, *[torch.empty(size, device="meta") for size in sizes])[0])
    verify(made)
    found = []
    for step in made.steps:
        if type(step) is Launch:
            written = {n for n, p in zip(step.args, step.kernel.params) if p.mode == "w"}
            found.append([k for k, (n, p) in enumerate(zip(step.args, step.kernel.params)) if p.mode == "r"
                          and n in written])
    return found


def attention(q, k, v, after):
    return torch.bmm(after(torch.bmm(q, k)), v)


SIZES = (4, 64, 32), (4, 32, 64), (4, 64, 32)


@pytest.mark.parametrize("after", [lambda s: torch.softmax(s, -1), lambda s: s.exp(), lambda s: s.cumsum(-1)])
def test_what_is_computed_place_by_place_lies_where_it_was_read(after):
    assert any(over_one_another(lambda q, k, v: attention(q, k, v, after), *SIZES))


@pytest.mark.parametrize("after", [
    lambda s: torch.relu(s.transpose(1, 2)),  # an element is read by the program of another
    lambda s: torch.relu(s + s.transpose(1, 2)),
    lambda s: torch.relu(s.flip(-1)),
    lambda s: torch.relu(s - s.amax((1, 2), keepdim=True)).cumsum(1),
])  # fmt: skip
def test_what_others_read_stays(after):
    assert not any(over_one_another(lambda q, k, v: attention(q, k, v, after), *SIZES)[:1])


def test_a_number_of_a_row_stays():
    """Threads that share a row have its number each: one might still read it when another has written."""
    def fn(q, k, one):
        return torch.bmm((torch.bmm(q, one) + torch.bmm(q, k).sum(-1, keepdim=True)).mT, q)

    assert over_one_another(fn, (4, 64, 32), (4, 32, 64), (4, 32, 1)) == [[]]


def test_what_is_used_again_stays():
    def fn(q, k, v):
        scores = torch.bmm(q, k)
        return torch.bmm(scores.exp(), v) + torch.bmm(scores, v)

    assert not any(over_one_another(fn, *SIZES))


def test_a_result_of_the_program_has_memory_of_its_own():
    assert not any(over_one_another(lambda q, k: torch.softmax(torch.bmm(q, k), -1), *SIZES[:2]))


def test_an_operator_is_given_the_shape_that_it_was_promised():
    """What lay there first, where a result lay that only kernels look at, may have another."""
    def fn(a, b, c):
        weighed = torch.softmax(torch.mm(a, b).view(2, 64, 64), -1)
        return torch.bmm(weighed * weighed.sum(1, keepdim=True), c)

    made = scheduled(recorded(fn, *[torch.empty(size, device="meta")
                                    for size in ((128, 32), (32, 64), (2, 64, 16))])[0])
    (product,) = [step for step in made.steps if type(step) is Extern and step.target is torch.ops.aten.bmm.default]
    assert [len(made.buffers[arg.name].size) for arg in product.args] == [3, 3]


def test_what_a_product_is_added_to_is_where_the_sum_lies():
    """As in gradients of a weight that is used over and over."""
    first, second, _ = [step for step in program("sum of products").steps if type(step) is Launch]
    assert type(second.kernel.body[-1]) is MatrixProduct
    assert first.args[-1] in second.args[:-1] and second.args[-1] == first.args[-1]


def test_an_operand_of_a_product_stays():
    """Others read its rows, though each of its elements is where a result would be."""
    for step in program("squares").steps:
        if type(step) is Launch:
            assert step.args[-1] not in step.args[:-1]
