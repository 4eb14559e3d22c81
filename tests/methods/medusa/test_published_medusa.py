"""Checkpoints in Medusa's own layout: written by these tests with random weights, read, and computed a second time by
plain code; a checkpoint that does not fit is a one-line error."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from specbench.errors import UserError
from specbench.methods.medusa.draft import PublishedMedusa, is_published
from tests.support.medusa_files import WIDTH, write
from tests.support.networks import network


@pytest.mark.parametrize(
    ("kind", "layers", "output"), [("pt", 1, True), ("old pt", 2, True), ("safetensors", 2, True), ("pt", 1, False)]
)
def test_a_published_checkpoint_gives_the_logits_of_plain_code(
    kind: str, layers: int, output: bool, tmp_path: Path
) -> None:
    state, own = write(tmp_path, kind, layers, output), network("llama", 4)
    assert is_published(str(tmp_path), {}, "draft")
    heads = PublishedMedusa.load(str(tmp_path), {}, own, "draft")
    assert heads.later == 3
    states = torch.randn(5, WIDTH)
    found = heads.logits(states, slice(None), own.get_output_embeddings())
    for head in range(3):
        for row in range(5):
            h = states[row]
            for layer in range(layers):
                h = h + F.silu(state[f"{head}.{layer}.linear.weight"] @ h + state[f"{head}.{layer}.linear.bias"])
            last = state[f"{head}.{layers}.weight"] if output else own.get_output_embeddings().weight
            assert torch.allclose(found[head, row], last @ h, atol=1e-4)


class Harmful:
    def __reduce__(self) -> Any:
        return print, ("this was run",)


def test_what_does_not_fit_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    own = network("llama", 4)

    def refused() -> str:
        with pytest.raises(UserError) as raised:
            PublishedMedusa.load(str(tmp_path), {}, own, "draft")
        return str(raised.value)

    write(tmp_path, width=48)
    assert "are for a target of width 48; this has 32" in refused()
    write(tmp_path, rows=70)
    assert "predict 70 tokens; this target's vocabulary has 64" in refused()
    (tmp_path / "medusa_lm_head.pt").write_bytes(pickle.dumps(Harmful()))
    assert "medusa_lm_head.pt of" in refused() and "cannot be read" in refused()
    assert "this was run" not in capfd.readouterr().out
    torch.save({"embed.weight": torch.zeros(2)}, tmp_path / "medusa_lm_head.pt")
    assert "has a tensor embed.weight" in refused()
    torch.save({"0.0.linear.weight": torch.zeros(WIDTH, WIDTH)}, tmp_path / "medusa_lm_head.pt")
    assert "has no tensor 0.0.linear.bias" in refused()
    for taken in (
        "1.1.weight",
        "2.0.linear.weight",
        "0.0.linear.bias",
    ):  # its output would be the target's, or a block less
        state = write(tmp_path)
        torch.save({name: tensor for name, tensor in state.items() if name != taken}, tmp_path / "medusa_lm_head.pt")
        assert f"has no tensor {taken}" in refused()
    (tmp_path / "medusa_lm_head.pt").unlink()
    assert "has no medusa_lm_head.safetensors or medusa_lm_head.pt" in refused()
    (tmp_path / "config.json").write_text("{}")
    assert not is_published(str(tmp_path), {}, "draft")
