"""A `transformers` model's decoding step as a graph of tensor operations: captured once, simplified, run by itself.

`nodes` records a function as a graph; `rewrite` simplifies it and takes out operations that depend only on positions.
The simplified graph calls `operations.kernels`, or `invariant` if a row must not depend on how many are read. None of
these knows a model's architecture, sessions or decoding.
"""
