"""Tensors without storage, and the recorder that turns calls on them into a graph of functional ATen operators."""

from framesmith.fake import special  # registers its rows
from framesmith.fake.recorder import Recorder
from framesmith.fake.tensor import FakeTensor

__all__ = ["FakeTensor", "Recorder", "special"]
