"""The pattern language: what matches, what is bound, what takes its place."""

import operator

import pytest
import torch

from framesmith.graph.interpreter import run
from framesmith.graph.patterns import Operator, Through, arguments, match, p, rewrite, tensors, values
from tests.fake.harness import record

aten = torch.ops.aten
x, y, z = tensors("x y z")
scale, dtype, window = values("scale dtype window")
X, Y = torch.randn(4, 4), torch.randn(4, 4)


def found(pattern, fn, *inputs):
    """The match at the last node of the graph of `fn`, and the placeholders."""
    graph, _ = record(fn, list(inputs or (X, Y)))
    *nodes, _ = graph.nodes
    return match(pattern, nodes[-1]), nodes


def test_a_match_binds_variables_and_parts_and_knows_its_nodes():
    product = p.mm(x, y)
    m, (a, b, inner, root) = found(p.relu(product), lambda a, b: torch.relu(a.mm(b)))
    assert m[x, y] == (a, b) and m[product] is inner and m.root is root and list(m.nodes) == [root, inner]


def test_what_differs_does_not_match():
    assert not found(p.relu(p.mm(x, y)), lambda a, b: torch.relu(a @ b + 1))[0]
    assert not found(p.relu(p.mm(x, y)), lambda a, b: torch.sigmoid(a.mm(b)))[0]
    assert not match(p.relu(x), None) and not match(p.relu(x), 1)


@pytest.mark.parametrize("pattern", [x * 2.0 + y, 2.0 * x + y, y + x * 2.0])
@pytest.mark.parametrize("fn", [lambda a, b: a * 2.0 + b, lambda a, b: b + a * 2.0])
def test_operands_of_sums_and_products_may_be_swapped(pattern, fn):
    m, (a, b, *_) = found(pattern, fn)
    assert m[x, y] == (a, b)


def test_operands_of_differences_may_not():
    assert found(p.neg(x) - y, lambda a, b: -a - b)[0]
    assert not found(p.neg(x) - y, lambda a, b: b - -a)[0]


def test_a_choice_is_taken_back_where_a_later_part_wants_the_other():
    m, (a, b, *_) = found((x + y) * p.neg(y), lambda a, b: (a + b) * -a)
    assert m[x, y] == (b, a)


def test_what_is_written_twice_is_one_value():
    gate = p.sigmoid(x)
    assert found(x * gate, lambda a, b: torch.sigmoid(a) * a)[0]
    assert not found(x * gate, lambda a, b: torch.sigmoid(a) * b)[0]
    assert found(gate + gate, lambda a, b: (s := torch.sigmoid(a)) + s)[0]
    assert not found(gate + gate, lambda a, b: torch.sigmoid(a) + torch.sigmoid(b))[0]


def test_what_is_left_out_has_its_default():
    assert found(x + y, lambda a, b: torch.add(a, b, alpha=1))[0]
    assert not found(x + y, lambda a, b: torch.add(a, b, alpha=2))[0]
    assert found(p.add.Tensor(x, y, alpha=2), lambda a, b: torch.add(a, b, alpha=2))[0]
    assert found(p.add.Tensor(x, y, ...), lambda a, b: torch.add(a, b, alpha=2))[0]
    assert not found(p.mm(x, y), lambda a, b: torch.mm(a, b, out_dtype=torch.float32), X.bfloat16(), Y.bfloat16())[0]


def test_the_rest_of_the_arguments_with_defaults():
    image, kernel = torch.randn(1, 2, 6, 6), torch.randn(2, 2, 3, 3)
    m, _ = found(p.conv2d(x, y, None, *window), lambda a, b: torch.conv2d(a, b, stride=2), image, kernel)
    assert [*map(list, m[window][:3])] == [[2, 2], [0, 0], [1, 1]] and m[window][3] == 1
    assert list(arguments(m.root)[2:]) == [None, *m[window]]
    assert not found(p.conv2d(x, y, z, *window), lambda a, b: torch.conv2d(a, b), image, kernel)[0]
    assert found(p.conv2d(x, y, ..., ..., ..., [1, 1]), lambda a, b: torch.conv2d(a, b, None, 2), image, kernel)[0]


