"""Tests marked `gpu` need a CUDA device, and are skipped where there is none (`make test-gpu` runs them alone).

With FRAMESMITH_TEST_DEVICE=cuda the tensors that tests make without naming a device are made there.
"""

import os
import re

import pytest
import torch

if device := os.environ.get("FRAMESMITH_TEST_DEVICE"):
    torch.set_default_device(device)


def pytest_collection_modifyitems(items):
    if moving := [item.nodeid for item in items if re.search(r" at 0x[0-9a-f]{6}", item.nodeid)]:
        raise pytest.UsageError("ids with an address differ from process to process: " + ", ".join(moving[:3]))
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
