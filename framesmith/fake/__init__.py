"""Tensors without storage, and the recorder that turns calls on them into a graph of functional ATen operators."""

from framesmith.fake import (  # each registers the rows of its table
    fused,
    handlers_arithmetic,
    handlers_copies,
    handlers_data,
    handlers_nn,
    handlers_random,
    handlers_views,
    masks,
    products,
    recurrent,
    rules_attention,
    rules_factories,
    rules_gradients,
    rules_jagged,
    rules_losses,
    rules_nn,
    rules_padding,
    rules_pointwise,
    rules_reductions,
    rules_resizing,
    rules_training,
    rules_views,
)
from framesmith.fake.constant_eval import known_value
from framesmith.fake.recorder import Recorder, dispatch_restored
from framesmith.fake.tensor import FakeTensor
