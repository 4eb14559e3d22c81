"""BLEU and ROUGE as `evaluate` metric modules: sacreBLEU's corpus score, and rouge_score's F-measures.

`evaluate` takes seconds to import, so runs use `quality`; `METRICS[name]().compute(predictions=..., references=...)`
gives the same.
"""

from collections.abc import Callable
from functools import partial

import datasets
import evaluate
import sacrebleu

from specbench.quality import columns_of, rouge

_FEATURES = datasets.Features({"predictions": datasets.Value("string"), "references": datasets.Value("string")})


class Bleu(evaluate.Metric):
    """sacreBLEU (13a tokens, exponential smoothing), as WMT scores are quoted."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description="corpus BLEU by sacreBLEU, 0 to 100",
            citation="Post 2018, A Call for Clarity in Reporting BLEU Scores",
            features=_FEATURES,
        )

    def _compute(self, predictions: list[str], references: list[str]) -> dict[str, float]:
        result = sacrebleu.BLEU().corpus_score(predictions, [references])
        return {"score": result.score, "brevity_penalty": result.bp}


class Rouge(evaluate.Metric):
    """ROUGE F-measures with stemming, means over rows; `score` is ROUGE-L."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description="ROUGE-1, ROUGE-2 and ROUGE-L by rouge_score, 0 to 100",
            citation="Lin 2004, ROUGE: A Package for Automatic Evaluation of Summaries",
            features=_FEATURES,
        )

    def _compute(self, predictions: list[str], references: list[str]) -> dict[str, float]:
        kinds = ("rouge1", "rouge2", "rougeL")
        scorer = rouge(*kinds)
        rows = [scorer.score(reference, text) for reference, text in zip(references, predictions, strict=True)]
        means = {kind: 100 * sum(row[kind].fmeasure for row in rows) / len(rows) for kind in kinds}
        return {"score": means["rougeL"], **means}


class Mean(evaluate.Metric):
    """The mean over rows of the score `config_name`, from 0 to 100 (`quality.ROW_SCORES`)."""

    def _info(self) -> evaluate.MetricInfo:
        description = f"mean {self.config_name} over rows, 0 to 100"
        return evaluate.MetricInfo(description=description, citation="", features=_FEATURES)

    def _compute(self, predictions: list[str], references: list[str]) -> dict[str, float]:
        return {"score": float(columns_of(self.config_name, predictions, references)[:, 0].mean())}


METRICS: dict[str, Callable[..., evaluate.Metric]] = {
    "bleu": Bleu,
    "rouge": Rouge,
    **{name: partial(Mean, config_name=name) for name in ("chrf", "exact", "number")},
}
