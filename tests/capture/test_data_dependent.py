"""Sizes and integers that the graph itself computes of data: one graph, with eager's results for 0, 1 and many
elements, and a break where a question about them cannot be decided."""

import pytest
import torch

import framesmith


@pytest.fixture(autouse=True)
def no_variants_of_other_tests():
    """Functions of one code object share variants."""
    framesmith.reset()


def alike(got, want):
    if isinstance(want, torch.Tensor):
        torch.testing.assert_close(got, want, equal_nan=True)
        assert not want.numel() or got.stride() == want.stride()
    elif isinstance(want, tuple | list):
        assert type(got) is type(want) and len(got) == len(want)
        for g, w in zip(got, want, strict=True):
            alike(g, w)
    else:
        assert type(got) is type(want) and got == want


ROW = torch.randn(4)
ONE_GRAPH = {
    "masked": lambda x, p: (x[x > p] * 2 + 1).relu(),
    "summed": lambda x, p: ((x[x > p] * 2 + 1).sum(), x[x[:, 0] > p].sum(0)),
    "places": lambda x, p: ((x > p).nonzero() + 1, torch.argwhere(x > p)[:, 0] * 2, *torch.where(x > p)),
    "rows": lambda x, p: (x[x[:, 0] > p] * 2 + ROW, x[:, x[0] > p] + 1, x.t()[x[0] > p] - 1),
    "selected": lambda x, p: (x.masked_select(x > p).exp(), torch.masked_select(x, x[0] > p)),
    "sizes that leave": lambda x, p: ((y := x[x > p]).shape[0], y.numel() * 2, y.shape, len(y), y + 1),
    "sizes in arithmetic": lambda x, p: ((y := x[x > p]).sum() / y.shape[0], y * y.numel()),
    "made of the size": lambda x, p: ((n := x[x > p].shape[0]), torch.arange(n), torch.zeros(n, 2) + x[0, 0]),
    "two masks": lambda x, p: x[x > p].sum() + x[x < p / 2].sum(),
    "masks of masks": lambda x, p: ((y := x[x[:, 0] > p])[y[:, 1] > p] * 3, y),
    "views": lambda x, p: (x[x > p].view(-1, 1) + ROW, x[x[:, 0] > p].reshape(-1, 2, 2).transpose(0, 1) * 2),
    "views that leave": lambda x, p: ((y := x[x[:, 0] > p] * 2), y.t(), y[:, 1:], y.view(-1, 2)),
    "products": lambda x, p: (x[x[:, 0] > p] @ torch.ones(4, 3), torch.nn.functional.linear(x[x[:, 0] > p], x)),
    "joined": lambda x, p: torch.cat([x[x[:, 0] > p], x[x[:, 1] > p] * 2, x]),
    "pairs": lambda x, p: ((y := x[x[:, 0] > p])[:, None] - y[None]).abs().sum(-1),
    "put back": lambda x, p: torch.zeros(x.shape[0]).index_add(0, (i := (x[:, 0] > p).nonzero()[:, 0]), x[i, 1]),
    "scans": lambda x, p: (x[x > p].cumsum(0), x[x[:, 0] > p].softmax(-1), x[x > p].sort().values),
    "least and greatest": lambda x, p: (x[x > p].new_zeros(min(3, (n := len(x[x > p]))), 2) + ROW[0], max(n, 5, n + 1)),
    "the rest of a shape": lambda x, p: x[x[:, 0] > p].reshape(len(x[x[:, 0] > p]), 2, 2).sum(1),
    "attention": lambda x, p: torch.nn.functional.scaled_dot_product_attention(
        *[(y := x[x[:, 0] > p].view(-1, 1, 2, 2))] * 3, attn_mask=torch.ones(y.shape[0], 1, 2, 2, dtype=torch.bool)),
    "branches by range": lambda x, p: x[x > p] + 1 if x[x > p].shape[0] >= 0 else x,
    "padded to the longest": lambda x, p: [
        torch.nn.utils.rnn.pad_sequence([r[r > p] for r in x], *how)
        for how in ((), (True, -1.0), (True, 0.5, "left"))],
    "padded by hand": lambda x, p: torch.stack([
        torch.nn.functional.pad(r[r > p], (0, max(len(q[q > p]) for q in x) - len(r[r > p]))) for r in x]),
}


