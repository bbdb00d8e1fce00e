import pytest
import torch

import framesmith


@pytest.fixture(autouse=True)
def fresh():
    """Inference, a fixed seed, and warnings that can be seen again."""
    torch.manual_seed(0)
    framesmith.reset()
    with torch.no_grad():
        yield
    framesmith.reset()
