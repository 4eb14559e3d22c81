"""Quality while training: BLEU of greedy outputs, in the form the Trainer asks for.

It does not know how the outputs were made.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import sacrebleu
from transformers import EvalPrediction, PreTrainedTokenizerFast


def bleu_metric(tokenizer: PreTrainedTokenizerFast) -> Callable[[EvalPrediction], dict[str, float]]:
    """A `compute_metrics` that decodes both sides and returns sacreBLEU."""

    def metric(prediction: EvalPrediction) -> dict[str, float]:
        pad = tokenizer.pad_token_id
        outputs = np.where(prediction.predictions < 0, pad, prediction.predictions)
        labels = np.where(prediction.label_ids < 0, pad, prediction.label_ids)
        written = tokenizer.batch_decode(outputs, skip_special_tokens=True)
        wanted = tokenizer.batch_decode(labels, skip_special_tokens=True)
        return {"bleu": sacrebleu.corpus_bleu(written, [wanted]).score}

    return metric
