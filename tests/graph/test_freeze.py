"""What depends on parameters alone, or on nothing, and what does not."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from framesmith.fake import Recorder
from framesmith.graph.digest import digest_text, target_name
from framesmith.graph.freeze import freeze, is_input_free, is_parameter_expression
from framesmith.graph.interpreter import run
from framesmith.lower.contractions.geometry import contract
from framesmith.lower.contractions.pack_linear import worth_freezing

aten = torch.ops.aten


def recorded(function, *parameters):
    """The graph of `function(x, *parameters)` with x of four elements."""
    recorder = Recorder()
    x = recorder.input(torch.ones(4), "x")
    given = [recorder.input(p, f"p{i}") for i, p in enumerate(parameters)]
    with torch.no_grad(), recorder:
        out = function(x, *given)
    graph = recorder.finish([out])
    for node in [n for n in graph.nodes if n.op == "placeholder"][1:]:
        node.meta["param"] = True
    return graph


def targets(graph):
    return [n.target for n in graph.nodes if n.op == "call_function"]


def test_work_on_no_input_is_done_once():
    p = torch.arange(4.0)
    graph = recorded(lambda x, p: x + (torch.arange(4) * p).cos() + torch.arange(4).float().exp(), p)
    frozen = freeze(graph, worth_freezing)
    assert frozen is not None
    assert set(targets(frozen.main)) == {aten.add.Tensor}
    constants = run(frozen.constants, [p])
    (actual,) = run(frozen.main, [torch.ones(4), *constants])
    torch.testing.assert_close(actual, torch.ones(4) + (torch.arange(4) * p).cos() + torch.arange(4).float().exp())


def test_cheap_values_stay_in_their_kernels():
    graph = recorded(lambda x: x + torch.arange(4) * 2 + torch.full((4,), 3.0))
    assert freeze(graph, worth_freezing) is None


def test_what_depends_on_a_parameter_that_is_written_is_computed_in_the_call():
    def counts(x, n, w):
        n.add_(1)
        return x * (n * 2).cos() * w.cos()

    frozen = freeze(recorded(counts, torch.zeros(()), torch.ones(4)), worth_freezing)
    assert frozen is not None and frozen.parameters == (2,) and frozen.inputs == (0, 1)
    assert targets(frozen.constants) == [aten.cos.default]


def test_rows_of_a_table_are_looked_up_where_they_are_added():
    table, places = torch.randn(6, 4), torch.tensor([[3, 1, 3]])
    for use, kept in ((lambda x, t, i: x + F.embedding(i.flip(1), t), [aten.flip.default]),
                      (lambda x, t, i: F.embedding(i, t) @ x, None)):
        frozen = freeze(recorded(use, table, places), worth_freezing)
        assert frozen is not None
        assert targets(frozen.constants) == (kept or [aten.embedding.default])
        (actual,) = run(frozen.main, [torch.ones(4), *[p for i, p in ((1, table), (2, places)) if i in frozen.inputs],
                                      *run(frozen.constants,  # fmt: skip
                                           [(torch.ones(4), table, places)[i] for i in frozen.parameters])])
        torch.testing.assert_close(actual, use(torch.ones(4), table, places))


def test_random_numbers_are_drawn_in_each_call():
    graph = recorded(lambda x: x + torch.rand(4).exp())
    drawn = [n for n in graph.nodes if n.target in (aten.rand.default, aten.exp.default)]
    assert len(drawn) == 2
    assert not any(map(is_parameter_expression, drawn))
    assert not any(map(is_input_free, drawn))
    assert freeze(graph, worth_freezing) is None


def test_names_hold_no_address():
    assert target_name(contract) == "contract"
    assert " at 0x" not in digest_text(recorded(lambda x: x.sin()))
    assert target_name(lambda: 0) != target_name(lambda: 0)
