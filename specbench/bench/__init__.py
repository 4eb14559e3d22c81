"""Is our decoding worth comparing with? Ours beside `transformers.generate`, and where our own time goes.

`timing` interleaves alternatives; `hf_baseline` holds transformers' own decoding; `breakdown` takes a step and a pass
apart; `growth` follows them over gamma, length and vocabulary; `beams` compares beam searches; `output` writes table
and JSON. Knows no tasks and no command line.
"""

from specbench.bench.bench import Bench, bench

__all__ = ["Bench", "bench"]
