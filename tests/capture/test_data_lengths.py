"""Sizes and lists that branches and loops on data change: greedy non-maximum suppression as users write it, and other
programs, are one graph; a break where the elements of a list are not alike, or are seen in another way."""

import pytest
import torch

import framesmith
from tests.capture.test_branches import alike


@pytest.fixture(autouse=True)
def no_variants_of_other_tests():
    """Functions of one code object share variants."""
    framesmith.reset()


def overlaps(box, boxes):
    low, high = torch.maximum(box[:2], boxes[:, :2]), torch.minimum(box[2:], boxes[:, 2:])
    common = (high - low).clamp(min=0).prod(-1)
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(-1)
    return common / ((box[2:] - box[:2]).prod(-1) + areas - common + 1e-6)


def marked(boxes, scores, limit):
    order, kept = scores.argsort(descending=True, stable=True), torch.zeros_like(scores, dtype=torch.bool)
    while order.numel() > 0:
        best, rest = order[0], order[1:]
        kept[best] = True
        order = rest[overlaps(boxes[best], boxes[rest]) <= limit]
    return kept.nonzero()[:, 0]


def joined(boxes, scores, limit):
    order, kept = scores.argsort(descending=True, stable=True), torch.zeros(0, dtype=torch.long)
    while order.numel() > 0:
        kept = torch.cat([kept, order[:1]])
        order = order[1:][overlaps(boxes[order[0]], boxes[order[1:]]) <= limit]
    return kept


def listed(boxes, scores, limit):
    if boxes.numel() == 0:
        return torch.zeros(0, dtype=torch.long)
    order, keep = scores.argsort(descending=True, stable=True), []
    while order.numel() > 0:
        best = order[0]
        keep.append(best)
        rest = order[1:]
        order = rest[overlaps(boxes[best], boxes[rest]) <= limit]
    return torch.stack(keep)


def with_a_break(boxes, scores, limit):
    order, keep = scores.argsort(descending=True, stable=True), []
    while order.numel() > 0:
        keep.append(order[:1])
        if order.numel() == 1:
            break
        rest = order[1:]
        order = rest[overlaps(boxes[order[0]], boxes[rest]) <= limit]
    return torch.cat(keep) if keep else torch.zeros(0, dtype=torch.long)


def of_numbers(boxes, scores, limit):
    order, keep = scores.argsort(descending=True, stable=True), []
    while len(order) > 0:
        best = order[0].item()
        keep.append(best)
        order = order[1:][overlaps(boxes[best], boxes[order[1:]]) <= limit]
    return torch.tensor(keep, dtype=torch.long)


def going_on(boxes, scores, limit):
    order, keep = scores.argsort(descending=True, stable=True), []
    sorted_boxes, gone = boxes[order], torch.zeros(len(order), dtype=torch.bool)
    for i in range(len(order)):
        if gone[i]:
            continue
        keep.append(order[i])
        gone = gone | (overlaps(sorted_boxes[i], sorted_boxes) > limit)
    return torch.stack(keep) if len(keep) > 0 else torch.zeros(0, dtype=torch.long)


def detect(suppress, anchors, deltas, scores, threshold):
    """Decode boxes, filter by score, suppress: boxes, scores."""
    sizes = anchors[:, 2:] - anchors[:, :2]
    centres = anchors[:, :2] + sizes / 2 + deltas[:, :2] * sizes
    half = sizes * deltas[:, 2:].clamp(max=4.0).exp() / 2
    boxes = torch.cat([centres - half, centres + half], 1)
    sure = scores > threshold
    boxes, scores = boxes[sure], scores[sure]
    kept = suppress(boxes, scores, 0.5)
    return boxes[kept], scores[kept]


