"""Two versions side by side: which answers, and how the trial ends."""

import asyncio
import time

import numpy as np
import pytest
import torch
from prometheus_client import CollectorRegistry

from framesmith.serve.canary import PROMOTED, ROLLED_BACK, TRIAL, Canary, Trial
from framesmith.serve.metrics import Metrics
from framesmith.serve.service import Options, Service
from framesmith.serve.workers import ThreadWorker
from framesmith.util.errors import PackageError, RequestRefused
from tests.serve.models import changed_encoder, encoder, mixing_rows


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("packages")
    return {make.__name__: (folder / f"{make.__name__}.fsm", make(folder / f"{make.__name__}.fsm", "x86-64"))
            for make in (encoder, changed_encoder, mixing_rows)}


def service(path, function=None):
    """A service of the package; `function` runs the batches in its place."""
    return Service(path, Options(), Metrics(CollectorRegistry()), [ThreadWorker(function)] if function else ())


def eager(model, seconds=0.0):
    def function(inputs):
        time.sleep(seconds)
        with torch.no_grad():
            return [x.numpy() for x in model(*map(torch.from_numpy, inputs)).values()]

    return function


def request(seed):
    ids = np.random.default_rng(seed).integers(0, 50, (1, 6))
    return {"ids": ids, "mask": np.ones_like(ids)}


def tried(stable, candidate, trial, requests=40):
    """The canary after some requests, and the answers."""
    async def main():
        canary = Canary(stable, candidate, trial)
        await canary.start()
        try:
            answers = [await canary.infer(request(seed)) for seed in range(requests)]
            await asyncio.gather(*canary._compared)
            return canary, answers
        finally:
            await canary.stop()

    return asyncio.run(asyncio.wait_for(main(), 60))


def assert_same(model, answers):
    for seed, answer in enumerate(answers):
        with torch.no_grad():
            expected = model(*map(torch.from_numpy, request(seed).values()))
        torch.testing.assert_close(torch.from_numpy(answer["mean"].copy()), expected["mean"])


@pytest.mark.parametrize("move", [False, True], ids=["mirrored", "moved"])
def test_a_package_replaces_eager_after_enough_equal_answers(move, packages):
    path, model = packages["encoder"]
    canary, answers = tried(service(path, eager(model, .002)), service(path), Trial(.5, 10, move))
    assert_same(model, answers)
    assert canary.state == PROMOTED and canary.report()["compared"] == 10
    assert "10 answers are the same" in canary.reason


@pytest.mark.parametrize("move", [False, True], ids=["mirrored", "moved"])
def test_one_changed_weight_is_rolled_back(move, packages):
    path, model = packages["encoder"]
    canary, answers = tried(service(path), service(packages["changed_encoder"][0]), Trial(.25, 10, move))
    assert canary.state == ROLLED_BACK and canary.report()["compared"] == 0
    assert "an answer differs: output hidden is" in canary.reason and "elements differ by more than" in canary.reason
    assert_same(model, answers if not move else answers[:3])
    with torch.no_grad():
        last = model(*map(torch.from_numpy, request(39).values()))["mean"]
    torch.testing.assert_close(torch.from_numpy(answers[39]["mean"].copy()), last)


def test_a_slower_version_is_rolled_back(packages):
    path, model = packages["encoder"]
    canary, _ = tried(service(path), service(path, eager(model, .05)), Trial(1, 5), 10)
    assert canary.state == ROLLED_BACK and "more than 1.25 times as long" in canary.reason


def test_a_version_that_fails_costs_no_answer(packages):
    path, model = packages["encoder"]
    calls = []

    def failing(inputs):
        calls.append(inputs)
        if len(calls) > 5:  # those of the warm-up
            raise RequestRefused(500, "out of order")
        return eager(model)(inputs)

    canary, answers = tried(service(path), service(path, failing), Trial(.5, 10, move=True))
    assert_same(model, answers)
    assert canary.state == ROLLED_BACK
    assert canary.reason == "it refuses a request that the other one answers: out of order"


def test_a_decision_by_hand_holds_from_the_next_request_on(packages):
    path, model = packages["encoder"]
    changed, changed_model = packages["changed_encoder"]

    async def main():
        canary = Canary(service(path), service(changed), Trial(.01))
        await canary.start()
        answers = []
        for state in (TRIAL, PROMOTED, ROLLED_BACK):
            if state != TRIAL:
                canary.decide(state, "by hand")
            answers.append(await canary.infer(request(0)))
        await canary.stop()
        return answers

    before, promoted, back = asyncio.run(main())
    assert_same(model, [before])
    assert_same(changed_model, [promoted])
    assert_same(model, [back])


def test_versions_with_other_interfaces_are_not_compared(packages):
    with pytest.raises(PackageError, match="other inputs, outputs or dimensions"):
        Canary(service(packages["encoder"][0]), service(packages["mixing_rows"][0]), Trial())
