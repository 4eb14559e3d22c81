"""`specbench fetch` prints sizes, fills the cache, and the same run then needs no network."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from specbench.cli import main
from tests.support.hub import SESSION, Hub, Outcome, run_all, serve

ROWS = b'{"prompt": "the dog sees"}\n{"prompt": "a cat runs under the tree"}\n'
RUN = ["device=cpu", "dtype=float32", "engine=eager", "max_new_tokens=4", "limit=2", "warmup=0"]
WORDS = ["target=owner/target", "draft=owner/draft", "task=owner/rows"]


@pytest.fixture(scope="module")
def outcomes(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Outcome], Hub, Path]:
    root = tmp_path_factory.mktemp("fetch")
    hub = Hub()
    hub.model("owner/target", folders["llama"])
    hub.repositories["models/owner/target"].files |= {"pytorch_model.bin": b"x", "original/x.pth": b"x", "a.md": b"x"}
    hub.model("owner/draft", folders["llama-draft"], commit="b" * 40)
    hub.model("owner/gated", folders["llama"], fault="gated")
    hub.dataset("owner/rows", {"test.jsonl": ROWS})
    commands = [["fetch", *WORDS, "--sizes"], ["fetch", *WORDS], ["fetch", "target=owner/gated", "draft=lookup"],
                ["fetch", "target=owner/target:none.gguf", "draft=lookup"]]  # fmt: skip
    with serve(hub):
        found = run_all(hub, root, commands)
    later = [["run", *WORDS, f"results={root}/r", *RUN], ["fetch", *WORDS]]
    done = subprocess.run(
        [sys.executable, "-c", SESSION], input=json.dumps(later),
        env={**os.environ, "HF_HOME": str(root), "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return [*found, *(Outcome(*one) for one in json.loads(done.stdout.splitlines()[-1]))], hub, root


def test_sizes_come_first_and_the_run_needs_no_network(outcomes: tuple[list[Outcome], Hub, Path]) -> None:
    sizes, fetched, gated, absent, offline, unreachable = outcomes[0]
    assert sizes.code == 0 and "model.safetensors" in sizes.out and "config.json" in sizes.out, sizes.err
    assert "pytorch_model.bin" not in sizes.out and "x.pth" not in sizes.out and "a.md" not in sizes.out
    assert "and the rows of owner/rows (test), of unknown size" in sizes.out + sizes.err
    assert fetched.code == 0 and "target: model.safetensors of owner/target" in fetched.err, fetched.err
    assert gated.code == 2 and "is gated: ask for access on its page on the hub, then log in" in gated.err
    assert absent.code == 2 and "owner/target has no file none.gguf (its GGUF files: none)" in absent.err
    assert offline.code == 0, offline.err
    assert unreachable.code == 1 and "the model hub cannot be reached" in unreachable.err


def test_what_ships_needs_no_network(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """`specbench fetch` of the default pair ended with 'the model hub cannot be reached'."""
    monkeypatch.setattr("specbench.hub.hub_is_reachable", lambda: False)
    assert main(["fetch"]) == 0
    assert "nothing to fetch: these models and rows are on this machine" in capfd.readouterr().out
