"""Slices of tensors that loops read and write at their counters, and at numbers that they count themselves."""

import pytest
import torch

import framesmith
from tests.capture.loops_driver import W, check


@pytest.fixture(autouse=True)
def no_variants_of_other_tests():
    """Functions of one code object share variants."""
    framesmith.reset()


def uses_a_view_after_the_write(x, n):
    out = torch.zeros(n, 3, 4, dtype=torch.double)
    for k in range(n):
        v = out[k]
        out[k] = x[k] @ W
        v = v + 1
    return out, v


def reads_what_it_wrote(x, n):
    out = torch.zeros(n, 3, 4, dtype=torch.double)
    for k in range(n):
        out[k] = x[k] @ W
        y = out[k]
        y = y * 2
        out[k] = y
    return out


def three_rounds_later(x, n):
    out = torch.zeros(n+3, 3, 4, dtype=torch.double)
    for k in range(n):
        out[k+3] = x[k] @ W + out[k]
    return out


def parts_of_slices(x, n):
    out = torch.zeros(n, 3, 4, dtype=torch.double)
    for k in range(n):
        out[k, :, :2] = x[k, :, 2:]
        out[k, :, 2:] = x[k, :, :2] * k
    return out


def adds_to_a_row(x, n):
    out = torch.zeros(n, 3, 4, dtype=torch.double)
    for k in range(n):
        out[k, 0] += x[k, 1]
    return out


def adds_to_slices(x, n):
    out = torch.zeros(n, 3, 4, dtype=torch.double)
    for k in range(n):
        out[k] += x[k]
    return out


def interleaved(x, n):
    out = torch.zeros(2*n, 3, 4, dtype=torch.double)
    for k in range(n):
        out[2*k] = x[k]
        out[2*k+1] = x[k] @ W
    return out


def from_the_end(x, n):
    out = torch.zeros(n, 3, 4, dtype=torch.double)
    for k in range(n):
        out[n - 1 - k] = x[k] @ W
    return out


def last_dimension(x, n):
    out = torch.zeros(3, 4, n, dtype=torch.double)
    for k in range(n):
        out[..., k] = x[k] @ W
    return out


def another_dtype(x, n):
    out = torch.zeros(n, 3, 4)
    for k in range(n):
        out[k] = x[k] @ W
    return out


def numbers(x, n):
    out = torch.zeros(n, 3, 4, dtype=torch.double)
    for k in range(n):
        out[k] = k
        out[k, 1] = x[k].sum()
    return out


def sometimes(x, n):
    out = torch.zeros(n, 3, 4, dtype=torch.double)
    for k in range(n):
        if x[k].sum() > 0:
            out[k] = x[k] @ W
    return out


def in_place_behind_the_write(x, n):
    out = torch.zeros(n, 3, 4, dtype=torch.double)
    for k in range(n):
        out[k] = x[k]
        out[k].mul_(3)
    return out


def changed_behind_the_write(x, n):
    out = torch.zeros(n, 3, 4, dtype=torch.double)
    h = x[0]
    for k in range(n):
        out[k] = h
        h = h @ W
        h.add_(1)
    return out, h


def in_a_closure(x, n):
    out = torch.zeros(n, 3, 4, dtype=torch.double)
    def put(k, v):
        out[k] = v
    for k in range(n):
        put(k, x[k] @ W)
    return out


def counted_by_hand(x, n):
    out = torch.zeros(n, 3, 4, dtype=torch.double)
    i = 0
    for row in x:
        out[i] = row @ W
        i += 1
    return out, i


def nested(x, n):
    out = torch.zeros(n, 3, 4, dtype=torch.double)
    for i in range(n):
        row = torch.zeros(n, 4, dtype=torch.double)
        for j in range(n):
            row[j] = x[i, 0] * x[j, 1] @ W
        out[i] = row.sum(0)
    return out


def transposed(x, n):
    out = torch.zeros(n, 4, 3, dtype=torch.double).transpose(1, 2)
    for k in range(n):
        out[k] = x[k] @ W
    return out, out.view(-1) if False else out.sum()


def several_dtypes(x, n):
    mask = torch.zeros(n, dtype=torch.bool)
    c = torch.zeros(n, dtype=torch.long)
    h = x[0]
    for k in range(n):
        mask[k] = x[k].sum() > 0
        c[k] = k
        h = h @ W
    return mask, c, h


@pytest.mark.filterwarnings("ignore:framesmith")
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("program", [
    uses_a_view_after_the_write, reads_what_it_wrote, three_rounds_later, parts_of_slices, adds_to_a_row,
    adds_to_slices, interleaved, from_the_end, last_dimension, another_dtype, numbers, sometimes,
    in_place_behind_the_write, changed_behind_the_write, in_a_closure, counted_by_hand, nested, transposed,
    several_dtypes])
def test_slices_are_operands_and_results_of_one_graph(program, grad, captures):
    check(program, grad, (4, 5, 7, 9, 3), captures, 3)


def reads_all(x, n):
    out = torch.zeros(n, 3, 4, dtype=torch.double)
    s = 0
    for k in range(n):
        out[k] = x[k] @ W
        s = s + out.sum()
    return out, s