def test_overloads():
    def fn(a, b):
        return torch.softmax(a, -1)

    assert found(p.softmax(x, -1), fn)[0] and found(p.softmax.int(x, -1), fn)[0]
    assert not found(p._softmax.default(x, -1, ...), fn)[0]
    assert aten.relu_.default not in p.relu_.targets and aten.relu.out not in p.relu.targets
    with pytest.raises(AttributeError):
        _ = p.relu.Tensor


def test_one_of_several_operators_or_patterns():
    halves = (p.relu | p.sigmoid)(x * scale | x / scale)
    assert found(halves, lambda a, b: torch.relu(a / 3))[0][scale] == 3
    assert found(halves, lambda a, b: torch.sigmoid(a * 3))[0][scale] == 3
    assert not found(halves, lambda a, b: torch.tanh(a * 3))[0]


def test_readers_outside_of_the_match():
    def fn(a):
        inner = torch.neg(a)
        return torch.exp(inner), torch.relu(inner)

    graph, _ = record(fn, [X])
    root = next(n for n in graph.nodes if n.target is aten.relu.default)
    assert not match(p.relu(p.neg(x)), root) and match(p.relu(p.neg(x).shared), root)
    graph, _ = record(lambda a: (s := torch.neg(a)) * torch.exp(s), [X])
    root = next(n for n in graph.nodes if n.target is aten.mul.Tensor)
    assert match(p.neg(x) * p.exp(p.neg(x)), root)


def test_seen_through_views_and_casts():
    views = p.view | p.t
    seen = Through(views.targets, p.mm(x, y))
    m, nodes = found(p.relu(seen), lambda a, b: torch.relu(a.mm(b).view(2, 8).t()))
    assert [n.target for n in m[seen]] == [aten.t.default, aten.view.default] and len(m.nodes) == 4
    assert found(p.relu(seen), lambda a, b: torch.relu(a.mm(b)))[0][seen] == ()
    assert not found(p.relu(seen), lambda a, b: torch.relu(a.mm(b).exp()))[0]
    square = seen.where(lambda n: n.meta["val"].shape[0] == 4)
    assert not found(p.relu(square), lambda a, b: torch.relu(a.mm(b).view(2, 8).t()))[0]
    assert found(p.relu(square), lambda a, b: torch.relu(a.mm(b).t()))[0]


def test_conditions():
    half = p.mm(x, y).where(lambda n: n.meta["val"].dtype is torch.bfloat16)
    assert found(half, torch.mm, X.bfloat16(), Y.bfloat16())[0] and not found(half, torch.mm)[0]
    cast = p._to_copy(x, dtype=dtype.where(lambda t: t.is_floating_point))
    assert found(cast, lambda a, b: a.double())[0] and not found(cast, lambda a, b: a.int())[0]


def test_rewriting():
    graph, _ = record(lambda a, b: (a.neg().neg() + b, torch.relu(b.neg().neg().neg())), [X, Y])
    assert rewrite(graph, {p.neg(-x): x}) == 2
    graph.lint()
    assert [n.target for n in graph.nodes if n.op == "call_function"] == [aten.add.Tensor, aten.neg.default,
                                                                         aten.relu.default]
    for got, want in zip(run(graph, [X, Y]), (X + Y, torch.relu(-Y)), strict=True):
        assert torch.equal(got, want)


def test_a_replacement_may_refuse_and_the_next_is_tried():
    def doubled(m, *context):
        assert context == ("context",)
        return None if m[x].op != "call_function" else m.graph.call_function(aten.mul.Tensor, (m[x], m[y]))

    graph, _ = record(lambda a, b: (a + torch.exp(b), a + b, a - b), [X, Y])
    rules = {x + y: doubled, p.sub.Tensor(x, y): lambda m, _: m.graph.call_function(aten.add.Tensor, m[y, x])}
    assert rewrite(graph, rules, "context") == 2
    graph.lint()
    assert all("val" in n.meta for n in graph.nodes if n.op == "call_function")
    for got, want in zip(run(graph, [X, Y]), (X * Y.exp(), X + Y, X + Y), strict=True):
        assert torch.equal(got, want)


def test_operators_of_no_library():
    graph, _ = record(lambda a: torch.topk(a, 2)[1], [X])
    item = next(n for n in graph.nodes if n.target is operator.getitem)
    assert match(Operator(operator.getitem)(p.topk(x, ..., ...), 1), item)
    assert not match(Operator(operator.getitem)(p.topk(x, ..., ...), 0), item)
    assert not match(Operator(operator.getitem)(x), item)
