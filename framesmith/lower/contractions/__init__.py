"""Contractions (linear, matmul, convolution): graph rewrites, frozen weights, and the choice of kernel."""
