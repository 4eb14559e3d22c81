"""Benchmarks of our own decoding: against `transformers.generate`, and where its time goes.

`timing` interleaves alternatives; `hf_baseline` holds transformers' own decoding; `breakdown` splits a step and a pass
into parts; `growth` follows them over gamma, length and vocabulary; `beams` compares beam searches; `output` writes
table and JSON. Independent of tasks and the command line.
"""