@pytest.mark.filterwarnings("error:framesmith")  # that plain Python runs instead
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("suppress", [marked, joined, listed, with_a_break, of_numbers, going_on])
def test_a_detection_head_is_one_graph(suppress, grad, captures):
    head = framesmith.compile(detect, fullgraph=True)
    torch.manual_seed(3)
    corners = torch.rand(24, 2) * 4
    anchors = torch.cat([corners, corners + 1 + torch.rand(24, 2)], 1)
    for least in (0, 12, 23, 24, 22):  # 24, 12, 1, 0 and 2 boxes pass the filter
        deltas, scores = torch.randn(24, 4) / 4, torch.randperm(24) / 24
        threshold = torch.tensor((least - 0.5) / 24)
        results = []
        for run in (head, detect):
            a, b = deltas.clone().requires_grad_(grad), scores.clone().requires_grad_(grad)
            out = run(suppress, anchors, a, b, threshold)
            results.append([*out, *(torch.autograd.grad((out[0] * out[1][:, None]).sum(), [a, b]) if grad else ())])
        alike(*results)
        assert len(results[0][0]) > 0 or least == 24
    assert len(captures) == 1


def test_any_number_of_boxes_is_one_graph(captures):
    suppress = framesmith.compile(listed, fullgraph=True, dynamic=True)
    for n in (9, 4, 30, 5):
        corners = torch.rand(n, 2) * 4
        boxes, scores = torch.cat([corners, corners + 1 + torch.rand(n, 2)], 1), torch.rand(n)
        alike(suppress(boxes, scores, 0.4), listed(boxes, scores, 0.4))
    assert len(captures) == 1


def work_list(x):
    left, total = x, torch.zeros(())
    while left.numel() > 0:
        total = total + left[0]
        left = left[1:][left[1:] > left[0]]
    return total


def two_in_a_round(x):
    y, rows = x[x > 0], []
    while y.numel() > 0:
        rows.append(y.sum())
        rows.append(y.max())
        y = y[y < y.max()]
    return torch.stack(rows) if rows else torch.zeros(0)


def begun_before(x):
    rows = [x, x * 2]
    while x.sum() < 20:
        x = x + 1
        rows.append(x)
    return torch.stack(rows), len(rows)


def sometimes(x):
    rows = []
    while x.sum() < 20:
        x = x + 1
        if x.max() > 2:
            rows.append(x)
            if len(rows) == 3:
                break
    return x, len(rows)


def of_floats(x):
    sums = [0.5]
    while x.sum() < 20:
        x = x + 1
        sums.append(x.sum().item())
        if x.max() > 3:
            sums.append(0.25)
    return torch.tensor(sums), len(sums)


def as_an_index(x):
    places, n = [], 0
    while x.sum() < 20 and n < 4:
        x = x * 1.5 + 1
        if x.min() > 2:
            places.append(n)
        n += 1
    return x[places], len(places)


def in_branches(x):
    rows = []
    if x.sum() > 0:
        rows.append(x * 2)
    if x.max() > 1:
        rows.append(x * 3)
    return torch.cat(rows) if len(rows) > 0 else x


def of_one_length(x):
    pair = [x, x]
    if x.sum() > 0:
        pair[0] = x * 2
    return pair[0] + pair[1], pair


def parts(x):
    y = x[:2] if x.sum() > 0 else x * 2
    z = x[x > 0]
    if z.numel() > 2:
        z = z[:2]
    return y.sum(), y * 1, z, z.shape[0]


def in_an_object(x):
    held = {"rows": []}
    while x.sum() < 20:
        x = x + 1
        held["rows"].append(x.sum())
    return torch.stack(held["rows"]) if held["rows"] else x


def over_what_a_test_has_found(x):
    places = (x > 0).nonzero()[:, 0]
    return torch.stack([x[i] * 2 for i in places]) if len(places) else x


def groups(x):
    left, found, n = (x > 0).nonzero()[:, 0], torch.zeros(5, dtype=torch.long), 0
    while left.numel() > 0:
        rest = left[1:]
        near = (x[rest] - x[left[0]]).abs() < 1
        members = torch.cat([left[:1], rest[near]]) if near.any() else left[:1]
        found[members] = n + 1
        n += 1
        left = rest[~near]
    return found, n


