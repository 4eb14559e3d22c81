"""A `transformers` model's decoding step as a graph of tensor operations: captured once, simplified, run alone.

`markers` are the two places where a model meets its cache, in terms of `transformers`' own extension points; `capture`
records a function; `rewrite` simplifies what was recorded; `hoist` takes out what depends on positions alone; `kernels`
are what the simplified graph calls, `invariant` what it calls where a row must not depend on how many are read. None of
these knows a model's architecture, sessions or decoding.
"""

from specbench.models.graph.capture import capture
from specbench.models.graph.hoist import Hoisted, hoist
from specbench.models.graph.invariant import lower_invariant, with_path_order
from specbench.models.graph.lower import Lowering, PackedWeights, compiled, direct, lower
from specbench.models.graph.native import lower_native
from specbench.models.graph.nodes import compiled_to_python
from specbench.models.graph.rewrite import simplify, with_merged_weights, without_repetition
from specbench.models.graph.specialise import for_last_row, for_one_token, for_outputs

__all__ = [
    "Hoisted",
    "Lowering",
    "PackedWeights",
    "capture",
    "compiled",
    "compiled_to_python",
    "direct",
    "for_last_row",
    "for_one_token",
    "for_outputs",
    "hoist",
    "lower",
    "lower_invariant",
    "lower_native",
    "simplify",
    "with_merged_weights",
    "with_path_order",
    "without_repetition",
]
