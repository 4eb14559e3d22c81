"""Quality of completions: `evaluate` metrics that work without a network.

`evaluate.load('sacrebleu')` fetches a script from the hub; these are the same metrics as modules of this package.
"""

import tempfile
from collections.abc import Sequence

import numpy as np

from specbench.stats import Interval, bootstrap

RESAMPLES = 1000


def quality(metric: str | None, predictions: Sequence[str], references: Sequence[str]) -> float | None:
    """The score of `predictions` from 0 to 100 by one of METRICS (`quality.metrics`); None without a metric."""
    if metric is None or not predictions:
        return None
    from specbench.quality.metrics import METRICS  # `evaluate` takes seconds to import

    # In memory, with a folder of its own: the cache of `evaluate` lies in a home that may not be writable.
    with tempfile.TemporaryDirectory() as folder:
        module = METRICS[metric](cache_dir=folder, keep_in_memory=True)
        scores = module.compute(predictions=list(predictions), references=list(references))
    return float(scores["score"])


def quality_interval(metric: str, predictions: Sequence[str], references: Sequence[str]) -> Interval:
    """The score with its interval over rows."""
    from specbench.quality.rows import ROW_SCORES, columns_of

    return bootstrap(columns_of(metric, predictions, references), ROW_SCORES[metric].score, RESAMPLES, seed=0)


def quality_difference(
    metric: str, predictions: Sequence[str], others: Sequence[str], references: Sequence[str]
) -> Interval:
    """The score of `predictions` less that of `others`, with its interval over rows: each row is drawn for both."""
    from specbench.quality.rows import ROW_SCORES, columns_of

    score = ROW_SCORES[metric].score
    pair = [columns_of(metric, texts, references) for texts in (predictions, others)]
    columns_NK = np.concatenate(pair, axis=1)
    half = pair[0].shape[1]
    return bootstrap(columns_NK, lambda t: score(t[..., :half]) - score(t[..., half:]), RESAMPLES, seed=0)
