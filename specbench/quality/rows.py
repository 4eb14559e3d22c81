"""Scores as functions of totals over rows, so that a bootstrap over rows gives them intervals (Koehn 2004)."""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import sacrebleu
from numpy.typing import NDArray

ORDERS = 4  # n-grams that BLEU counts
_BLEU = sacrebleu.BLEU(effective_order=True)  # only its counts are used, which no option changes
_CHRF = sacrebleu.CHRF()
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


class RowScore(NamedTuple):
    """What one row of (text, reference) adds, and the score from 0 to 100 of totals [..., K] of that."""

    row: Callable[[str, str], list[float]]
    score: Callable[[NDArray[np.float64]], NDArray[np.float64]]


def columns_of(metric: str, texts: Sequence[str], references: Sequence[str]) -> NDArray[np.float64]:
    """The contribution of each row to the totals of `metric`: [rows, K]."""
    of_row = ROW_SCORES[metric].row
    return np.array([of_row(text, reference) for text, reference in zip(texts, references, strict=True)], float)


def _bleu_row(text: str, reference: str) -> list[float]:
    counted = _BLEU.sentence_score(text, [reference])
    return [*counted.counts, *counted.totals, counted.sys_len, counted.ref_len]


def _bleu(totals: NDArray[np.float64]) -> NDArray[np.float64]:
    def score(total: NDArray[np.float64]) -> float:
        counts, of, lengths = np.split(total.astype(int), [ORDERS, 2 * ORDERS])
        result = sacrebleu.BLEU.compute_bleu(counts.tolist(), of.tolist(), *lengths.tolist(), smooth_method="exp")
        return float(result.score)

    values: NDArray[np.float64] = np.apply_along_axis(score, -1, totals)
    return values


@lru_cache
def rouge(*kinds: str) -> Any:
    """rouge_score's scorer, with stemming, of "rouge1", "rouge2" or "rougeL"."""
    from rouge_score import rouge_scorer  # half a second, for its nltk

    return rouge_scorer.RougeScorer(kinds, use_stemmer=True)


def _rouge_row(text: str, reference: str) -> list[float]:
    return [100 * rouge("rougeL").score(reference, text)["rougeL"].fmeasure, 1.0]


def _mean(totals: NDArray[np.float64]) -> NDArray[np.float64]:
    values: NDArray[np.float64] = totals[..., 0] / totals[..., 1]
    return values


def _chrf_row(text: str, reference: str) -> list[float]:
    return [_CHRF.sentence_score(text, [reference]).score, 1.0]


def _exact_row(text: str, reference: str) -> list[float]:
    return [100.0 * (_plain(text) == _plain(reference)), 1.0]


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())


def _number_row(text: str, reference: str) -> list[float]:
    found, right = _last_number(text), _last_number(reference)
    return [100.0 * (found is not None and found == right), 1.0]


def _last_number(text: str) -> float | None:
    """The last number in a text, as GSM8K's answers end in theirs; commas between digits are of no meaning."""
    numbers = NUMBER.findall(text.replace(",", ""))
    return float(numbers[-1]) if numbers else None


ROW_SCORES = {
    "bleu": RowScore(_bleu_row, _bleu),
    "rouge": RowScore(_rouge_row, _mean),
    "chrf": RowScore(_chrf_row, _mean),
    "exact": RowScore(_exact_row, _mean),
    "number": RowScore(_number_row, _mean),
}
