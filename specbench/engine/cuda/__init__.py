"""Captured steps as CUDA graphs, and kernels for a GPU."""
