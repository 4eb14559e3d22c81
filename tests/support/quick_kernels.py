"""The flags with which this machine compiles the kernels in a tenth of the time: Apple's compiler knows no OpenMP."""

from specbench.kernels import FLAGS

QUICK = tuple("-O0" if flag == "-O3" else flag for flag in FLAGS)
