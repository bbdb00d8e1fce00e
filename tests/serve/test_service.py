"""The service without an engine: what is joined, padded, limited and refused."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from prometheus_client import CollectorRegistry
from torch import nn

import framesmith
from framesmith.serve.batcher import Limits
from framesmith.serve.metrics import Metrics
from framesmith.serve.protocol import decode, decode_raw
from framesmith.serve.service import Options, Service
from framesmith.serve.workers import ThreadWorker
from framesmith.util.errors import PackageError, RequestRefused
from tests.serve.models import Counting, encoder, mixing_rows

TARGET = "x86-64"


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """By name: the path of a package, and its model."""
    folder = tmp_path_factory.mktemp("packages")
    return {make.__name__: (folder / f"{make.__name__}.fsm", make(folder / f"{make.__name__}.fsm", TARGET))
            for make in (encoder, mixing_rows)}


def request(rows, length, seed=0):
    torch.manual_seed(seed)
    mask = torch.ones(rows, length, dtype=torch.int64)
    mask[:, length // 2 + 1:] = torch.randint(2, mask[:, length // 2 + 1:].shape)
    return {"ids": torch.randint(50, (rows, length)).numpy(), "mask": mask.numpy()}


def served(path, options, work, workers=()):
    """The result of `work(service, metrics)`, a coroutine, with a service that has been started."""
    registry = CollectorRegistry()

    async def main():
        service = Service(path, options, Metrics(registry), workers)
        await service.start()
        try:
            return await work(service)
        finally:
            await service.stop()

    result = asyncio.run(asyncio.wait_for(main(), 60))
    return result, lambda name, **labels: registry.get_sample_value(f"framesmith_serve_{name}", labels)


def assert_same(model, given, found):
    with torch.no_grad():
        expected = model(*[torch.from_numpy(x) for x in given.values()])
    for name, x in expected.items():
        torch.testing.assert_close(torch.from_numpy(np.ascontiguousarray(found[name])), x)


def test_requests_of_several_lengths_are_joined_and_padded(packages):
    path, model = packages["encoder"]
    given = [request(rows, length, rows * length) for rows in (1, 2, 3) for length in (3, 5, 7, 8, 33)]
    options = Options(padded=["length"], buckets={"batch": [1, 4, 16], "length": [8, 16]},
                      limits=Limits(rows=8, delay=.05))
    found, metric = served(path, options, lambda s: asyncio.gather(*[s.infer(g) for g in given]))
    for one, answer in zip(given, found, strict=True):
        assert_same(model, one, answer)
    assert metric("requests_total", status="200") == 15
    assert metric("batch_rows_sum") == 30 and metric("batch_rows_count") < 10
    assert metric("elements_total", of="padding") > 0


def test_lengths_are_not_padded_unless_allowed(packages):
    path, model = packages["encoder"]
    given = [request(1, length) for length in (3, 4, 4)]
    found, metric = served(path, Options(limits=Limits(delay=.05)),
                           lambda s: asyncio.gather(*[s.infer(g) for g in given]))
    for one, answer in zip(given, found, strict=True):
        assert_same(model, one, answer)
    assert metric("batch_rows_count") == 2 and metric("elements_total", of="padding") == 0


def test_models_that_joining_or_padding_changes_are_not_served(packages):
    with pytest.raises(PackageError, match="rows depend on each other"):
        served(packages["mixing_rows"][0], Options(), None)
    with pytest.raises(PackageError, match="results differ from those without padding"):
        served(packages["encoder"][0], Options(padded=["length"], fills={"mask": 1}), None)
    for options, said in ((Options(padded=["width"]), "no dimension width; it has batch, length"),
                          (Options(padded=["batch"]), "batch is the batch"),
                          (Options(buckets={"length": [8]}), "buckets of length, which is not padded"),
                          (Options(padded=["length"], fills={"x": 1}), "no input x")):
        with pytest.raises(PackageError, match=said):
            served(packages["encoder"][0], options, None)


@pytest.mark.parametrize(("change", "said"), [
    (lambda r: r.pop("mask"), "input mask is missing; the model takes ids, mask"),
    (lambda r: r.update(x=r["ids"]), "input x is unknown"),
    (lambda r: r.update(ids=r["ids"].astype("int32")), "input ids is int32, not int64"),
    (lambda r: r.update(ids=r["ids"][0]), "input ids has 1 dimensions, not 2"),
    (lambda r: r.update(ids=r["ids"][:, :2]), "length is 2 in input ids and 4 in mask"),
    (lambda r: r.update(request(17, 4)), "batch is 17, out of its range from 1 to 16"),
    (lambda r: r.update(request(1, 65)), "length is 65, out of its range from [12] to 64"),
    (lambda r: r.update(request(0, 4)), "batch is 0, out of its range"),
    (lambda r: r.update(ids=r["ids"] + 50), "index"),
], ids=["missing", "unknown", "dtype", "rank", "inconsistent", "rows", "length", "empty", "index"])
def test_bad_requests_are_refused_and_harm_no_others(change, said, packages):
    path, model = packages["encoder"]
    good, bad = request(2, 4), request(2, 4)
    change(bad)

    async def work(service):
        return await asyncio.gather(service.infer(good), service.infer(bad), return_exceptions=True)

    (answer, error), metric = served(path, Options(limits=Limits(delay=.05)), work)
    assert_same(model, good, answer)
    assert isinstance(error, RequestRefused) and error.status == 400
    with pytest.raises(RequestRefused, match=said):
        raise error
    assert metric("requests_total", status="400") == metric("requests_total", status="200") == 1


@pytest.mark.parametrize(("datatype", "data"), [
    ("INT64", [1.5, 2]), ("INT64", ["a", "b"]), ("INT8", [1, 300]), ("UINT8", [-1, 1]), ("FP32", [1.0, None]),
    ("INT64", [1, 2, 3]), ("INT64", [[1], [1, 2]]), ("BOOL", [0, 1]), ("BYTES", ["a", "b"])], ids=str)
def test_numbers_are_neither_rounded_nor_wrapped_around(datatype, data):
    with pytest.raises(RequestRefused, match="input x"):
        decode("x", datatype, [2], data)


@pytest.mark.parametrize(("datatype", "shape", "data"), [
    ("INT64", [2], bytes(15)), ("INT64", [3], bytes(16)), ("FP32", [], b""), ("BOOL", [2], bytes([1, 2])),
    ("BYTES", [2], bytes(2))], ids=str)
def test_bytes_that_are_no_tensor_are_refused(datatype, shape, data):
    with pytest.raises(RequestRefused, match="input x"):
        decode_raw("x", datatype, shape, data)


def test_bytes_are_read_as_they_are():
    x = np.arange(6, dtype="int64").reshape(2, 3)
    np.testing.assert_array_equal(decode_raw("x", "INT64", [2, 3], x.tobytes()), x)
    assert decode_raw("x", "FP16", [0, 3], b"").shape == (0, 3)


def test_requests_are_padded_to_the_longest_that_they_are_joined_with(packages):
    path, model = packages["encoder"]
    given = [request(1, length) for length in (5, 6, 6)]
    found, metric = served(path, Options(padded=["length"], limits=Limits(delay=.5), at_once=1),
                           lambda s: asyncio.gather(*[s.infer(g) for g in given]))
    for one, answer in zip(given, found, strict=True):
        assert_same(model, one, answer)
    assert metric("batch_rows_count") == 1 and metric("elements_total", of="padding") == 2


def test_a_model_that_writes_its_input_is_served(tmp_path):
    class Doubling(nn.Module):
        def forward(self, x):
            x.add_(1)
            return x * 2

    framesmith.package(Doubling(), (torch.ones(2, 3),), path=tmp_path / "m.fsm", targets=[TARGET],
                       dynamic_shapes=[{0: framesmith.Dim("batch", max=8)}])
    x = np.ones((1, 3), "float32")
    (first, again), _ = served(tmp_path / "m.fsm", Options(), lambda s: twice(s, {"x": x}))
    assert x.max() == 1
    for answer in (first, again):
        np.testing.assert_array_equal(next(iter(answer.values())), [[4, 4, 4]])


async def twice(service, given):
    return await service.infer(given), await service.infer(given)


def test_requests_that_wait_are_not_printed(packages):
    async def work(service):
        class Opaque(np.ndarray):
            def __repr__(self):
                raise AssertionError("an array is printed")

        given = {name: x.view(Opaque) for name, x in request(1, 4).items()}
        return await asyncio.gather(*[service.infer(given) for _ in range(3)])

    assert len(served(packages["encoder"][0], Options(), work)[0]) == 3


def test_limits_of_queue_and_time(packages):
    async def work(service):
        return await asyncio.gather(*[service.infer(request(1, 4)) for _ in range(5)], return_exceptions=True)

    found, metric = served(packages["encoder"][0], Options(limits=Limits(queue=3, delay=5, timeout=.05)), work)
    assert sorted(e.status for e in found) == [503, 503, 504, 504, 504]
    assert {str(e) for e in found} == {"the queue is full: 3 requests wait", "no answer within 0.05 seconds"}
    assert metric("queue") == 0


def test_requests_that_would_wait_too_long_are_refused_when_they_come(packages):
    def slowly(inputs):
        time.sleep(.2)
        rows, length = inputs[0].shape
        return [np.zeros((rows, length, 16), np.float32), np.zeros((rows, 16), np.float32)]

    async def work(service):
        async def timed():
            begin = time.perf_counter()
            try:
                await service.infer(request(1, 4))
            except RequestRefused as e:
                return e, time.perf_counter() - begin
            return None, time.perf_counter() - begin

        return await timed(), await asyncio.gather(*[timed() for _ in range(10)])

    options = Options(batching=False, limits=Limits(rows=1, wait=.7))
    ((first, _), found), _ = served(packages["encoder"][0], options, work, [ThreadWorker(slowly)])
    refused = [(e, seconds) for e, seconds in found if e]
    assert first is None and 5 <= len(refused) < 10 and all(seconds < .2 for _, seconds in refused)
    assert {e.status for e, _ in refused} == {503} and "requests wait, which takes about" in str(refused[0][0])


def test_a_killed_worker_is_replaced_and_its_requests_are_run_again(packages):
    path, model = packages["encoder"]
    given = [request(1, 4, seed) for seed in range(40)]

    async def work(service):
        async def one(k):
            await asyncio.sleep(k / 100)
            if k == 20:
                worker = service._workers[0]
                with contextlib.suppress(ProcessLookupError):
                    os.kill(await worker._call(os.getpid), signal.SIGKILL)
            return await service.infer(given[k])

        return await asyncio.gather(*map(one, range(40)))

    found, metric = served(path, Options(workers=1), work)
    for one, answer in zip(given, found, strict=True):
        assert_same(model, one, answer)
    assert metric("worker_restarts_total") == 1 and metric("requests_total", status="200") == 40


def test_a_worker_that_was_killed_between_requests_is_replaced(packages):
    path, model = packages["encoder"]
    given = request(1, 4)

    async def work(service):
        worker = service._workers[0]
        os.kill(await worker._call(os.getpid), signal.SIGKILL)
        deadline = time.monotonic() + 30
        while not worker._executor._broken and time.monotonic() < deadline:
            await asyncio.sleep(.01)
        return await asyncio.gather(*[service.infer(given) for _ in range(3)])

    found, metric = served(path, Options(workers=1), work)
    for answer in found:
        assert_same(model, given, answer)
    assert metric("worker_restarts_total") == 1


KILLED = """
import asyncio, os, sys
from framesmith.serve.workers import ProcessWorker

async def main():
    worker = ProcessWorker(sys.argv[1], 1)
    await worker.start()
    print(await worker._call(os.getpid), flush=True)
    if len(sys.argv) > 2:
        os.kill(os.getpid(), int(sys.argv[2]))
        await asyncio.sleep(60)

if __name__ == "__main__":
    asyncio.run(main())
"""


def test_workers_end_with_a_killed_service(packages, tmp_path):
    (tmp_path / "killed.py").write_text(KILLED)
    done = subprocess.run([sys.executable, tmp_path / "killed.py", packages["encoder"][0], str(int(signal.SIGKILL))],
                          stdout=subprocess.PIPE, timeout=120, text=True)
    worker = Path("/proc", done.stdout.strip())
    deadline = time.monotonic() + 30
    while worker.exists() and time.monotonic() < deadline:
        time.sleep(.05)
    assert done.returncode == -signal.SIGKILL and done.stdout.strip() and not worker.exists()


def test_a_model_that_keeps_state_is_not_served(tmp_path):
    framesmith.package(Counting(), (torch.ones(2, 3),), path=tmp_path / "m.fsm", targets=[TARGET])
    with pytest.raises(PackageError, match="calls write calls, which later calls read"):
        served(tmp_path / "m.fsm", Options(), None)
