"""BLEU and ROUGE without a network."""

from pathlib import Path

import numpy as np
import pytest

import specbench
from specbench.cli import main
from specbench.files import user_cache
from specbench.quality import ROW_SCORES, quality, quality_difference, quality_interval


def test_bleu_is_sacrebleu() -> None:
    text = ["Der alte Hund sieht ein rotes Haus unter dem Baum ."]
    assert quality("bleu", text, text) == pytest.approx(100)
    assert quality("bleu", ["ganz etwas anderes steht hier"], text) < 10


def test_rouge_is_rouge_l() -> None:
    assert quality("rouge", ["the cat sat"], ["the cat sat"]) == pytest.approx(100)
    # longest common subsequence 2 of 3 and 4 words: F = 2 * (2/3 * 2/4) / (2/3 + 2/4)
    assert quality("rouge", ["the cat sat"], ["the big cat slept"]) == pytest.approx(57.14, abs=0.01)


@pytest.mark.parametrize("metric", ROW_SCORES)
def test_scores_are_those_of_evaluate(metric: str, tmp_path: Path) -> None:
    from specbench.quality.metrics import METRICS

    texts, references = _texts(0, 0.3)
    module = METRICS[metric](cache_dir=str(tmp_path), keep_in_memory=True)
    expected = module.compute(predictions=texts, references=references)["score"]
    assert quality(metric, texts, references) == pytest.approx(expected, rel=1e-12)


def test_a_user_without_a_home_has_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    assert user_cache().is_absolute()


def test_the_functions_of_the_package_are_offered() -> None:
    assert {"run", "alpha", "recommend", "__version__"} <= set(dir(specbench))


def test_no_metric_no_score() -> None:
    assert quality(None, ["a"], ["b"]) is None


WORDS = ["der", "alte", "Hund", "sieht", "ein", "Haus", "unter", "dem", "Baum", "und", "geht", "dann", "nach", "oben"]


def _texts(seed: int, changed: float) -> tuple[list[str], list[str]]:
    """Thirty references, and the same with a share of the words exchanged."""
    generator = np.random.default_rng(seed)
    references = [generator.choice(WORDS, 12).tolist() for _ in range(30)]
    texts = [[w if generator.random() > changed else str(generator.choice(WORDS)) for w in row] for row in references]
    return [" ".join(text) for text in texts], [" ".join(row) for row in references]


@pytest.mark.parametrize("metric", ["bleu", "rouge"])
def test_intervals_are_around_the_metric_itself(metric: str) -> None:
    texts, references = _texts(0, changed=0.3)
    found = quality_interval(metric, texts, references)
    assert found.value == pytest.approx(quality(metric, texts, references))
    assert found.low < found.value < found.high


@pytest.mark.parametrize("metric", ["bleu", "rouge"])
def test_differences_are_paired(metric: str) -> None:
    """Two samples of one quality are not told apart; a worse one is, though each interval alone holds both scores."""
    texts, references = _texts(0, changed=0.2)
    worse = [text if row % 3 else " ".join(text.split()[:-2]) for row, text in enumerate(texts)]
    lost = quality_difference(metric, worse, texts, references)
    assert lost.value == pytest.approx(quality(metric, worse, references) - quality(metric, texts, references))
    assert lost.high < 0
    alone = quality_interval(metric, texts, references)
    assert alone.low < quality(metric, worse, references) < alone.high
    same = quality_difference(metric, texts, texts, references)
    assert (same.value, same.low, same.high) == (0.0, 0.0, 0.0)


@pytest.mark.full
def test_a_failure_of_a_metric_costs_no_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("the library's own fault")

    monkeypatch.setattr("specbench.experiment.record.quality_difference", fails)
    with pytest.warns(UserWarning, match="task.metric=bleu: the completions are not scored: the library's own fault"):
        ran = specbench.run(draft="random", gamma=1, limit=1, max_new_tokens=2, results=str(tmp_path))
    assert ran.record["summary"]["quality_metric"] is None and len(ran.record["prompts"]) == 1


@pytest.mark.full
def test_keys_without_effect_and_references_without_a_metric_are_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "The dog sleeps.", "reference": "Der Hund schläft."}\n')
    words = [
        "draft=random",
        "gamma=1",
        f"task={rows}",
        "task.reference_field=reference",
        "max_new_tokens=2",
        f"results={tmp_path}",
    ]
    assert main(["run", *words, "max_new_tokens=2", "sampling.top_p=.9"]) == 0
    said = " ".join(capfd.readouterr().err.split())
    assert "sampling.top_p=0.9: changes nothing at sampling.temperature=0" in said
    assert "the references are not scored: task.metric is not set" in said


def test_a_slip_leaves_no_record(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "The dog sleeps."}\n')
    assert main(["run", f"task={rows}", "draft=bigram", f"results={tmp_path}"]) == 2
    assert not list(tmp_path.glob("runs/*.json"))