@pytest.mark.parametrize("name", ONE_GRAPH)
def test_sizes_of_data_are_symbols_of_one_graph(name, captures):
    program = ONE_GRAPH[name]
    compiled = framesmith.compile(program, fullgraph=True)
    x = torch.rand(6, 4)
    for p in (0.5, 2.0, -1.0, x[:, 0].max().item() - 1e-6, 0.5):
        alike(compiled(x, torch.tensor(p)), program(x, torch.tensor(p)))
    assert len(captures) == 1


def test_a_size_that_operators_require(captures):
    """Eager's error where it is another."""
    def program(x, p):
        y = x[:, :(x[0] > p).sum()]
        return (y @ torch.ones(4, 3), y.mm(torch.ones(4, 2)), torch.nn.functional.linear(y, x), y + ROW,
                torch.nn.functional.layer_norm(y, (4,)))

    compiled = framesmith.compile(program, fullgraph=True)
    x = torch.rand(6, 4)
    alike(compiled(x, torch.tensor(-1.0)), program(x, torch.tensor(-1.0)))
    for run in (program, compiled):
        with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
            run(x, x[0].max() - 1e-6)
    alike(compiled(x, torch.tensor(-2.0)), program(x, torch.tensor(-2.0)))
    assert len(captures) == 1


def test_rows_of_lengths_in_a_tensor_have_gradients(captures):
    def program(x, lengths):
        rows = [torch.tanh(x[i, :lengths[i]]) * i for i in range(3)]
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).sum(1)

    compiled = framesmith.compile(program, fullgraph=True)
    for lengths in ([3, 5, 70], [1, 1, 1], [9, 0, 4], [80, 80, 80]):
        lengths = torch.tensor([*lengths, *[0] * 70])
        leaves = [torch.linspace(-2, 2, 240).reshape(3, 80).requires_grad_() for _ in range(2)]
        results = [run(x, lengths) for run, x in zip((compiled, program), leaves, strict=True)]
        for y in results:
            y.square().sum().backward()
        alike(results[0], results[1])
        alike(leaves[0].grad, leaves[1].grad)
    assert len(captures) == 1


def test_integers_of_different_variables_of_a_loop_are_different():
    def program(x, a, b):
        total = x.sum() * 0
        while total < 30:
            total = total + x[:a].sum() + 2 * x[:b].sum() + 1
            a, b = a + 1, b + 2
        return total, a, b

    compiled = framesmith.compile(program, fullgraph=True)
    for k in (1, 2, 5):
        arguments = torch.ones(200), torch.tensor(k), torch.tensor(0)
        alike(compiled(*arguments), program(*arguments))


def test_a_size_of_at_most_one_that_is_zero(captures):
    """Nothing is read for a loop without rounds."""
    def program(x, p):
        y = x[:, (x[0, :, 0] > p).nonzero()[:, 0]]
        best = y[..., 0].topk(y.shape[1], dim=-1).indices[:, None].expand(-1, 12, -1)
        return y[torch.arange(2)[:, None, None], best].reshape(2, 12, 16 * y.shape[1])

    compiled = framesmith.compile(program, fullgraph=True)
    x = torch.randn(2, 1, 16)
    for p in (-9.0, 9.0, -9.0):
        alike(compiled(x, torch.tensor(p)), program(x, torch.tensor(p)))
    assert len(captures) == 1


BREAKS = {
    "branches": lambda x, p: x[x > p] + 1 if x[x > p].shape[0] > 3 else x * 2,
    "squeezed": lambda x, p: (x[x > p] + 1).squeeze(),
    "broadcast": lambda x, p: x[x > p][:, None] + x[0] if x[x > p].numel() != 4 else x[x > p] + x[0],
    "largest": lambda x, p: x[x > p].amax() if x[x > p].numel() else x,
    "loops": lambda x, p: [v * 2 for v in x[x > p]],
    "text": lambda x, p: (x[x > p] * 2, f"{x[x > p].shape[0]} found"),
    "numbers": lambda x, p: (x * (n := len(x[x > p])) ** 0.5, x * (n / 2), float(n), divmod(n, 3), n == 3, bool(n)),
    "containers": lambda x, p: (x + 1, {len(x[x > p]): 1}, [0] * len(x[x > p]), list(range(25))[len(x[x > p])]),
    "ends": lambda x, p: (x.flatten()[-len(x[x > p]):], x.flatten()[: min(len(x[x > p]), 3)]),
    "parts": lambda x, p: (x[x > p].chunk(2), x[x > p].split(5)),
    "copied": lambda x, p: (torch.tensor(len(x[x > p])), (x[x > p] * 2).tolist()),
    "shapes": lambda x, p: (x[x > p].is_contiguous(), x[x > p].shape == x.shape, (x[x > p] + 1)[:, None].squeeze(1)),
    "data": lambda x, p: x if (x[x > p] > 0.9).any() else x + 1,
}


