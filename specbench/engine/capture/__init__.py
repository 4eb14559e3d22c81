"""A `transformers` model's decoding step as a graph of tensor operations: captured once, simplified, run alone.

`nodes` records a function as a graph; `rewrite` simplifies it and takes out what depends on positions alone; `kernels`
are what the simplified graph calls, `invariant` what it calls where a row must not depend on how many are read. None of
these knows a model's architecture, sessions or decoding.
"""
