"""The server as clients see it: a process on loopback, and tritonclient."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from importlib.util import find_spec

import numpy as np
import pytest
import torch

import framesmith
from tests.serve.models import Counting, changed_encoder, encoder, mixing_rows

if find_spec("mlserver") is None:
    pytest.skip("the engine is not installed", allow_module_level=True)
http_client = pytest.importorskip("tritonclient.http")
grpc_client = pytest.importorskip("tritonclient.grpc")
InferenceServerException = pytest.importorskip("tritonclient.utils").InferenceServerException


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


class Server:
    """`python -m framesmith serve` in a process."""

    def __init__(self, path, *options):
        self.http, self.grpc, self.metrics = free_ports(3)
        command = [sys.executable, "-m", "framesmith", "serve", path, "--http-port", self.http, "--grpc-port",
                   self.grpc, "--metrics-port", self.metrics, *options]
        self.process = subprocess.Popen(list(map(str, command)), stderr=subprocess.STDOUT, stdout=subprocess.PIPE,
                                        text=True)

    def get(self, address, port=None, data=None, **headers):
        """Status and text of a request."""
        url = f"http://127.0.0.1:{port or self.http}{address}"
        try:
            with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as e:
            return e.code, e.read().decode()
        except (ConnectionError, urllib.error.URLError):
            return 0, ""

    def wait(self):
        """Wait until it is ready."""
        deadline = time.monotonic() + 60
        while self.get("/v2/health/ready")[0] != 200:
            assert self.process.poll() is None and time.monotonic() < deadline, self.process.stdout.read()
            time.sleep(.1)

    def stop(self):
        """Its exit status after SIGTERM, and what it has written."""
        self.process.send_signal(signal.SIGTERM)
        text, _ = self.process.communicate(timeout=60)
        return self.process.returncode, text


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("packages")
    return {make.__name__: (folder / f"{make.__name__}.fsm", make(folder / f"{make.__name__}.fsm", "x86-64"))
            for make in (encoder, changed_encoder, mixing_rows)}


@pytest.fixture(scope="module")
def server(packages):
    server = Server(packages["encoder"][0], "--pad", "length", "--delay", 5, "--max-bytes", 100_000, "--warm-up",
                    "batch=8,length=16")
    server.wait()
    yield server
    server.process.kill()
    server.process.communicate()


def clients(server):
    """By protocol: its module, a client, and the options that ask for numbers as text."""
    return {"REST": (http_client, http_client.InferenceServerClient(f"127.0.0.1:{server.http}"),
                     {"binary_data": False}),
            "gRPC": (grpc_client, grpc_client.InferenceServerClient(f"127.0.0.1:{server.grpc}"), {})}


def asked(way, arrays, outputs=("hidden", "mean")):
    """The outputs that tritonclient gets."""
    module, client, options = way
    inputs = []
    for name, x in arrays.items():
        inputs.append(module.InferInput(name, x.shape, {"int64": "INT64", "float32": "FP32"}[x.dtype.name]))
        inputs[-1].set_data_from_numpy(x, **options)
    wanted = [module.InferRequestedOutput(name, **options) for name in outputs]
    answer = client.infer("encoder", inputs, outputs=wanted)
    return {name: answer.as_numpy(name) for name in outputs}


def request(rows, length):
    ids = np.random.default_rng(rows * length).integers(0, 50, (rows, length))
    return {"ids": ids, "mask": np.ones_like(ids)}


@pytest.mark.parametrize("protocol", ["REST", "gRPC"])
def test_tritonclient_gets_what_eager_gives(protocol, server, packages):
    way, model = clients(server)[protocol], packages["encoder"][1]
    assert way[1].is_server_live() and way[1].is_server_ready() and way[1].is_model_ready("encoder")
    said = way[1].get_model_metadata("encoder")
    inputs = said["inputs"] if protocol == "REST" else said.inputs
    assert "ids" in str(inputs[0]) and "INT64" in str(inputs[0]) and "-1" in str(inputs[0])
    for rows, length in ((1, 5), (3, 16), (16, 40)):
        given = request(rows, length)
        with torch.no_grad():
            expected = model(*[torch.from_numpy(x) for x in given.values()])
        found = asked(way, given)
        for name, x in expected.items():
            torch.testing.assert_close(torch.from_numpy(found[name].copy()), x)
    assert asked(way, request(1, 4), ["mean"]).keys() == {"mean"}


@pytest.mark.parametrize(("protocol", "code"), [("REST", "400"), ("gRPC", "StatusCode.INVALID_ARGUMENT")])
def test_bad_requests_say_what_is_wrong(protocol, code, server):
    way = clients(server)[protocol]
    for given, said in (({"ids": request(1, 4)["ids"]}, "input mask is missing"),
                        (request(17, 4), "batch is 17, out of its range"),
                        ({**request(1, 4), "mask": np.ones((1, 4), "float32")}, "input mask is float32, not int64"),
                        ({"ids": request(1, 4)["ids"] + 50, "mask": request(1, 4)["mask"]}, "index")):
        with pytest.raises(InferenceServerException, match=said) as found:
            asked(way, given)
        assert found.value.status() == code
    with pytest.raises(InferenceServerException, match="no output more; it has hidden, mean"):
        asked(way, request(1, 4), ["more"])


def test_what_is_no_request_is_refused(server):
    address, json_type = "/v2/models/encoder/infer", {"Content-Type": "application/json"}
    assert server.get("/v2/models/other/infer", data=b'{"inputs": []}', **json_type)[0] == 404
    assert server.get(address, data=b"no json", **json_type)[0] == 422
    status, text = server.get(address, data=b"[" * 200_000, **json_type)
    assert status == 413 and json.loads(text)["error"] == "the request is too large: at most 100000 bytes are taken"
    assert server.get(address, data=b"", **json_type, **{"Content-Encoding": "gzip"})[0] == 415
    chunks = (b"[" * 10_000 for _ in range(20))
    assert server.get(address, data=chunks, **json_type, **{"Transfer-Encoding": "chunked"})[0] == 413
    with pytest.raises(InferenceServerException, match="larger than max|RESOURCE_EXHAUSTED"):
        asked(clients(server)["gRPC"], request(16, 4096))


def test_metrics_for_prometheus(server):
    asked(clients(server)["REST"], request(2, 5))
    status, text = server.get("/metrics", server.metrics)
    assert status == 200
    for line in ('framesmith_serve_requests_total{status="200"}', "framesmith_serve_request_seconds_bucket",
                 "framesmith_serve_queue 0.0", "framesmith_serve_batch_rows_sum",
                 f"framesmith_serve_workers_ready {min(2, len(os.sched_getaffinity(0))):.1f}",
                 'framesmith_serve_elements_total{of="padding"}', "rest_server_requests_total"):
        assert line in text, line


def test_requests_that_were_accepted_are_answered_after_sigterm(packages):
    server = Server(packages["encoder"][0], "--delay", 1000)
    server.wait()
    given, model = request(1, 4), packages["encoder"][1]
    body = json.dumps({"inputs": [{"name": name, "shape": x.shape, "datatype": "INT64", "data": x.ravel().tolist()}
                                  for name, x in given.items()]}).encode()
    found, statuses = {}, []

    def post():
        return server.get("/v2/models/encoder/infer", data=body, **{"Content-Type": "application/json"})

    threads = [*(threading.Thread(target=lambda: statuses.append(post())) for _ in range(4)),
               threading.Thread(target=lambda: found.update(asked(clients(server)["gRPC"], given)))]
    for thread in threads:
        thread.start()
    while "framesmith_serve_queue 5.0" not in server.get("/metrics", server.metrics)[1]:
        time.sleep(.02)
    late = {protocol: clients(server)[protocol] for protocol in ("REST", "gRPC")}
    server.process.send_signal(signal.SIGTERM)
    while server.get("/v2/health/ready")[0] == 200:
        time.sleep(.02)
    for protocol, code in (("REST", "400"), ("gRPC", "StatusCode.INVALID_ARGUMENT")):
        with pytest.raises(InferenceServerException, match="not ready|shutting down") as refused:
            asked(late[protocol], given)
        assert refused.value.status() == code
    text, _ = server.process.communicate(timeout=60)
    for thread in threads:
        thread.join()
    with torch.no_grad():
        expected = model(*map(torch.from_numpy, given.values()))["mean"]
    assert server.process.returncode == 0 and [status for status, _ in statuses] == [200] * 4, text
    for mean in (found["mean"], *(json.loads(answer)["outputs"][1]["data"] for _, answer in statuses)):
        torch.testing.assert_close(torch.tensor(np.array(mean, "float32")).reshape(1, -1), expected)
    assert post()[0] == 0  # nothing listens any more


def test_a_changed_weight_is_rolled_back_with_a_report(packages, server):
    canary = Server(packages["encoder"][0], "--canary", packages["changed_encoder"][0], "--share", 1)
    canary.wait()
    way = clients(canary)["gRPC"]
    given = request(2, 6)
    with torch.no_grad():
        old, new = (packages[name][1](*map(torch.from_numpy, given.values()))["mean"]
                    for name in ("encoder", "changed_encoder"))
    torch.testing.assert_close(torch.from_numpy(asked(way, given)["mean"].copy()), old)
    deadline = time.monotonic() + 10
    while (report := json.loads(canary.get("/canary")[1]))["state"] == "trial" and time.monotonic() < deadline:
        time.sleep(.05)
    assert report["state"] == "rolled back" and "an answer differs: output hidden is" in report["reason"]
    assert json.loads(canary.get("/canary/promote", data=b"")[1])["state"] == "promoted"
    torch.testing.assert_close(torch.from_numpy(asked(way, given)["mean"].copy()), new)
    assert json.loads(canary.get("/canary/rollback", data=b"")[1])["reason"] == "by hand"
    torch.testing.assert_close(torch.from_numpy(asked(way, given)["mean"].copy()), old)
    assert "framesmith_canary_requests_total" in canary.get("/metrics", canary.metrics)[1]
    code, text = canary.stop()
    assert code == 0 and "the new version is rolled back: an answer differs" in text, text
    assert server.get("/canary")[0] == 404


def test_what_cannot_be_served_ends_the_process_with_a_reason(packages, tmp_path):
    (tmp_path / "no.fsm").write_bytes(b"no package")
    framesmith.package(Counting(), (torch.ones(2, 3),), path=tmp_path / "state.fsm", targets=["x86-64"])
    for path, said in ((packages["mixing_rows"][0], "rows depend on each other"), (tmp_path / "no.fsm", "no.fsm"),
                       (tmp_path / "state.fsm", "calls write calls, which later calls read; but requests do not")):
        text, _ = (server := Server(path)).process.communicate(timeout=60)
        assert server.process.returncode == 1 and said in text and "Traceback" not in text, text