def until_a_call_fails(x):
    rows = []
    while x.sum() < 20:
        x = x + 1
        rows.append(x)
    return torch.stack(rows)  # eager raises an error if there is none


RANDOM = torch.Generator().manual_seed(0)  # for some numbers 1 - tanh(x)**2 keeps no more than ten bits
INPUTS = [torch.tensor([0.3, -1.0, 0.9, 1.1, -0.2]), torch.rand(5, generator=RANDOM) * 3,
          -torch.rand(5, generator=RANDOM), torch.ones(5) * 9, torch.zeros(5), torch.tensor([3.0, -1.0, 2.0, 0.5, 7.0])]


def outcome(run, x):
    try:
        return run(x.clone())
    except RuntimeError as e:
        return type(e)


@pytest.mark.filterwarnings("ignore:framesmith")
@pytest.mark.parametrize("program", [
    work_list, two_in_a_round, begun_before, sometimes, of_floats, as_an_index, in_branches, of_one_length, parts,
    in_an_object, over_what_a_test_has_found, groups, until_a_call_fails])
def test_lengths_that_data_decides_are_in_one_graph(program, captures):
    compiled = framesmith.compile(program, fullgraph=True)
    for x in INPUTS:
        alike(outcome(compiled, x), outcome(program, x))
    assert len(captures) == 1


def aliased(x):
    row, rows = torch.zeros(2), []
    while x.sum() < 20:
        x = x + 1
        row += 1
        rows.append(row)
    return torch.stack(rows) if rows else torch.zeros(0)


def written_later(x):
    rows, y = [], x
    while x.sum() < 20:
        x = x + 1
        y = x * 2
        rows.append(y)
    y += 100
    return torch.stack(rows) if rows else torch.zeros(0)


def returned(x):
    rows = []
    while x.sum() < 20:
        x = x + 1
        rows.append(x)
    return rows


def taken_away(x):
    rows = [x, x * 2, x * 3]
    while x.sum() < 20:
        x = x + 1
        if len(rows) > 0:
            rows.pop()
    return x, len(rows)


def of_different_shapes(x):
    rows = []
    while x.sum() < 20:
        x = x + 1
        rows.append(x[x > 2])
    return torch.cat(rows) if rows else x


def written_by_a_path(x):
    row, rows = torch.zeros(5), []
    if x.sum() > 0:
        row.add_(x)
        rows.append(row)
        row.mul_(2)
    return row, torch.cat(rows) if len(rows) > 0 else x


def one_in_the_place_of_another(x):
    rows, others = [x], [x, x]
    if x.sum() > 0:
        rows.append(x)
        others = rows
    others.append(x)
    return torch.stack(rows), torch.stack(others)


@pytest.mark.filterwarnings("ignore:framesmith")
@pytest.mark.parametrize("program", [aliased, written_later, returned, taken_away, of_different_shapes,
                                     written_by_a_path, one_in_the_place_of_another])
def test_other_lists_are_breaks(program):
    compiled = framesmith.compile(program)
    for x in INPUTS * 2:
        alike(outcome(compiled, x), outcome(program, x))
    with pytest.raises(framesmith.exc.Unsupported):
        for x in INPUTS:
            framesmith.compile(program, fullgraph=True)(x.clone())


def test_a_path_may_give_an_input_of_another_size(captures):
    def program(x):
        y = x[x > 0.5]
        return y if y.shape[0] > 1 else x

    compiled = framesmith.compile(program, fullgraph=True)
    for x in INPUTS:
        alike(compiled(x), program(x))
        assert (compiled(x) is x) is (program(x) is x)
    assert len(captures) == 1


def halved(x, w):
    y = x * 2
    if x.sum() > 0:
        y = y[:2]
    return y.pow(2).sum(), y.shape[0]


def hard_examples(x, w):
    loss = (x[:, None] * w).pow(2).sum(-1)
    hard = loss > 3
    if hard.any():
        loss = loss[hard]
    return loss.tanh(), loss.mean()


