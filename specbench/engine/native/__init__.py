"""A captured step as a program for kernels of our own, in C, compiled if there is a compiler.

A step of a small model is bound by the calls of its operations, about 10 us for each linear map and norm. Here one call
runs them all.

| file | what it has |
| --- | --- |
| `lowering` | finds the longest runs of operations that the kernels support; leaves the others to torch |
| `values`, `assemble` | operations of a graph to instructions |
| `instructions`, `fuse`, `fits` | a program: its instructions, fused, and checked |
| `weights`, `expert_calls` | weights as the kernels read them; layers of experts |
| `native_run`, `whole`, `prefill` | calls of a program; a step that is one program; the reading of a prompt |
| `rollout`, `passes` | several steps, and passes of Algorithm 1, in one call |
| `lookups`, `native_sessions`, `native_model` | the model and its sessions, and what they look up once |

The kernels lie in `specbench.kernels`.
"""
