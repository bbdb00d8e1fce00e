"""What the builder promises: equal nodes once, no idle nodes, and results kept apart where eager keeps them apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from framesmith.fake import Recorder
from framesmith.fake.handlers import HANDLERS, classify, composite
from framesmith.graph.interpreter import run
from framesmith.prims import Prim, Spec, table
from framesmith.prims.decompose import decompose
from framesmith.prims.metadata import results_of
from framesmith.prims.promotion import result_dtype
from framesmith.prims.registry import rules
from framesmith.util.errors import VerifyError


def decomposed(program: Callable[..., Any], *inputs: torch.Tensor) -> torch.fx.Graph:
    recorder = Recorder()
    fakes = [recorder.input(x, f"x{place}") for place, x in enumerate(inputs)]
    with torch.no_grad(), recorder:
        results = tree_leaves(program(*fakes))
    return decompose(recorder.finish(results), strict=True)


def names(graph: torch.fx.Graph) -> list[str]:
    return [node.target.name if isinstance(node.target, Prim) else str(node.target)
            for node in graph.nodes if node.op == "call_function"]


X = torch.randn(3, 4)


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (lambda x: x.exp() + x.exp(), ["exp", "add"]),
        (lambda x: x.view(12).view(4, 3).view(2, 6).exp(), ["reshape", "exp"]),
        (lambda x: x.t().t().exp(), ["exp"]),
        (lambda x: x.to(torch.float32).contiguous().clone().exp(), ["exp"]),
        (lambda x: x[:].expand(3, 4).exp(), ["exp"]),
        (lambda x: (x.exp(), x.var())[0], ["exp"]),
        (lambda x: x * 0.0 + x * -0.0, ["mul", "mul", "add"]),
        (lambda x: x.clone(), ["copy"]),
        (lambda x: x.view(12).clone().view(4, 3), ["reshape", "copy", "reshape"]),
        (lambda x: (x.exp(), x.exp()), ["exp", "copy"]),
        (lambda x: torch.ops.aten._unsafe_view(x.exp(), [12]), ["exp", "reshape"]),
        (lambda x: x.t().contiguous(), ["permute", "copy"]),
        (lambda x: x.view(4, 3), ["reshape"]),
        (lambda x: torch.nn.functional.dropout(x, 0.5, False).exp(), ["exp"]),
    ],
)
def test_nodes(program: Callable[..., Any], expected: list[str]) -> None:
    assert names(decomposed(program, X)) == expected


def test_outputs_keep_eagers_strides() -> None:
    graph = decomposed(lambda x: (x.t() + 1, x.t().contiguous(), x.t()), X)
    specs = [node.meta["val"] for node in list(graph.nodes)[-1].args[0]]
    assert [spec.stride for spec in specs] == [(1, 4), (3, 1), (1, 4)]


def test_nodes_carry_their_origin() -> None:
    graph = decomposed(lambda x: x.softmax(-1), X)
    assert {node.meta["origin"] for node in graph.nodes if node.op == "call_function"} == {"aten.softmax.int"}
    assert [str(node.meta["val"]) for node in graph.nodes if node.op == "call_function"] == [
        "float32[3, 1]", "float32[3, 4]", "float32[3, 4]", "float32[3, 1]", "float32[3, 4](4, 1)",
    ]  # fmt: skip


def test_writes_to_inputs_stay_last() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2

    graph = decomposed(program, X)
    assert names(graph) == ["add", "mul", "aten.copy_.default"]
    given = X.clone()
    (result,) = run(graph, [given])[:1]
    torch.testing.assert_close(given, X + 1)
    torch.testing.assert_close(result, (X + 1) * 2)


def test_copies_of_results_are_made_before_inputs_are_written() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x.masked_fill(x > 0.5, 1).mT
        x.relu_()
        return y.masked_fill_(y > 0, 1)

    graph = decomposed(program, X)
    assert names(graph)[-2:] == ["copy", "aten.copy_.default"]
    given, expected = X.clone(), X.clone()
    (result,) = run(graph, [given])[:1]
    assert torch.equal(result, program(expected)) and torch.equal(given, expected)


def test_complex_numbers_stay_with_eager() -> None:
    assert names(decomposed(lambda x: torch.view_as_complex(x.view(3, 2, 2)).abs(), X))[1:] == [
        "aten.view_as_complex.default",
        "aten.abs.default",
    ]


DTYPES = [torch.bool, torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32,
          torch.float64, torch.complex32, torch.complex64]


def test_promotion_is_eagers() -> None:
    operands = [torch.zeros(shape, dtype=dtype) for dtype in DTYPES for shape in ((), (2,))] + [True, 2, 2.5, 2j]
    for first in operands:
        for second in operands:
            if isinstance(first, torch.Tensor) or isinstance(second, torch.Tensor):
                assert result_dtype(first, second) is torch.result_type(first, second), (first, second)


def test_every_prim_says_what_it_is() -> None:
    assert all(prim.doc and prim.kind and table[name] is prim for name, prim in table.items())


def test_no_operator_has_a_rule_that_is_recorded_as_its_parts() -> None:
    assert not [func for func in rules if HANDLERS.get(func, classify(func)) is composite]


def test_a_faulty_rule_costs_only_its_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(rules, torch.ops.aten.exp.default, lambda b, x: b.reshape(x, (12,)))
    with pytest.raises(VerifyError, match="aten.exp"):
        decomposed(lambda x: x.exp() + 1, X)
    recorder = Recorder()
    with torch.no_grad(), recorder:
        result = recorder.input(X, "x").exp() + 1
    with pytest.warns(UserWarning, match="aten.exp"):
        assert names(decompose(recorder.finish([result]))) == ["aten.exp.default", "add"]


def test_metadata_needs_no_graph() -> None:
    aten = torch.ops.aten
    for func, args in ((aten.sum.dim_IntList, (X, [1])), (aten.logsumexp.default, (X, [0], True)),
                       (aten.max.dim, (X, -1)), (aten.mean.dim, (X.bfloat16(), [0])), (aten.any.default, (X,))):
        out, real = results_of(func, args, {}), func(*args)
        pairs = zip(out, real, strict=True) if isinstance(out, tuple) else [(out, real)]
        assert all(spec.same(Spec.of(one)) and spec.stride is None for spec, one in pairs), (func, out)
    for func, args in ((aten.repeat.default, (X, [2, 2])), (aten.sum.default, (X.to(torch.complex64),)),
                       (aten.mean.default, (X.long(),))):
        assert results_of(func, args, {}) is NotImplemented


def test_what_is_scattered_into_zeros_and_added_is_scattered_into_the_other() -> None:
    def gradient(x: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.embedding_dense_backward(x, x[:, 0].long().abs() % 3, 3, -1, False)

    for program in (lambda x: gradient(x) + x.exp(), lambda x: x.exp() + gradient(x)):
        graph = decomposed(program, X)
        assert names(graph)[-1] == "index_put" and not {"full", "add"} & set(names(graph))
        torch.testing.assert_close(run(graph, [X])[0], program(X))
    both = decomposed(lambda x: (y := gradient(x), y + 1, y * x + y), X)
    assert names(both).count("add") == 2
