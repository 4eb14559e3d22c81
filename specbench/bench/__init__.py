"""Benchmarks of our own decoding: against `transformers.generate`, and where its time goes.

`timing` interleaves alternatives; `baselines` has transformers' own decoding; `peers` runs other engines, for which
`gguf` writes weights; `parts` measures what a step and a pass consist of; `beams` compares beam searches; `benchmark`
is the whole, with its table and its files. Independent of tasks and the command line.
"""
