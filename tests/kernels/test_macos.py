"""The kernels as Apple's clang would compile them: their syntax and types, with stand-ins for the system's headers.

They have not been run there: the workflow `tests` does so on macOS.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

from specbench.kernels import PORTABLE, SOURCE

HEADERS = {
    "string.h": "void *memcpy(void *, const void *, size_t); void *memset(void *, int, size_t);",
    "stdlib.h": "void *malloc(size_t); void free(void *);",
    "math.h": "#define INFINITY __builtin_inff()\n#define NAN __builtin_nanf(\"\")\n"
    "float erff(float), tanhf(float), powf(float, float), sqrtf(float), expf(float), logf(float);\n"
    "double exp(double);",
    "sched.h": "int sched_yield(void);",
    "time.h": "struct timespec { long tv_sec, tv_nsec; }; enum { CLOCK_MONOTONIC = 6 };\n"
    "int clock_gettime(int, struct timespec *);",
    "pthread.h": "typedef void *pthread_t; typedef struct { long held; } pthread_mutex_t, pthread_cond_t;\n"
    "#define PTHREAD_MUTEX_INITIALIZER {0}\n#define PTHREAD_COND_INITIALIZER {0}\n"
    "int pthread_mutex_lock(pthread_mutex_t *), pthread_mutex_unlock(pthread_mutex_t *);\n"
    "int pthread_cond_wait(pthread_cond_t *, pthread_mutex_t *), pthread_cond_broadcast(pthread_cond_t *);\n"
    "int pthread_create(pthread_t *, const void *, void *(*)(void *), void *), pthread_detach(pthread_t);\n"
    "int pthread_atfork(void (*)(void), void (*)(void), void (*)(void));",
    "pthread/qos.h": "enum { QOS_CLASS_USER_INTERACTIVE = 33 }; int pthread_set_qos_class_self_np(int, int);",
}  # fmt: skip


@pytest.mark.skipif(shutil.which("clang") is None, reason="there is no clang")
@pytest.mark.parametrize("target", ["arm64-apple-macos13", "x86_64-apple-macos13"])
def test_kernels_are_valid_for_macos(target: str, tmp_path: Path) -> None:
    for name, text in HEADERS.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"#pragma once\n#include <stddef.h>\n{text}\n")
    asked = subprocess.run(["clang", "-print-resource-dir"], capture_output=True, text=True, check=True)
    own = Path(asked.stdout.strip()) / "include"
    command = ["clang", f"--target={target}", "-nostdinc", "-ffreestanding", f"-isystem{own}", f"-I{tmp_path}"]
    done = subprocess.run(
        [*command, *PORTABLE, "-fPIC", "-Wall", "-Wno-psabi", "-fsyntax-only", str(SOURCE)],
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
