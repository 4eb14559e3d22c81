"""The C kernels under a sanitizer, against plain loops, for each width of vectors that this machine has."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from specbench import kernels
from specbench.errors import MachineError
from specbench.kernels import FLAGS, PORTABLE, SOURCE, NotCompiled, library
from specbench.kernels.structures import Op, layout, layout_of
from tests.support.paths import ROOT
from tests.support.quick_kernels import QUICK
from tests.support.scripts import loaded

CHECK = Path(__file__).parent / "native_check.c"
PASSES_CHECK = Path(__file__).parent / "native_passes_check.c"
COMPILER = shutil.which("gcc") or shutil.which("cc")
SANITIZED = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize=alignment,shift", "-fno-sanitize-recover=all")
WIDENED = "skylake-avx512 -DBF16_WIDENED"  # as where instructions for bf16 are slower than those for fp32
# Bytes of a vector: without vectors of its own a processor has those of its base.
WIDTHS = {"x86-64": 16, "haswell": 32, "skylake-avx512": 64, "cooperlake": 64, "sapphirerapids": 64, WIDENED: 64}
NEEDS = dict(zip(WIDTHS, ("sse2", "avx2", "avx512bw", "avx512_bf16", "amx_bf16", "avx512bw"), strict=True))

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")


def compiled(
    march: str, *more: str, check: Path = CHECK, source: Path = SOURCE, compiler: str = str(COMPILER)
) -> subprocess.CompletedProcess[str]:
    command = [compiler, *PORTABLE, *f"-march={march}".split(), "-Wno-psabi", f'-DKERNELS="{source}"', str(check)]
    return subprocess.run([*command, *more], capture_output=True, text=True, timeout=200)


def is_x86() -> bool:
    info = Path("/proc/cpuinfo")
    return info.exists() and "sse2" in info.read_text(encoding="utf-8")


@pytest.mark.full
@pytest.mark.parametrize("march", WIDTHS)
def test_kernels_compile_without_a_warning_for(march: str) -> None:
    if not is_x86():
        pytest.skip("not an x86 processor")
    done = compiled(march, "-Wall", "-c", "-o", "/dev/null")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.full
@pytest.mark.parametrize("march", WIDTHS)
def test_kernels_are_right_and_touch_no_other_memory(march: str, tmp_path: Path) -> None:
    if not is_x86() or NEEDS[march] not in Path("/proc/cpuinfo").read_text(encoding="utf-8"):
        pytest.skip(f"this processor has no {NEEDS[march]}")
    done = compiled(march, *SANITIZED, "-o", str(tmp_path / "check"), "-lm")
    assert done.returncode == 0, done.stderr
    ran = subprocess.run([str(tmp_path / "check")], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stdout + ran.stderr[:2000]
    tiles = "( and tiles)?" if march == "sapphirerapids" else ""  # where the system permits them
    assert re.fullmatch(rf"passed: vectors of {WIDTHS[march]} bytes{tiles}, 0 differences\n", ran.stdout)


# As they are used: what a vectoriser makes of them is another thing than what a sanitizer sees.
LEVELS = {"x86-64": "sse2", "x86-64-v2": "sse4_2", "x86-64-v3": "avx2", "x86-64-v4": "avx512bw"}


@pytest.mark.full
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("march", LEVELS)
def test_kernels_are_right_as_each_compiler_optimises_them(march: str, compiler: str, tmp_path: Path) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"there is no {compiler}")
    if not is_x86() or LEVELS[march] not in Path("/proc/cpuinfo").read_text(encoding="utf-8"):
        pytest.skip(f"this processor has no {LEVELS[march]}")
    done = compiled(march, "-o", str(tmp_path / "check"), "-lm", "-lpthread", compiler=compiler)
    assert done.returncode == 0, done.stderr
    ran = subprocess.run([str(tmp_path / "check")], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0 and ran.stdout.endswith(", 0 differences\n"), ran.stdout[:2000]


@pytest.mark.parametrize("name", sorted(file.name for file in SOURCE.parent.glob("*.[ch]")))
def test_a_change_of_any_file_makes_another_library(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = kernels._digest([str(COMPILER)])
    for file in SOURCE.parent.glob("*.[ch]"):
        shutil.copy(file, tmp_path)
    monkeypatch.setattr(kernels, "SOURCE", tmp_path / SOURCE.name)
    assert kernels._digest([str(COMPILER)]) == before
    with open(tmp_path / name, "a") as opened:
        opened.write("/* changed */\n")
    assert kernels._digest([str(COMPILER)]) != before


@pytest.mark.parametrize("kind", ["alpha", "speed", "lossy"])
def test_faults_of_tools_power_are_planted_in_kernels_that_compile(
    kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    power: Any = loaded(ROOT / "tools" / "power.py")
    plant = object.__new__(power.Plant)
    plant.kind = kind
    monkeypatch.setattr(kernels, "SOURCE", SOURCE)  # which it replaces
    monkeypatch.setattr(power.tempfile, "mkdtemp", lambda: str(tmp_path))
    plant._in_c(3)
    assert tmp_path / SOURCE.name == kernels.SOURCE
    command = [str(COMPILER), *FLAGS, "-Wno-psabi", "-fsyntax-only", "-Wno-pragmas", str(kernels.SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def copied(folder: Path, name: str, before: str, after: str) -> Path:
    """A copy of the kernels in which one place of one file is another."""
    (sources := folder / "sources").mkdir()
    for file in SOURCE.parent.glob("*.[ch]"):
        shutil.copy(file, sources)
    text = (sources / name).read_text()
    assert text.count(before) == 1
    (sources / name).write_text(text.replace(before, after))
    return sources / SOURCE.name


@pytest.fixture
def torchs_openmp() -> Any:
    """A machine where the kernels are loaded, and their library forgotten after the test."""
    try:
        library()
    except NotCompiled as reason:
        pytest.skip(str(reason))
    yield
    kernels.found.cache_clear()


def test_structures_and_operations_lie_as_the_kernels_have_them(torchs_openmp: Any) -> None:
    found = layout_of(library())
    assert found == layout() and found["GATHER"] == len(Op) - 1 and found["Instruction.width"] == 8


@pytest.mark.parametrize(
    ("name", "before", "after", "differs"),
    [
        (
            "instructions.h",
            "int64_t op, width,",
            "int64_t op, added, width,",
            "Instruction is 328 in kernels.c and 320",
        ),
        ("instructions.h", "int64_t op, width,", "int64_t width, op,", "Instruction.op is 8 in kernels.c and 0"),
        ("instructions.h", "DO(LOAD) DO(STORE)", "DO(STORE) DO(LOAD)", "LOAD is 2 in kernels.c and 1"),
        ("instructions.h", "DO(GATHER)", "DO(GATHER) DO(MORE)", "MORE is 22 in kernels.c and missing"),
    ],
    ids=["a field more", "two fields in turn", "two operations in turn", "an operation more"],
)
def test_a_structure_or_an_operation_that_differs_is_one_error_at_load(
    name: str, before: str, after: str, differs: str, torchs_openmp: Any, monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.setattr(kernels, "SOURCE", copied(tmp_path, name, before, after))
    monkeypatch.setattr(kernels, "FLAGS", QUICK)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kernels.found.cache_clear()
    with pytest.raises(MachineError, match=f"{differs} in structures.py: install specbench again"):
        library()


# A sanitizer of threads does not see how OpenMP's threads wait: it has the kernels' own.
SANITIZERS = {
    "memory": (*SANITIZED, "-fopenmp"),
    "memory, own threads": SANITIZED,
    "threads": ("-O1", "-g", "-fsanitize=thread"),
}


def ran_with(sanitizer: str, folder: Path, source: Path = SOURCE, threads: int = 4) -> subprocess.CompletedProcess[str]:
    """The check of steps, passes and experts, built with a sanitizer; skipped where the compiler has none."""
    flags, program = SANITIZERS[sanitizer], folder / "check"
    (folder / "none.c").write_text("int main(void) { return 0; }")
    tried = subprocess.run([str(COMPILER), *flags, str(folder / "none.c"), "-o", str(program)], capture_output=True)
    if tried.returncode or subprocess.run([program], capture_output=True).returncode:
        pytest.skip(f"{COMPILER} has no sanitizer of {sanitizer} that runs here")
    done = compiled("native", *flags, "-o", str(program), "-lm", "-lpthread", check=PASSES_CHECK, source=source)
    assert done.returncode == 0, done.stderr
    return subprocess.run([program, str(threads)], capture_output=True, text=True, timeout=300)


@pytest.mark.full
@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_rollouts_passes_and_experts_are_right_on_16_threads(sanitizer: str, tmp_path: Path) -> None:
    """Whatever the number of cores."""
    ran = ran_with(sanitizer, tmp_path, threads=16)
    assert (ran.returncode, ran.stdout) == (0, "passed: up to 16 threads, 0 differences\n"), ran.stderr[:2000]


PLANTED = {
    "a barrier that orders no memory": ("threads", "step.h", "1, __ATOMIC_ACQ_REL)", "1, __ATOMIC_RELAXED)"),
    "experts that do not wait for their rows": (
        "threads", "experts.h", "row, width * sizeof(float));\n    }\n    wait_for_all(&of->barrier, threads);",
        "row, width * sizeof(float));\n    }",
    ),
    "a caller that does not wait for its team": (
        "threads", "team.h", "__atomic_load_n(&ours.left, __ATOMIC_ACQUIRE); waited++)", "0; waited++)",
    ),
    "a team whose job may be of the call before": (
        "threads", "team.h", "__ATOMIC_ACQUIRE)) != seen) return turn;", "__ATOMIC_RELAXED)) != seen) return turn;",
    ),
    "a verdict that copies a token too many": (
        "memory", "passes.h", "drafted, count * sizeof(int64_t));", "drafted, (count + 2) * sizeof(int64_t));",
    ),
    "a rejected token that is accepted": (
        "memory", "verdicts.h", "return r * q_of(of, g) < p;", "return r * q_of(of, g) < 2 * p;",
    ),
}  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_in_passes_or_threads_is_found(fault: str, tmp_path: Path) -> None:
    sanitizer, name, before, after = PLANTED[fault]
    source = copied(tmp_path, name, before, after)
    team = source.parent / "team.h"
    patient = team.read_text().replace("PATIENCE_US = 100 ", "PATIENCE_US = 10000000 ")
    assert patient != team.read_text()
    # Else on a busy machine all threads would sleep, and the lock that wakes them would hide the fault.
    team.write_text(patient)
    assert ran_with(sanitizer, tmp_path, source).returncode != 0


# On a processor that has none, the matrix registers (AMX) are emulated in plain C.
EMULATED = ("-D__AMX_BF16__=1", "-include", str(CHECK.parent / "emulated_tiles.h"), *SANITIZED)
SHAPES = ('__asm__ volatile("ldtilecfg %0" : : "m"(shape));', "emulated_shape(&shape);")
ASKS = ("has_tiles = syscall(SYS_arch_prctl, ASK, TILE_DATA) == 0;", "has_tiles = 1;")


def ran_in_tiles(check: Path, folder: Path, *wrong: tuple[str, str]) -> subprocess.CompletedProcess[str]:
    """The check of kernels whose tiles are emulated, with these places made `wrong`."""
    if not is_x86() or NEEDS["cooperlake"] not in Path("/proc/cpuinfo").read_text(encoding="utf-8"):
        pytest.skip("this processor has no AVX-512 with bf16")
    source = copied(folder, "products.h", *SHAPES)
    products = source.parent / "products.h"
    for before, after in (ASKS, *wrong):
        text = products.read_text()
        assert text.count(before) == 1
        products.write_text(text.replace(before, after))
    program = folder / "check"
    done = compiled("cooperlake", *EMULATED, "-o", str(program), "-lm", "-lpthread", check=check, source=source)
    assert done.returncode == 0, done.stderr
    return subprocess.run([program, "8"], capture_output=True, text=True, timeout=300)


@pytest.mark.full
@pytest.mark.parametrize(
    ("check", "passed"),
    [
        (CHECK, "passed: vectors of 64 bytes and tiles, 0 differences\n"),
        (PASSES_CHECK, "passed: up to 8 threads, 0 differences\n"),
    ],
    ids=["kernels", "passes"],
)
def test_products_in_emulated_tiles_are_right(check: Path, passed: str, tmp_path: Path) -> None:
    done = ran_in_tiles(check, tmp_path)
    assert (done.returncode, done.stdout) == (0, passed), done.stderr[:2000]


@pytest.mark.full
def test_a_wrong_product_in_emulated_tiles_is_found(tmp_path: Path) -> None:
    assert "linear" in ran_in_tiles(CHECK, tmp_path, ("_tile_dpbf16ps(3, 5, 7);", "_tile_dpbf16ps(3, 5, 6);")).stdout
