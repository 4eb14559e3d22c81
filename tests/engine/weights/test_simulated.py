"""Times without checkpoints: random weights in a true shape, and acceptance at random at a given alpha."""

import json
from pathlib import Path

import pytest
import torch

from specbench.algorithm.acceptance.rules.exact import AcceptByChance
from specbench.cli import main
from specbench.engine.weights.random_weights import config_of, random_network
from specbench.errors import UserError
from specbench.records import store
from specbench.theory import expected_tokens

SMALL = {
    "model_type": "t5", "d_model": 16, "d_kv": 8, "d_ff": 32, "num_heads": 2, "num_layers": 2, "num_decoder_layers": 2,
    "vocab_size": 40, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "decoder_start_token_id": 0,
    "pad_token_id": 0,
}  # fmt: skip


def run(folder: Path, *overrides: str, verb: str = "run") -> tuple[int, dict[str, object]]:
    rows = folder / "rows.jsonl"
    rows.write_text("\n".join(f'{{"en": "a sentence {i} here", "de": "ein satz {i} hier"}}' for i in range(4)) + "\n")
    argv = [
        verb,
        "task=ende",
        f"task.path={rows}",
        f"results={folder}",
        "dtype=float32",
        "device=cpu",
        "engine=eager", "warmup=1",
    ]  # fmt: skip
    code = main([*argv, *overrides])
    files = list(store.runs_folder(folder).glob("*.json"))
    return code, store.read(files[0])["summary"] if files else {}


@pytest.mark.full
def test_random_weights_at_a_given_alpha(tmp_path: Path) -> None:
    (tmp_path / "conf" / "target").mkdir(parents=True)
    choice = {"name": "small", "weights": "random", "architecture": SMALL}
    (tmp_path / "conf" / "target" / "small.yaml").write_text(json.dumps(choice))  # a choice of the user's own
    (tmp_path / "conf" / "draft").mkdir()
    (tmp_path / "conf" / "draft" / "small.yaml").write_text(json.dumps(choice))
    picked = ["--config-dir", str(tmp_path / "conf")]  # goes last
    code, summary = run(
        tmp_path, "target=small", "draft=small", "simulate.alpha=0.75", "gamma=3", "max_new_tokens=200", *picked
    )  # fmt: skip
    assert code == 0
    assert summary["simulated"] is True
    assert summary["alpha"] == 0.75
    assert summary["identical"] is None and summary["quality_metric"] is None
    assert summary["tokens"] == 4 * 200  # no text ends early
    # 800 tokens: the standard error of tokens per pass is about 0.08.
    assert summary["tokens_per_pass"] == pytest.approx(expected_tokens(0.75, 3), abs=0.35)
    assert summary["speedup_measured"] is not None


@pytest.mark.full
@pytest.mark.parametrize("verb", ["run", "sweep"])
def test_the_screen_says_that_alpha_was_chosen(
    tmp_path: Path, folders: dict[str, Path], capfd: pytest.CaptureFixture[str], verb: str
) -> None:
    keys = (
        f"target.path={folders['t5']}", f"draft.path={folders['t5-draft']}", "simulate.alpha=0.7", "gamma=3",
        "max_new_tokens=8",
    )  # fmt: skip
    code, _ = run(tmp_path, *keys, verb=verb)
    out, err = capfd.readouterr()
    assert code == 0
    assert "SIMULATED: drafted tokens were accepted by chance at simulate.alpha=0.7" in (out if verb == "run" else err)
    if verb == "run":
        first, (alpha,) = out.splitlines()[0], [line for line in out.splitlines() if line.startswith("α")]
        assert "SIMULATED, T=0" in first and "not measured" in alpha and "[" not in alpha
    assert run(tmp_path, *keys, verb="run")[0] == 0
    assert "SIMULATED" in capfd.readouterr().out  # a record that was there already says it too


@pytest.mark.full
def test_trained_weights_at_a_given_alpha(tmp_path: Path, folders: dict[str, Path]) -> None:
    code, summary = run(
        tmp_path, f"target.path={folders['t5']}", f"draft.path={folders['t5-draft']}", "simulate.alpha=1", "gamma=3",
        "max_new_tokens=17",
    )  # fmt: skip
    assert code == 0
    assert summary["simulated"] is True
    assert summary["passes"] == 4 * 5  # 4 + 4 + 4 + 4 tokens, and the last one


@pytest.mark.full
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["target.weights=random"], "weights=random: alpha of random weights means nothing"),
        (["target.weights=odd"], "target.weights=odd: must be trained | random"),
        (["simulate.alpha=1.5"], "simulate.alpha=1.5: must be from 0 to 1"),
        (
            ["+target.architecture.d_model=8"],
            "target.weights=trained: must be random where target.architecture is given",
        ),
    ],
)
def test_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str], overrides: list[str], message: str) -> None:
    code, _ = run(tmp_path, *overrides)
    assert code == 2
    assert message in capfd.readouterr().err


def test_chance_accepts_as_often_as_asked() -> None:
    generator = torch.Generator().manual_seed(3)
    p_GV = torch.full((5, 8), 1 / 8)
    q_GV = torch.full((4, 8), 1 / 8)
    accepted = [AcceptByChance(0.6)(p_GV, q_GV, [1, 2, 3, 4], generator).accepted for _ in range(4000)]
    # The mean is 1.306 with a standard deviation of 1.4: four standard errors are 0.09.
    assert sum(accepted) / 4000 == pytest.approx(expected_tokens(0.6, 4) - 1, abs=0.09)


def test_a_shape_holds_what_the_constructor_would_change() -> None:
    config = config_of({**SMALL, "scale_decoder_outputs": False}, "target")
    assert config.tie_word_embeddings is False and config.scale_decoder_outputs is False
    made = random_network(config, torch.bfloat16, torch.device("cpu"))
    assert made.dtype == torch.bfloat16
    assert made.lm_head.weight.data_ptr() != made.shared.weight.data_ptr()
    with pytest.raises(UserError, match=r"target\.architecture: "):
        config_of({"model_type": "nosuch"}, "target")