def a_view_from_before(x, n):
    out = torch.zeros(n, 3, 4, dtype=torch.double)
    part = out[1]
    for k in range(n):
        out[k] = x[k] @ W
    out.mul_(2)
    return out, part


def reads_a_view_from_before(x, n):
    out = torch.zeros(n, 3, 4, dtype=torch.double)
    part = out[1]
    s = x[0]
    for k in range(n):
        out[k] = x[k] @ W
        s = s + part
    return out, s


def state_is_a_view(x, n):
    out = torch.zeros(n, 3, 4, dtype=torch.double)
    h = out[0]
    for k in range(n):
        out[k] = x[k] @ W
        h = h + 1
    return out, h


def reads_ahead(x, n):
    out = torch.ones(n+3, 3, 4, dtype=torch.double)
    for k in range(n):
        out[k] = out[k+1] + x[k] + k
    return out


def too_short(x, n):
    out = torch.zeros(n-1, 3, 4, dtype=torch.double)
    for k in range(n):
        out[k] = x[k]
    return out


def two_views(x, n):
    buf = torch.zeros(n, 2, 3, 4, dtype=torch.double)
    a = buf[:, 0]
    b = buf[:, 1]
    for k in range(n):
        a[k] = x[k]
        b[k] = x[k] @ W
    return buf


def a_list_of_slices(x, n):
    out = torch.zeros(n, 3, 4, dtype=torch.double)
    outs = []
    for k in range(n):
        out[k] = x[k] @ W
        outs.append(out[k])
    out.mul_(2)
    return torch.stack(outs), out


def a_list_of_later_slices(x, n):
    out = torch.zeros(n+1, 3, 4, dtype=torch.double)
    outs = []
    for k in range(n):
        outs.append(out[k+1])
        out[k] = x[k] @ W
    return torch.stack(outs), out


def inner_loop(x, n):
    out = torch.zeros(n, 3, 4, dtype=torch.double)
    for k in range(n):
        for row in x:
            out[k] = row * 2 + out[k]
    return out


def two_dimensions(x, n):
    out = torch.zeros(n, n, 4, dtype=torch.double)
    for i in range(n):
        for j in range(n):
            out[i, j] = x[i, 0] * x[j, 1] @ W
    return out


def without_grad(x, n):
    out = torch.zeros(n, 3, 4, dtype=torch.double)
    for k in range(n):
        with torch.no_grad():
            out[k] = x[k] @ W
    return out


def in_place_of_its_operand(x, n):
    out = x * 2
    for k in range(n):
        out[k] = out[k] * 2 + x[k] @ W
    return out


def over_its_rows(x, n):
    out = x * 2
    for k, row in enumerate(out):
        out[k] = row @ W
        row = row + 1
    return out, row


def state_is_a_slice_behind(x, n):
    out = torch.zeros(n, 3, 4, dtype=torch.double)
    for k in range(n):
        out[k] = x[k]
        h = out[k]
    h = h.add_(1)
    return out, h


def state_is_an_earlier_slice(x, n):
    out = torch.zeros(n+1, 3, 4, dtype=torch.double)
    h = out[0]
    for k in range(n):
        h = out[k]
        out[k+1] = h + x[k]
    out.add_(5)
    return out, h


def breaks(x, n):
    out = torch.zeros(n, 3, 4, dtype=torch.double)
    for k in range(n):
        out[k] = x[k]
        if k > 2:
            break
    return out


def of_shared_memory(x, n):
    out = torch.zeros(n, 3, 4, dtype=torch.double)[None].expand(2, n, 3, 4)[0]
    for k in range(n):
        out[k] = x[k] @ W
    return out


def expanded(x, n):
    out = torch.zeros(1, 3, 4, dtype=torch.double).expand(n, 3, 4)
    for k in range(n):
        out[k] = x[k] @ W
    return out


@pytest.mark.filterwarnings("ignore:framesmith")
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("program", [
    reads_all, a_view_from_before, reads_a_view_from_before, state_is_a_view, reads_ahead, too_short, two_views,
    a_list_of_slices, a_list_of_later_slices, inner_loop, two_dimensions, without_grad, in_place_of_its_operand,
    over_its_rows, state_is_a_slice_behind, state_is_an_earlier_slice, breaks, of_shared_memory, expanded])
def test_other_uses_of_what_is_written_are_as_in_eager(program, grad):
    check(program, grad, (4, 5, 7, 3, 2, 1))


def test_two_indices_of_one_round_are_two_numbers():
    """The slices that a round reads are no computations, of which one might be taken for the other."""
    def path_score(scores, tags):
        total = torch.zeros(1)
        for k, row in enumerate(scores):
            total = total + MOVES[tags[k + 1], tags[k]] + row[tags[k + 1]]
        return total

    compiled = framesmith.compile(path_score, dynamic=True)
    for n in (5, 6, 7):
        scores, tags = torch.arange(n * 3.0).view(n, 3), torch.arange(n + 1) * 2 % 3
        assert torch.equal(compiled(scores, tags), path_score(scores, tags))


MOVES = torch.arange(9.0).view(3, 3) ** 2
