"""Contractions (linear, matmul, convolution), recurrent layers and attention: graph rewrites, frozen weights, and the choice of kernel."""

from framesmith.lower.contractions import attention, convolution, products, recurrent

__all__ = ["attention", "convolution", "products", "recurrent"]