@pytest.mark.filterwarnings("ignore:framesmith")
@pytest.mark.parametrize("name", BREAKS)
def test_what_no_range_decides_is_a_break(name):
    program = BREAKS[name]
    compiled = framesmith.compile(program)
    x = torch.rand(6, 4)
    for p in (0.5, 2.0, -1.0, x.max().item() - 1e-6, 0.9, 0.5):
        alike(compiled(x, torch.tensor(p)), program(x, torch.tensor(p)))


def count(x, p, most):
    """How many are larger, as a number that the program vouches for."""
    n = (x > p).sum().item()
    torch._check(n >= 0)
    torch._check(n <= most)
    return n


INTEGERS = {
    "made": lambda x, p: (torch.zeros(n := count(x, p, 24)), torch.arange(n) * 2, torch.full((n, 2), 1.5),
                          x.new_ones(2 * n + 1)),
    "slices": lambda x, p: (x.flatten()[:(n := count(x, p, 24))] * 2, x.flatten()[n:].sum(), x.flatten()[:-1][n:]),
    "narrowed": lambda x, p: x.flatten().narrow(0, 0, count(x, p, 24)).exp(),
    "unchecked": lambda x, p: x.flatten()[:int((x > p).sum())] + 1,
    "arithmetic": lambda x, p: (x * (n := count(x, p, 24)) + n, x[:1].expand(n, 4).sum(0) / 2, n),
    "decided": lambda x, p: x.flatten()[:n] if (n := count(x, p, 24)) <= 24 else x,
    "numbers of elements": lambda x, p: x.flatten().topk(count(x, p, 24)).values,
    "lists": lambda x, p: [y * 2 for y in x.flatten().split(torch.stack([(x > p).sum(), (x <= p).sum()]).tolist())],
    "repeated": lambda x, p: (x.repeat_interleave((x[:, 0] > p).long() * 2, 0) + 1,
                              torch.repeat_interleave((x > p).sum(0))),
    "unique": lambda x, p: ((x * 4 * p.abs()).long().unique() * 2, *(x > p).flatten().unique(return_counts=True)),
    "consecutive": lambda x, p: torch.unique_consecutive((x > p).flatten(), return_inverse=True, return_counts=True),
    "elements": lambda x, p: x.flatten()[count(x, p, 23)] * 2,
    "bounds in a tensor": lambda x, p: ((n := (x > p).sum(1)), x[0, :n[0]] * 2, x[:, n[1]:], x[3:][:n[2], :2].exp()),
    "rows without padding": lambda x, p: torch.cat([x[i, :n] + i for i, n in enumerate((x > p).sum(1).unbind())]),
    "sizes in a tensor": lambda x, p: ((n := (x > p).sum(0)), torch.zeros(n.max(), 4) + x[0], x.repeat(n[1], 1),
                                       x.new_ones((n.sum(), 2)), x[:1].expand(n[2], 4) * 2),
    "shapes in a tensor": lambda x, p: x.flatten()[:2 * (n := (x > p).sum() // 2)].reshape(n, 2).sum(1),
    "padded rows": lambda x, p: padded(x, (x > p).sum(1)),
    "the lesser of a number": lambda x, p: x.flatten()[:min((x > p).sum().item(), 3)] * 2,
    "parts of what was found": lambda x, p: x[x[:, 0] > p].split(
        torch.stack([(x[:2, 0] > p).sum(), (x[2:, 0] > p).sum()]).tolist()),
    "compared with a size": lambda x, p: (x > p).sum() * 2 == x[x > p].numel(),
}


def padded(x, lengths):
    out = x.new_zeros(len(x), lengths.max())
    for i in range(len(x)):
        out[i, :lengths[i]] = x[i, :lengths[i]]
    return out


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_of_data_are_sizes_of_one_graph(name, captures):
    program = INTEGERS[name]
    compiled = framesmith.compile(program, fullgraph=True)
    x = torch.rand(6, 4)
    for p in (0.5, 2.0, x.min().item() + 1e-6, x.max().item() - 1e-6, 0.5):
        alike(compiled(x, torch.tensor(p)), program(x, torch.tensor(p)))
    assert len(captures) == 1


def outside(x, p):
    n = (x > p).sum().item()
    torch._check(n < 20, lambda: f"{n} are too many")
    return x.flatten()[:n] + 1


def test_what_a_program_checks_is_its_own_error():
    compiled = framesmith.compile(outside, fullgraph=True)
    x = torch.rand(6, 4)
    alike(compiled(x, 0.9), outside(x, 0.9))
    for run in (outside, compiled):
        with pytest.raises(RuntimeError, match="24 are too many"):
            run(x, -1.0)
    alike(compiled(x, 0.8), outside(x, 0.8))


@pytest.mark.filterwarnings("ignore:framesmith")
def test_where_what_is_assumed_does_not_hold_plain_python_runs(captures):
    compiled = framesmith.compile(lambda x, k: x[:(x > 0.5).sum().item() - k] + 1)
    x = torch.linspace(0, 1, 8)
    for k in (1, 5, 2, 9):
        alike(compiled(x, k), x[:4 - k] + 1)


TRAINED = {
    "masked": lambda x, w, p: (x[x > p] * 2, x[x > p].exp().sum()),
    "rows": lambda x, w, p: torch.relu(x[x[:, 0] > p] @ w) @ w.t(),
    "put back": lambda x, w, p: torch.zeros(6).index_add(0, (i := (x[:, 0] > p).nonzero()[:, 0]), x[i, 1].exp()),
    "means": lambda x, w, p: (y := x[x > p]).sum() / y.shape[0],
    "the size alone": lambda x, w, p: x.sum() * x[x[:, 0] > p].shape[0],
    "joined": lambda x, w, p: torch.cat([x[x[:, 0] > p], x[x[:, 1] > p] * 2, x]).softmax(0),
    "pairs": lambda x, w, p: ((y := x[x[:, 0] > p])[:, None] - y[None]).pow(2).sum(-1),
    "of what is computed": lambda x, w, p: (h := (x @ w).tanh())[h[:, 0] > p / 2].pow(2),
    "put": lambda x, w, p: torch.index_put(x.tanh(), [*(x > p).nonzero().unbind(1)], x[x > p] * 3),
    "masks that are equal": lambda x, w, p: x[x > p] * x.exp()[x > p],
    "masks of equal rows": lambda x, w, p: x[x[:, 0] > p].softmax(0) @ w * x[x[:, 0] > p].sum(1, keepdim=True),
    "sizes that turn out equal": lambda x, w, p: x[x[:, 0] > p] * x[(x[:, 0] - p) > 0].exp(),
    "scanned": lambda x, w, p: x[x > p].cumsum(0) * 2,
    "written": lambda x, w, p: written(x * 1, p),
}


def written(x, p):
    x[x > p] = x[x > p] * 3
    x[x[:, 0] > p] += 1
    return x


@pytest.mark.parametrize("name", TRAINED)
def test_gradients_go_through_sizes_of_data(name, captures):
    program = TRAINED[name]
    compiled = framesmith.compile(program, fullgraph=True)
    for p in (0.5, 2.0, -1.0, 0.9, 0.5):
        given = [torch.rand(s, requires_grad=True) for s in ((6, 4), (4, 3))]
        same = [x.detach().clone().requires_grad_() for x in given]
        got, want = compiled(*given, torch.tensor(p)), program(*same, torch.tensor(p))
        alike(got, want)
        for results in (got, want):
            sum((y * y).sum() for y in (results if type(results) is tuple else (results,))).backward()
        for x, y in zip(given, same, strict=True):
            alike(x.grad, y.grad)
    assert len(captures) == 1


class Routed(torch.nn.Module):
    """A mixture of experts: each expert computes the tokens that are routed to it, found by `nonzero`."""

    def __init__(self, width=8, experts=4, best=2):
        super().__init__()
        self.gate = torch.nn.Linear(width, experts)
        self.experts = torch.nn.ModuleList([
            torch.nn.Sequential(torch.nn.Linear(width, 2 * width), torch.nn.GELU(), torch.nn.Linear(2 * width, width))
            for _ in range(experts)])
        self.best = best

    def forward(self, x):
        weights, chosen = self.gate(x).softmax(-1).topk(self.best, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            token, place = torch.nonzero(chosen == number, as_tuple=True)
            out.index_add_(0, token, expert(x[token]) * weights[token, place, None])
        return out


def test_tokens_are_routed_to_experts_in_one_graph(captures):
    torch.manual_seed(0)
    model = Routed()
    compiled = framesmith.compile(model, fullgraph=True)
    for bias in (0.0, 100.0, 0.0):  # then one expert has all tokens, and two have none
        with torch.no_grad():
            model.gate.bias[0] = bias
        x = torch.randn(10, 8, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        got, want = compiled(x), model(y)
        torch.testing.assert_close(got, want)
        mine, theirs = (torch.autograd.grad(r.pow(2).sum(), [v, *model.parameters()], allow_unused=True)
                        for r, v in ((got, x), (want, y)))
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(a, b)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
    assert len(captures) == 2


def decoded(boxes, deltas):
    """Boxes as corners, of anchors as corners and their changes."""
    sizes = boxes[:, 2:] - boxes[:, :2]
    centres = boxes[:, :2] + sizes / 2 + deltas[:, :2] * sizes
    half = sizes * deltas[:, 2:].clamp(max=4.0).exp() / 2
    return torch.cat([centres - half, centres + half], 1).clamp(0, 64)


def overlaps(boxes):
    low = torch.maximum(boxes[:, None, :2], boxes[None, :, :2])
    high = torch.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
    common = (high - low).clamp(min=0).prod(-1)
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(-1)
    return common / (areas[:, None] + areas[None] - common + 1e-6)


def suppressed(boxes, scores, most, limit=0.5):
    """Greedy non-maximum suppression: the best box that is left, `most` times, and away with those that it covers."""
    order = scores.argsort(descending=True, stable=True)
    covers = overlaps(boxes[order]) > limit
    left = torch.ones_like(order, dtype=torch.bool)
    kept = torch.zeros_like(left)
    for _ in range(most):
        best = (left.cumsum(0) == 1) & left
        kept = kept | best
        left = left & ~(covers & best[:, None]).any(0) & ~best
    return order[kept]


class Detector(torch.nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.features = torch.nn.Sequential(torch.nn.Conv2d(3, width, 3, 2, 1), torch.nn.ReLU())
        self.scores, self.deltas = torch.nn.Conv2d(width, 1, 1), torch.nn.Conv2d(width, 4, 1)
        ys, xs = torch.meshgrid(torch.arange(4.0), torch.arange(4.0), indexing="ij")
        corners = torch.stack([xs, ys], -1).reshape(-1, 2) * 16
        self.register_buffer("anchors", torch.cat([corners, corners + 24], 1))

    def forward(self, image, threshold):
        found = self.features(image)
        scores = self.scores(found).flatten().sigmoid()
        boxes = decoded(self.anchors, self.deltas(found)[0].permute(1, 2, 0).reshape(-1, 4))
        sure = scores > threshold
        boxes, scores = boxes[sure], scores[sure]
        kept = suppressed(boxes, scores, 5)
        return boxes[kept], scores[kept]


def test_a_detection_head_is_one_graph(captures):
    torch.manual_seed(0)
    model = Detector()
    compiled = framesmith.compile(model, fullgraph=True)
    for threshold in (0.5, 0.0, 0.99, 0.52):
        image = torch.randn(1, 3, 8, 8)
        got, want = compiled(image, torch.tensor(threshold)), model(image, torch.tensor(threshold))
        alike(got, want)
        for a, b in zip(*[torch.autograd.grad((boxes * scores[:, None]).sum(), [*model.parameters()])
                          for boxes, scores in (got, want)], strict=True):
            torch.testing.assert_close(a, b)
    with torch.no_grad():
        alike(compiled(image, torch.tensor(0.5)), model(image, torch.tensor(0.5)))
    assert len(captures) == 2


class Decoder(torch.nn.Module):
    """Beam search: the best continuations of all beams, of which finished ones are taken out."""

    def __init__(self, words=12, width=16):
        super().__init__()
        self.embed, self.out = torch.nn.Embedding(words, width), torch.nn.Linear(width, words)
        self.cell = torch.nn.Linear(2 * width, width)
        self.words = words

    def forward(self, state, beams, steps):
        state, tokens = state[None], torch.zeros(1, 1, dtype=torch.long)
        scores = torch.zeros(1)
        done = []
        for _ in range(steps):
            state = self.cell(torch.cat([self.embed(tokens[:, -1]), state], 1)).tanh()
            total = (scores[:, None] + self.out(state).log_softmax(-1)).flatten()
            best = total.argsort(descending=True, stable=True)[:beams]
            origin, word = best // self.words, best % self.words
            scores, state = total[best], state[origin]
            tokens = torch.cat([tokens[origin], word[:, None]], 1)
            ended = word == 1
            done.append((tokens[ended], scores[ended]))
            tokens, scores, state = tokens[~ended], scores[~ended], state[~ended]
        return tokens, scores, done


def test_beam_search_is_one_graph(captures):
    torch.manual_seed(0)
    model = Decoder()
    compiled = framesmith.compile(model, fullgraph=True)
    for bias in (0.0, 4.0, -9.0):  # all beams may end
        with torch.no_grad():
            model.out.bias[1] = bias
        state = torch.randn(16)
        got, want = compiled(state, 3, 4), model(state, 3, 4)
        alike(got, want)
        sums = [sum(s.sum() for _, s in done) + scores.sum() for _, scores, done in (got, want)]
        for a, b in zip(*[torch.autograd.grad(s, [*model.parameters()]) for s in sums], strict=True):
            torch.testing.assert_close(a, b)
    assert len(captures) == 1


def packed(values, lengths):
    """Means of a ragged batch, from values in one row: each row's, by where it ends."""
    rows = torch.repeat_interleave(torch.arange(lengths.shape[0]), lengths)
    sums = torch.zeros(lengths.shape[0], values.shape[1]).index_add(0, rows, values.tanh())
    centred = values - (sums / lengths.clamp(min=1)[:, None])[rows]
    return centred.exp(), sums


def test_a_ragged_batch_is_one_graph(captures):
    def program(x, mask):
        lengths = mask.sum(1)
        return packed(x[mask], lengths)

    compiled = framesmith.compile(program, fullgraph=True)
    for lengths in ((3, 0, 5), (1, 1, 1), (0, 0, 0), (5, 5, 5)):
        mask = torch.arange(5)[None] < torch.tensor(lengths)[:, None]
        x = torch.randn(3, 5, 4, requires_grad=True)
        got, want = compiled(x, mask), program(x, mask)
        alike(got, want)
        alike(*[torch.autograd.grad(a.sum() + b.pow(2).sum(), x) for a, b in (got, want)])
    assert len(captures) == 1


EMPTY = {
    "largest": lambda x, p: x[x > p].amax() * 2,
    "its place": lambda x, p: x[x > p].argmax(),
    "rows": lambda x, p: x[x[:, 0] > p].max(0).values,
    "more than there are": lambda x, p: x[x > p].topk(2).values,
}


@pytest.mark.parametrize("name", EMPTY)
def test_what_needs_elements_raises_as_in_eager(name, captures):
    program = EMPTY[name]
    compiled = framesmith.compile(program, fullgraph=True)
    x = torch.rand(6, 4)
    for p in (0.5, 0.1, 0.5):
        alike(compiled(x, torch.tensor(p)), program(x, torch.tensor(p)))
    for run in (program, compiled):
        with pytest.raises((RuntimeError, IndexError)):
            run(x, torch.tensor(2.0))
    assert len(captures) == 1


def test_a_branch_on_an_element_that_is_not_there_raises_in_its_line():
    def program(i):
        rows = torch.ones(2)
        if rows[i][-1] > 0:
            rows = rows + 1
        return rows

    compiled = framesmith.compile(program, backend="eager", options={"suppress_errors": False})
    for run in (program, compiled):
        with pytest.raises(IndexError, match="index 2 is out of bounds") as caught:
            run(torch.tensor([2, 0]))
        assert caught.traceback[-1].lineno - program.__code__.co_firstlineno == 1


def test_the_option_leaves_breaks(captures):
    compiled = framesmith.compile(lambda x: x[x > 0.5] * 2, options={"data_symbols": False})
    x = torch.rand(6, 4)
    alike(compiled(x), x[x > 0.5] * 2)
    with pytest.raises(framesmith.exc.Unsupported):
        framesmith.compile(lambda x: x[x > 0.5] + 2, options={"data_symbols": False}, fullgraph=True)(x)
