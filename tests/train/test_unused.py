"""A key of the command line that a training would ignore is refused."""

import pytest

from specbench.cli import main


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("recipe=gpt-mini-medusa heads.narrow=8", "heads.narrow: is not used here, for it is an option of hydra"),
        ("recipe=gpt-mini distill.greedy=.5", "distill.greedy: is not used here, for distill.target is not set"),
        ("recipe=gpt-mini-pard model.d_model=8", "model.d_model: is not used here, for model.start_from is set"),
    ],
)
@pytest.mark.parametrize("more", [["--dry-run"], []])
def test_a_key_that_training_ignores_is_refused(
    words: str, said: str, more: list[str], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specbench.train.recipe.train", lambda *_: pytest.fail("it was trained"))
    assert main(["train", *words.split(), "data.path=[rows.jsonl]", *more]) == 2
    err = capfd.readouterr().err
    assert err.startswith(f"specbench: {said}") and err.count("\n") == 1
