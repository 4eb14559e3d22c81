"""Captured steps as CUDA graphs."""
