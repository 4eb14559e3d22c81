"""Read many hypotheses of one prompt in one run of a model, for beam search.

The network runs eagerly, whatever engine the model has, over a growing cache with a row for each hypothesis. The row
that a new hypothesis can reuse, and how much of it, is found by comparing tokens, so no beam indices can go wrong.

Shapes: N hypotheses to read, R rows in the cache, L new positions, M hypotheses asked for, V logits of the head.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache, EncoderDecoderCache

from specbench.engine.eager.model import EagerModel
from specbench.engine.session import Prompt

TokenSequence = tuple[int, ...]
PADDING = -1


class PrefixBatch:
    """A model's cache of the hypotheses that it read last. Each begins with the prompt's prefix."""

    def __init__(self, model: EagerModel, prompt: Prompt) -> None:
        """The encoder runs once; a decoder-only model reads all of the prompt but its last token."""
        self._model = model
        self._encoded: Tensor | None = None
        self._forget()
        with torch.inference_mode():
            if model.is_encoder_decoder:
                self._encoded = model.network.get_encoder()(input_ids=model.ids(prompt.source)).last_hidden_state
            elif prompt.prefix[:-1]:
                self._run(_padded([prompt.prefix[:-1]]), 0, logits_to_keep=1)

    @torch.inference_mode()
    def read(self, hypotheses: Iterable[TokenSequence]) -> dict[TokenSequence, Tensor]:
        """fp32 log-probabilities [V] of the next token of each hypothesis, from one run of the model.

        A hypothesis that is the beginning of another adds nothing to the run. Normalised over the whole head, as
        `transformers` does; ids that the tokenizer lacks are -inf after that.
        """
        asked = list(dict.fromkeys(hypotheses))
        shortest = min(map(len, asked))
        inner = {each[:length] for each in asked for length in range(shortest, len(each))}
        leaves = [hypothesis for hypothesis in asked if hypothesis not in inner]
        leaf_of = {leaf[:n]: number for number, leaf in enumerate(leaves) for n in range(shortest, len(leaf) + 1)}

        tokens_NT = _padded(leaves)
        cached = self._crop_to_common(tokens_NT, shortest - 1)
        logits_NLV = self._run(tokens_NT, cached)
        leaf_M, last_M = [leaf_of[hypothesis] for hypothesis in asked], [len(each) - 1 - cached for each in asked]
        logits_MV = logits_NLV[leaf_M, last_M]
        rows_MV = logits_MV.float().log_softmax(-1)
        rows_MV[:, self._model.vocabulary_size :] = -torch.inf
        return dict(zip(asked, rows_MV, strict=True))

    def _forget(self) -> None:
        self._read_RT = torch.empty(0, 0, dtype=torch.long)
        # Without a config every layer caches all it read, see `eager_session`.
        self._cache: Any = DynamicCache()
        if self._model.is_encoder_decoder:
            self._cache = EncoderDecoderCache(self._cache, DynamicCache())

    def _crop_to_common(self, tokens_NT: Tensor, most: int) -> int:
        """Crop and reorder the cache to the prefix that each hypothesis has in common with some row.

        The same number of tokens for all, at most `most`. Returns that number.
        """
        compared = min(tokens_NT.shape[1], self._read_RT.shape[1])
        if not compared:
            return 0
        # Padding equals padding, but only after the end of a hypothesis, and `most` is before that.
        same_NR = (tokens_NT[:, None, :compared] == self._read_RT[None, :, :compared]).cumprod(-1).sum(-1)
        common_N, row_N = same_NR.max(-1)
        cached = min(most, int(common_N.min()))
        if cached:
            surplus = self._read_RT.shape[1] - cached
            if surplus:
                self._cache.crop(-surplus)  # a negative count removes that many in every release
            self._cache.reorder_cache(row_N.to(self._model.device))
        else:
            self._forget()
        return cached

    def _run(self, tokens_NT: Tensor, cached: int, **options: Any) -> Tensor:
        """Logits [N, L, V] after the `cached` tokens of each hypothesis.

        Attention is causal, so the padding after a shorter hypothesis changes nothing before it.
        """
        ids_NL = tokens_NT[:, cached:].clamp(min=0).to(self._model.device)
        if self._encoded is None:
            inputs: dict[str, object] = {"input_ids": ids_NL}
        else:
            inputs = {"decoder_input_ids": ids_NL, "encoder_outputs": (self._encoded.expand(len(ids_NL), -1, -1),)}
        logits_NLV: Tensor = self._model.network(
            past_key_values=self._cache, use_cache=True, **inputs, **options
        ).logits
        self._read_RT = tokens_NT
        return logits_NLV


def _padded(hypotheses: list[TokenSequence]) -> Tensor:
    """Token ids [N, T], the shorter hypotheses filled up with PADDING."""
    return pad_sequence([torch.tensor(each) for each in hypotheses], batch_first=True, padding_value=PADDING)
