"""Tests marked `gpu` need a CUDA device, and are skipped where there is none (`make test-gpu` runs them alone).

With FRAMESMITH_TEST_DEVICE=cuda the tensors that tests make without naming a device are made there.
"""

import os

import pytest
import torch

if device := os.environ.get("FRAMESMITH_TEST_DEVICE"):
    torch.set_default_device(device)


def pytest_collection_modifyitems(items):
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
