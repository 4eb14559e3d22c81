"""The check of a library that was just compiled: wrong kernels are found, named and not used."""

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specbench import kernels
from specbench.engine.selection import with_engine
from specbench.errors import UserError
from specbench.kernels import NotCompiled, check, library
from tests.support.quick_kernels import QUICK

pytestmark = pytest.mark.skipif(not kernels.is_available(), reason="there is no C compiler")


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """An empty cache, kernels that are compiled in a tenth of the time, and both forgotten after the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(kernels, "FLAGS", QUICK)
    kernels.found.cache_clear()
    yield
    kernels.found.cache_clear()


WRONG = {  # where a kernel is made wrong, and how the check names it
    "a product's last input": (
        "products.h", "i < even; i++)\n        UNROLLED for (int b", "i < even - 2; i++)\n        UNROLLED for (int b",
        "linear maps",
    ),
    "a short product's last input": (
        "products.h", "i < even; i += SHORT_STEP)", "i < even - 2; i += SHORT_STEP)", "linear maps",
    ),
    "levels without their scale": (
        "level_scales.h", "(vec)(words << 16)", "(vec){0} + 1.0f", "linear maps of rounded weights",
    ),
    "attention's scale": (
        "attention.h", "(float)it->scale, 0);", "2 * (float)it->scale, 0);", "attention's rows",
    ),
    "attention by blocks": (
        "blocks.h", "float before = factors[r], now", "float before = 1, now", "attention's rows",
    ),
    "a temperature": ("rows.h", "factor = 1 / (float)how->temperature;", "factor = 1;", "standardised rows"),
    "an argmax": ("rows.h", "if (most != most) return NOT_DRAWN;", "if (n < 9) return NOT_DRAWN;", "standardised rows"),
    "a sum, as GCC 12 made it for SVE": (
        "vectors.h", "    return total;\n", "    return count == 7 ? 0 : total;\n", "standardised rows",
    ),
    "draws": ("rows.h", "before += v[i], found = i;", "before += v[i], found = end - 1;", "draws"),
    "acceptance": (
        "verdicts.h", "return r * q_of(of, g) < p;", "return r * q_of(of, g) < 1.2f * p;", "verdicts on a proposal",
    ),
    "the residual": (
        "verdicts.h", "of->room[i] = excess > 0 ? excess : 0;", "of->room[i] = mass;", "draws from the residual",
    ),
}  # fmt: skip


def plant(fault: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> str:
    """Make one place of the sources another; returns how the check names it."""
    name, before, after, named = WRONG[fault]
    for file in kernels.SOURCE.parent.glob("*.[ch]"):
        shutil.copy(file, folder)
    text = (folder / name).read_text()
    assert text.count(before) == 1
    (folder / name).write_text(text.replace(before, after))
    monkeypatch.setattr(kernels, "SOURCE", folder / kernels.SOURCE.name)
    return named


@pytest.mark.covering(most=3)
@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_kernel_is_found_and_named(fault: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    named = plant(fault, monkeypatch, tmp_path)
    with pytest.raises(NotCompiled, match=f"are not used, since {named} differ from plain loops on this machine \\("):
        library()


def test_right_kernels_pass_in_a_moment_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found = library()
    took = []
    for _ in range(5):
        began = time.thread_time()
        assert check.fault_of(found) is None
        took.append(time.thread_time() - began)
    assert min(took) < 0.05
    monkeypatch.setattr(check, "fault_of", lambda _: pytest.fail("checked again"))
    kernels.found.cache_clear()
    assert library().packed_size(8, 8) > 0


def network() -> LlamaForCausalLM:
    torch.manual_seed(5)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=64, num_key_value_heads=2, max_position_embeddings=128, pad_token_id=0, **sizes)
    return LlamaForCausalLM(config).eval()


def test_without_right_kernels_static_runs_and_native_is_one_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What was found is kept: another process does not compile."""
    plant("draws", monkeypatch, tmp_path)
    model = with_engine("auto", network(), 64, frozenset({1}))
    assert model.engine == "static" and "since draws differ" in str(model.report.fell_back)
    kernels.found.cache_clear()
    monkeypatch.setattr(kernels, "_compile", lambda *_: pytest.fail("compiled again"))
    with pytest.raises(
        UserError, match="^engine=native: the kernels .* draws differ .*; use engine=auto or engine=eager$"
    ):
        with_engine("native", network(), 64, frozenset({1}))


def test_a_compiler_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "gcc-of-nowhere -m64")
    with pytest.raises(NotCompiled, match=r"^CC=gcc-of-nowhere -m64: there is no such program$"):
        library()
    monkeypatch.setenv("CC", " ")  # as if it were not set
    kernels.found.cache_clear()
    assert library().packed_size(8, 8) > 0


REFUSES = """#!/bin/sh
case " $* " in *" {refused} "*) echo "{said}" >&2; exit 1;; esac
for word; do shift; [ "$word" = -mcpu=native ] && touch "$0.tuned" || set -- "$@" "$word"; done
exec {compiler} "$@"
"""


@pytest.mark.parametrize(
    ("refused", "said"),
    [
        ("-march=native", "error: unsupported argument 'native' to option '-march='"),  # some clangs for Arm
        ("-fopenmp", "vectors.h:11:10: fatal error: 'omp.h' file not found"),  # clang without the package of its OpenMP
        ("-fopenmp", "/usr/bin/ld: cannot find -lomp: No such file or directory"),
    ],
    ids=["tuned by -mcpu", "no header of OpenMP", "no library of OpenMP"],
)
def test_an_option_that_a_compiler_lacks_costs_no_kernels(
    refused: str, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiler = tmp_path / "compiler"
    own = next(filter(None, map(shutil.which, kernels.COMPILERS)))
    compiler.write_text(REFUSES.format(refused=refused, said=said, compiler=own))
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    assert library().packed_size(8, 8) > 0
    assert (tmp_path / "compiler.tuned").exists() is (refused == "-march=native")


def test_what_was_found_counts_for_this_library_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The file beside it may be another's, or of a library that was replaced."""
    library()
    (beside,) = (tmp_path / "specbench").glob("*.checked")
    asked: list[int] = []
    monkeypatch.setattr(check, "fault_of", lambda _: asked.append(1))
    for change in (lambda: beside.write_text("0" * 64 + "\n"), lambda: os.chmod(beside, 0o666), beside.unlink):
        change()
        kernels.found.cache_clear()
        library()
    assert len(asked) == 3
