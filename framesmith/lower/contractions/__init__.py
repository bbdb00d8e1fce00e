"""Contractions (linear, matmul, convolution), recurrent layers and attention: graph rewrites, frozen weights, and the
choice of kernel."""

from framesmith.lower.contractions import (
    attention,
    attention_training,
    convolution,
    convolution_training,
    recurrent,
    training_matmul,
)
