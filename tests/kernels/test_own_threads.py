"""The kernels' own threads, where there is no OpenMP: they sleep between calls, and a forked child has new ones."""

import subprocess
import sys
from pathlib import Path

import pytest

from specbench import kernels

pytestmark = pytest.mark.skipif(not kernels.is_available(), reason="there is no C compiler")

USED = """
import ctypes, os, time
from specbench import kernels
from specbench.kernels.structures import RawSampling
kernels.FLAGS = tuple(flag for flag in kernels.FLAGS if flag != "-fopenmp")
rows, size, how = 8, 1 << 16, RawSampling.of(0.5, None, None)
logits, out = ((ctypes.c_float * (rows * size))() for _ in range(2))
def call(threads):
    ctypes.memset(out, 0, ctypes.sizeof(out))
    kernels.library().standardise(ctypes.addressof(logits), 0, size, ctypes.addressof(out), rows, size,
                                  ctypes.byref(how), threads)
    assert all(out[row * size] == 1 / size for row in range(rows))
for threads in (1, 2, 3, 16, 2):
    call(threads)
time.sleep(0.01)
began = time.process_time()
time.sleep(0.3)
assert time.process_time() - began < 0.02, "they spin"
if child := os.fork():
    assert os.waitpid(child, 0)[1] == 0, "a forked child"
    call(4)
else:
    call(4)
    os._exit(0)
print(len(os.listdir("/proc/self/task")) > 15)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_own_threads_sleep_between_calls_and_survive_a_fork(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    done = subprocess.run([sys.executable, "-c", f"import torch\n{USED}"], capture_output=True, text=True, timeout=200)
    assert (done.stdout, done.returncode) == ("True\n", 0), done.stderr
