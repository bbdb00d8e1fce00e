"""Tests marked `gpu` need a CUDA device, and are skipped where there is none (`make test-gpu` runs them alone)."""

import pytest
import torch


def pytest_collection_modifyitems(items):
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
