"""A `transformers` model's decoding step as a graph of tensor operations: captured once, simplified, run alone.

`markers` are the two places where a model meets its cache, in terms of `transformers`' own extension points; `capture`
records a function; `rewrite` simplifies what was recorded; `hoist` takes out what depends on positions alone; `kernels`
are what the simplified graph calls, `invariant` what it calls where a row must not depend on how many are read. None of
these knows a model's architecture, sessions or decoding.
"""
