"""BLEU and ROUGE as `evaluate` metric modules: sacreBLEU's corpus score, and rouge_score's F-measures."""

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
    """The mean over rows of a score from 0 to 100 of `quality.rows`."""

    metric = ""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=f"mean {self.metric} over rows, 0 to 100", citation="", features=_FEATURES
        )

    def _compute(self, predictions: list[str], references: list[str]) -> dict[str, float]:
        scores = columns_of(self.metric, predictions, references)[:, 0]
        return {"score": float(scores.mean())}


class Chrf(Mean):
    """chrF by sacreBLEU (Popovic 2015), mean over rows."""

    metric = "chrf"


class Exact(Mean):
    """Share of completions that equal the reference, ignoring case and white space."""

    metric = "exact"


class Number(Mean):
    """Share of completions whose last number is the reference's, as in GSM8K."""

    metric = "number"


METRICS: dict[str, type[evaluate.Metric]] = {
    "bleu": Bleu, "rouge": Rouge, "chrf": Chrf, "exact": Exact, "number": Number,
}  # fmt: skip
