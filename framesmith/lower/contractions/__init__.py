"""Contractions (linear, matmul, convolution), recurrent layers and attention: graph rewrites, frozen weights, and the choice of kernel."""

from framesmith.lower.contractions import recurrent

__all__ = ["recurrent"]
