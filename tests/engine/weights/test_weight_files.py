"""Weights from files: mapped, brought to the device one by one, and the same in every format."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import T5Config, T5ForConditionalGeneration

from specbench.engine.weights.mapped_files import mapped_weights, weight_files
from specbench.errors import UserError
from tests.support.paths import ROOT
from tests.support.weights import read

CPU = torch.device("cpu")
FORMATS = ["safetensors", "shards", "zip", "before 1.6"]


def checkpoint(folder: Path, form: str, width: int = 32, layers: int = 1, vocabulary: int = 40) -> Any:
    """A T5 of random fp32 weights, saved in one of FORMATS."""
    torch.manual_seed(0)
    shape = {"d_model": width, "d_ff": 4 * width, "d_kv": 8, "num_heads": width // 8, "num_layers": layers}
    config = T5Config(vocab_size=vocabulary, decoder_start_token_id=0, **shape)
    network = T5ForConditionalGeneration(config)
    network.save_pretrained(folder, max_shard_size="20KB" if form == "shards" else "5GB")
    if form in ("zip", "before 1.6"):
        (folder / "model.safetensors").unlink()
        torch.save(network.state_dict(), folder / "pytorch_model.bin", _use_new_zipfile_serialization=form == "zip")
    return network


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("form", FORMATS)
def test_weights_are_those_that_were_saved(tmp_path: Path, form: str, dtype: torch.dtype) -> None:
    saved, found = checkpoint(tmp_path, form), read(tmp_path, CPU, dtype)
    assert len(weight_files(str(tmp_path), {})) == 1 or form == "shards"
    for name, weight in saved.state_dict().items():
        assert torch.equal(found.state_dict()[name], weight.to(dtype)), name
    assert found.generation_config.eos_token_id == 1 and found.shared.weight is found.lm_head.weight


def test_numbers_of_an_old_file_may_lie_anywhere(tmp_path: Path) -> None:
    """Names of different lengths shift the data by single bytes; views and other orders come out as they were."""
    base = torch.randn(7, 5)
    for shift in range(8):
        state = {"a" * (shift + 1): base, "view": base[2:4], "turned": base.t(), "whole": torch.tensor(3)}
        torch.save(state, tmp_path / "x.bin", _use_new_zipfile_serialization=False)
        found = mapped_weights([tmp_path / "x.bin"], CPU)
        assert all(torch.equal(found[name][...], tensor) for name, tensor in state.items())


def test_an_old_file_that_is_cut_off_or_runs_code_is_refused(tmp_path: Path) -> None:
    checkpoint(tmp_path, "before 1.6")
    file = tmp_path / "pytorch_model.bin"
    whole = file.read_bytes()
    file.write_bytes(whole[:-100])
    with pytest.raises(UserError, match="pytorch_model.bin is cut off"):
        read(tmp_path, CPU, torch.float32)
    torch.save({"a": Path("x")}, file, _use_new_zipfile_serialization=False)
    with pytest.raises(UserError, match="cannot be loaded"):
        read(tmp_path, CPU, torch.float32)


PEAK = """
import sys, threading, time, torch
from pathlib import Path
from transformers import AutoModelForSeq2SeqLM
from tests.support.weights import read

def anonymous():  # bytes in memory that no file backs
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("RssAnon")).split()[1])

def watch():
    global peak
    while True:
        peak = max(peak, anonymous())
        time.sleep(0.001)

read(Path(sys.argv[1]), torch.device("meta"), torch.bfloat16)  # what is imported and set up at the first time
before = peak = anonymous()
threading.Thread(target=watch, daemon=True).start()
read(Path(sys.argv[2]), torch.device("meta"), torch.bfloat16)
print(peak - before)
"""


@pytest.mark.full
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("form", ["safetensors", "zip", "before 1.6"])
def test_weights_do_not_gather_in_host_memory(tmp_path: Path, form: str) -> None:
    """On their way to another device, for which one without data stands, weights take up less than 1.2 times the
    largest tensor. A network that is loaded first and then moved takes up all of them, in bf16."""
    checkpoint(tmp_path / "small", form)
    network = checkpoint(tmp_path / "large", form, width=512, layers=4, vocabulary=4000)
    largest = max(weight.nbytes for weight in network.parameters())
    assert sum(weight.nbytes for weight in network.parameters()) > 8 * largest
    argv = [sys.executable, "-c", PEAK, str(tmp_path / "small"), str(tmp_path / "large")]
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        argv, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)}, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 1.2 * largest