def positives(x, w):
    y = x * w.sum()
    found = y[y > 0]
    if found.numel() == 0:
        found = y[:1]
    return found.exp().mean()


def pruned_twice(x, w):
    y = torch.tanh(x)
    if x.sum() > 0:
        y = y[y > 0].exp()
        if y.numel() > 2:
            y = torch.cat([y, w])
    elif x.max() > 0.5:
        y = w[w > 0] * y.sum()
    return (y * y).sum()


def dropped_rows(x, w):
    y = torch.stack([x, x * 2], 1) @ w[:2]
    if x.sum() > 0:
        y = torch.dropout(y, 0.5, True)[y > 0]
    return y.sum() + w[0]


def pruned(x, w):
    y = x[:, None] * w
    while y.shape[0] > 2:
        y = torch.tanh(y * w)
        y = y[y.sum(-1) < y.sum(-1).max()]
    return y.exp().mean()


def collected(x, w):
    y = x * 1
    out = y
    while y.abs().sum() > 0.5:
        y = torch.tanh(y) * w.sum() / 5
        out = torch.cat([out, y * x])
    return (out * out).sum(), len(out)


def listed_states(x, w):
    y = x * w[0]
    rows = [y]
    while y.sum() < 4:
        y = y.abs() + w.abs().sum()
        rows.append(y.sin())
    return torch.stack(rows).logsumexp(0)


def kept_scores(x, w):
    scores = torch.sigmoid(x * w[0])
    order, kept = scores.argsort(descending=True, stable=True), []
    while order.numel() > 0:
        best = order[0]
        kept.append(scores[best])
        order = order[1:][(x[order[1:]] - x[best]).abs() > 0.7]
    return torch.stack(kept)


def ends_at_the_end(x, w):
    y, count = x * w[0], 0
    while y.numel() > 1:
        y = y[1:] * y[0].cos()
        count += 1
    return y * w[1], count


def dead_rows(x, w):
    y, total = x * w[0], x[0] * w[1]
    while y.numel() > 0:
        total = total + torch.dropout(y.sum(), 0.0, True)
        y = y[y > y.sum() / len(y)]
    return total


@pytest.mark.filterwarnings("error:framesmith")
@pytest.mark.parametrize("program", [halved, hard_examples, positives, pruned_twice, dropped_rows, pruned, collected,
                                     listed_states, kept_scores, ends_at_the_end, dead_rows])
def test_gradients_go_through_sizes_that_data_changes(program, captures):
    compiled = framesmith.compile(program, fullgraph=True)
    for x in INPUTS:
        alike(*[gradients(run, x) for run in (compiled, program)])
    assert len(captures) == 1


def gradients(run, x):
    """Return the results, the gradients of their sum, and the second derivative."""
    torch.manual_seed(0)
    given = [x.clone().requires_grad_(), torch.tensor([1.0, -0.5, 2.0]).requires_grad_()]
    out = run(*given)
    out = out if isinstance(out, tuple) else (out,)
    loss = sum(y.sum() for y in out if isinstance(y, torch.Tensor) and y.requires_grad)
    grads = torch.autograd.grad(loss, given, allow_unused=True, create_graph=True)
    again = torch.autograd.grad(sum((g * g).sum() for g in grads if g is not None), given, allow_unused=True)
    return *out, *grads, *again


@pytest.mark.filterwarnings("ignore:framesmith")
def test_a_mask_in_place_is_one_graph(captures):
    def program(x):
        y = x[x > 0]
        keep = torch.ones(len(y), dtype=torch.bool)
        for i in range(len(y)):
            if not keep[i]:
                continue
            keep[i + 1:] &= (y[i + 1:] - y[i]).abs() >= 0.5
        return y[keep]

    compiled = framesmith.compile(program, fullgraph=True)
    for x in INPUTS:
        alike(compiled(x), program(x))
    assert len(captures) == 1
