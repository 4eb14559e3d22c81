"""How good the texts are: `evaluate` metrics that work with no network.

`evaluate.load('sacrebleu')` fetches a script from the hub; these are the same metrics as modules of this package.
"""

from collections.abc import Sequence

RESAMPLES = 1000


def quality(metric: str | None, predictions: Sequence[str], references: Sequence[str]) -> float | None:
    """The score of `predictions` from 0 to 100: 'bleu' is sacreBLEU, 'rouge' is ROUGE-L. None without a metric."""
    if metric is None or not predictions:
        return None
    from specbench.quality.metrics import METRICS  # `evaluate` takes seconds to import

    scores = METRICS[metric]().compute(predictions=list(predictions), references=list(references))
    return float(scores["score"])


def quality_interval(metric: str, predictions: Sequence[str], references: Sequence[str]) -> tuple[float, float, float]:
    """The score, and its 95% interval by bootstrap over rows (Koehn 2004): (score, low, high)."""
    from specbench.quality.metrics import METRICS

    told = {"predictions": list(predictions), "references": list(references), "resamples": RESAMPLES}
    scores = METRICS[metric]().compute(**told)
    return float(scores["score"]), float(scores["low"]), float(scores["high"])
