"""Ray Serve with two replicas of a package, and tritonclient."""

import json
import socket
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

from tests.serve.models import encoder

if find_spec("ray") is None or find_spec("tritonclient") is None:
    pytest.skip("the engine is not installed", allow_module_level=True)

PROGRAM = """
import sys, json, urllib.request
import numpy as np, ray
from ray import serve
import tritonclient.http as triton
from framesmith.serve.ray_adapter import application

ray.init(num_cpus=2, include_dashboard=False, configure_logging=False, log_to_driver=False)
port = int(sys.argv[2])
serve.start(http_options={"host": "127.0.0.1", "port": port})
serve.run(application({"package": sys.argv[1], "name": "encoder", "replicas": 2, "padded": ["length"]}))
client = triton.InferenceServerClient(f"127.0.0.1:{port}")
assert client.is_server_ready() and client.is_model_ready("encoder") and not client.is_model_ready("other")
assert client.get_model_metadata("encoder")["inputs"][0] == {"name": "ids", "datatype": "INT64", "shape": [-1, -1]}

def asked(ids):
    inputs = []
    for name, x in (("ids", ids), ("mask", np.ones_like(ids))):
        inputs.append(triton.InferInput(name, x.shape, "INT64"))
        inputs[-1].set_data_from_numpy(x, binary_data=False)
    return client.infer("encoder", inputs, outputs=[triton.InferRequestedOutput("mean", binary_data=False)])

print('ANSWERS', json.dumps([asked(np.full((2, 5), k)).as_numpy("mean").tolist() for k in range(4)]))
try:
    asked(np.full((17, 5), 1))
except Exception as e:
    print('REFUSED', e)
serve.shutdown()
ray.shutdown()
"""


def test_replicas_answer_as_eager_does(tmp_path):
    model = encoder(tmp_path / "encoder.fsm", "x86-64")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path / "encoder.fsm"), str(port)],
                          capture_output=True, text=True, timeout=120)
    assert not done.returncode, done.stderr[-3000:]
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines() if line.startswith(("ANSWERS", "REFUSED")))
    for k, found in enumerate(json.loads(said["ANSWERS"])):
        with torch.no_grad():
            expected = model(torch.full((2, 5), k), torch.ones(2, 5, dtype=torch.int64))["mean"]
        torch.testing.assert_close(torch.tensor(found), expected)
    assert "batch is 17, out of its range from 1 to 16" in said["REFUSED"]
