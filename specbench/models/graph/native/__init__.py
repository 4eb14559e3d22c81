"""A captured step as a program for kernels of our own, in C, compiled where there is a compiler.

A step of a small model is bound by the calls of its operations, some 10 us for each linear map and norm. Here one call
runs them all: `segments` finds the longest runs of a graph's operations that `kernels.c` knows, and what it does not know
is torch's; `instructions` are what runs become; `compiler` builds the kernels once a machine.
"""

from specbench.models.graph.native.compiler import NotCompiled, library
from specbench.models.graph.native.segments import lower_native

__all__ = ["NotCompiled", "library", "lower_native"]
