"""A captured step as a program for kernels of our own, in C, compiled where there is a compiler.

A step of a small model is bound by the calls of its operations, about 10 us for each linear map and norm. Here one call
runs them all. `segments` finds the longest runs of operations that `kernels.c` supports and leaves the others to torch;
`assemble` turns operations into `instructions` for the kernels, which lie in `specbench.kernels`; `model` has the
sessions, `passes` runs passes of Algorithm 1.
"""
