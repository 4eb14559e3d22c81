"""Is our decoding worth comparing with? Ours beside `transformers.generate`, and where our own time goes.

`clock` times ways of doing the same in turn; `rivals` are transformers' own ways; `inside` takes a step and a pass
apart; `growth` follows them over gamma, length and vocabulary; `beams` compares beam searches; `report` writes table
and JSON. Knows no tasks and no command line.
"""

from specbench.bench.bench import Bench, bench

__all__ = ["Bench", "bench"]
