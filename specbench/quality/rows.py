"""Scores as functions of totals over rows, so that a bootstrap over rows gives them intervals (Koehn 2004)."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import sacrebleu
from numpy.typing import NDArray
from rouge_score import rouge_scorer

ORDERS = 4  # n-grams that BLEU counts
_BLEU = sacrebleu.BLEU(effective_order=True)  # only its counts are used, which no option changes
_ROUGE = rouge_scorer.RougeScorer(["rougeL"], use_stemmer=True)


class RowScore(NamedTuple):
    """What one row of (text, reference) adds, and the score from 0 to 100 of totals [..., K] of that."""

    row: Callable[[str, str], list[float]]
    score: Callable[[NDArray[np.float64]], NDArray[np.float64]]


def columns_of(metric: str, texts: Sequence[str], references: Sequence[str]) -> NDArray[np.float64]:
    """What each row adds to the totals of `metric`: [rows, K]."""
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


def _rouge_row(text: str, reference: str) -> list[float]:
    return [100 * _ROUGE.score(reference, text)["rougeL"].fmeasure, 1.0]


def _rouge(totals: NDArray[np.float64]) -> NDArray[np.float64]:
    values: NDArray[np.float64] = totals[..., 0] / totals[..., 1]
    return values


ROW_SCORES = {"bleu": RowScore(_bleu_row, _bleu), "rouge": RowScore(_rouge_row, _rouge)}
