"""Quality of completions, without a network: by sacreBLEU and rouge_score themselves.

`evaluate` takes seconds to import, and `evaluate.load("sacrebleu")` fetches a script from the hub; `quality.metrics`
has the same scores as modules of `evaluate`.

Scores are functions of totals over rows, so that leaving each row out gives them intervals (`stats`).
"""

import re
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specbench.stats import Interval, over_rows


def quality(metric: str | None, predictions: Sequence[str], references: Sequence[str]) -> float | None:
    """The score of `predictions` from 0 to 100 by one of ROW_SCORES; None without a metric."""
    if metric is None or not predictions:
        return None
    return float(ROW_SCORES[metric].score(columns_of(metric, predictions, references).sum(axis=0)))


def quality_interval(metric: str, predictions: Sequence[str], references: Sequence[str]) -> Interval:
    """The score with its interval over rows."""
    return over_rows(columns_of(metric, predictions, references), ROW_SCORES[metric].score, scale="difference")


def quality_difference(
    metric: str, predictions: Sequence[str], others: Sequence[str], references: Sequence[str]
) -> Interval:
    """The score of `predictions` less the score of `others`, with its jackknife interval over rows, paired by row."""
    score = ROW_SCORES[metric].score
    pair = [columns_of(metric, texts, references) for texts in (predictions, others)]
    columns_NK = np.concatenate(pair, axis=1)
    half = pair[0].shape[1]
    return over_rows(columns_NK, lambda t: score(t[..., :half]) - score(t[..., half:]), scale="difference")


ORDERS = 4  # n-grams that BLEU counts
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


class RowScore(NamedTuple):
    """The contribution of one row of (text, reference), and the score from 0 to 100 of their totals [..., K]."""

    row: Callable[[str, str], list[float]]
    score: Callable[[NDArray[np.float64]], NDArray[np.float64]]


def columns_of(metric: str, texts: Sequence[str], references: Sequence[str]) -> NDArray[np.float64]:
    """The contribution of each row to the totals of `metric`: [rows, K]."""
    of_row = ROW_SCORES[metric].row
    return np.array([of_row(text, reference) for text, reference in zip(texts, references, strict=True)], float)


@cache
def _sacrebleu(kind: str, **options: bool) -> Any:
    """sacreBLEU's metric "BLEU" or "CHRF"."""
    import sacrebleu  # a tenth of a second

    return getattr(sacrebleu, kind)(**options)


def _bleu_row(text: str, reference: str) -> list[float]:
    # Only its counts are used, which no option changes.
    counted = _sacrebleu("BLEU", effective_order=True).sentence_score(text, [reference])
    return [*counted.counts, *counted.totals, counted.sys_len, counted.ref_len]


def _bleu(totals: NDArray[np.float64]) -> NDArray[np.float64]:
    def score(total: NDArray[np.float64]) -> float:
        counts, of, lengths = np.split(total.astype(int), [ORDERS, 2 * ORDERS])
        result = _sacrebleu("BLEU").compute_bleu(counts.tolist(), of.tolist(), *lengths.tolist(), smooth_method="exp")
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
    """chrF by sacreBLEU (Popovic 2015)."""
    return [_sacrebleu("CHRF").sentence_score(text, [reference]).score, 1.0]


def _exact_row(text: str, reference: str) -> list[float]:
    """Whether a completion equals the reference, ignoring case and white space."""
    return [100.0 * (_plain(text) == _plain(reference)), 1.0]


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())


def _number_row(text: str, reference: str) -> list[float]:
    """Whether the last number of a completion is the reference's, as in GSM8K."""
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
