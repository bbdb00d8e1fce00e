"""Which convolutions are suspiciously slow with their ReLU, and what is remembered of those that were measured."""

import pytest
import torch

from framesmith.lower.contractions.fuse_conv_relu import Layer
from framesmith.tuning import conv_relu
from framesmith.tuning.conv_relu import Rectified, is_suspicious

HALF = torch.bfloat16
WIDE = Layer((8, 64, 112, 112), (128, 64, 3, 3), HALF, (1, 1), (1, 1), (1, 1))
ADDED = Layer((2, 16, 14, 14), (24, 16, 1, 1), torch.float32, (1, 1), (0, 0), (1, 1), True)
SMALL = Layer((2, 8, 14, 14), (8, 8, 3, 3), HALF, (1, 1), (1, 1), (1, 1))


@pytest.mark.parametrize(
    ("layer", "microseconds", "slow"),
    [(WIDE, 224, False), (WIDE, 3573, True), (SMALL, 40, False), (SMALL, 400, True), (ADDED, 40, False)]
)
def test_suspicion_goes_by_operations_and_bytes(layer, microseconds, slow):
    results = layer.image[0] * layer.weight[0] * layer.image[2] * layer.image[3]
    assert is_suspicious(layer, microseconds, results) is slow


@pytest.mark.gpu
def test_an_answer_is_measured_once(monkeypatch):
    times = iter([(3000.0, 1 << 10), (100.0, 1 << 10), (10.0, 1 << 10)])
    monkeypatch.setattr(conv_relu, "microseconds", lambda call: next(times))
    known = {}
    ask = Rectified(torch.device("cuda", 0), known)
    assert [ask(WIDE), ask(WIDE), ask(SMALL), ask(SMALL)] == [False, False, True, True]
    assert sorted(known.values()) == ["one", "two"] and next(times, None) is None


@pytest.mark.gpu
def test_a_layer_is_run_on_the_device():
    known = {}
    ask = Rectified(torch.device("cuda", 0), known)
    answers = [ask(SMALL), ask(ADDED)]  # which they are, the clock says
    assert len(known) == 2 and set(known.values()) <= {"one", "two"}
    assert [Rectified(torch.device("cuda", 0), known)(layer) for layer in (SMALL, ADDED)] == answers
