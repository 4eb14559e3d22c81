"""BLEU and ROUGE as `evaluate` metric modules: sacreBLEU's corpus score, and rouge_score's F-measures."""

import datasets
import evaluate
import sacrebleu
from rouge_score import rouge_scorer

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
        scorer = rouge_scorer.RougeScorer(kinds, use_stemmer=True)
        rows = [scorer.score(reference, text) for reference, text in zip(references, predictions, strict=True)]
        means = {kind: 100 * sum(row[kind].fmeasure for row in rows) / len(rows) for kind in kinds}
        return {"score": means["rougeL"], **means}


METRICS: dict[str, type[evaluate.Metric]] = {"bleu": Bleu, "rouge": Rouge}
