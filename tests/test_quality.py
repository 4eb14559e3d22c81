"""BLEU and ROUGE without a network."""

import pytest

from specbench.quality import quality


def test_bleu_is_sacrebleu() -> None:
    text = ["Der alte Hund sieht ein rotes Haus unter dem Baum ."]
    assert quality("bleu", text, text) == pytest.approx(100)
    assert quality("bleu", ["ganz etwas anderes steht hier"], text) < 10


def test_rouge_is_rouge_l() -> None:
    assert quality("rouge", ["the cat sat"], ["the cat sat"]) == pytest.approx(100)
    # longest common subsequence 2 of 3 and 4 words: F = 2 * (2/3 * 2/4) / (2/3 + 2/4)
    assert quality("rouge", ["the cat sat"], ["the big cat slept"]) == pytest.approx(57.14, abs=0.01)


def test_no_metric_no_score() -> None:
    assert quality(None, ["a"], ["b"]) is None
