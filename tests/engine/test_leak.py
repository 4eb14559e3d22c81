"""Decoding many prompts does not take more and more memory."""

import subprocess
import sys

import pytest

CODE = """
import sys
from pathlib import Path
from transformers import AutoModelForSeq2SeqLM
import torch
from specbench.algorithm.decoding import DecodingSpec, speculative
from specbench.algorithm.acceptance.rules.exact import accept_exact
from specbench.config.paths import shipped
from specbench.engine.selection import with_engine
from specbench.engine.session import Prompt
from specbench.methods.model.draft import ModelDraft
from specbench.sampling import Sampling

def model(name):
    network = AutoModelForSeq2SeqLM.from_pretrained(shipped("models", name))
    return with_engine(sys.argv[1], network, network.config.vocab_size, frozenset({1}))

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

target, draft = model("t5-mini"), model("t5-nano")
spec = DecodingSpec.algorithm_1(Sampling(1.0), 24, 3)
leaked, after = [], {}
for number in range(50):
    generator = torch.Generator().manual_seed(number)
    source = torch.randint(3, 4000, (20 + number % 5,), generator=generator).tolist()
    speculative(target, ModelDraft(draft, draft.vocabulary_size), Prompt(tuple(source), (0,)), spec, generator)
    if len(sys.argv) > 2:
        leaked.append(bytearray(5 * 2**20))
    after[number] = resident()
print((after[49] - after[19]) / 30 / 2**20)
"""
MOST_MB = 1.0  # a prompt


def growth(*words: str) -> float:
    done = subprocess.run([sys.executable, "-c", CODE, *words], capture_output=True, text=True, check=True)
    return float(done.stdout.splitlines()[-1])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("engine", ["auto", pytest.param("eager", marks=pytest.mark.full)])
def test_memory_does_not_grow_from_prompt_to_prompt(engine: str) -> None:
    assert growth(engine) < MOST_MB


@pytest.mark.full
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_leak_of_5_mb_a_prompt_is_found() -> None:
    assert growth("auto", "leak") > MOST_MB
