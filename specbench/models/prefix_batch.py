"""Many texts behind one prompt read in one run of a model: what a beam search asks of it.

The network itself is run, whatever engine the model has, over a growing cache with a row for each text. Which row
serves a new text, and how much of it, is found by comparing tokens: nobody keeps track of beams, so nobody can lose it.

Shapes: N texts to read, R rows in the cache, L new positions, M texts asked for, V logits of the head.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache, EncoderDecoderCache

from specbench.models.base import Prompt
from specbench.models.eager import EagerModel

TokenSequence = tuple[int, ...]
PADDING = -1


class PrefixBatch:
    """A model's memory of the texts that it read last behind a prompt. Texts are whole: they begin with its prefix."""

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
    def read(self, texts: Iterable[TokenSequence]) -> dict[TokenSequence, Tensor]:
        """fp32 log-probabilities [V] of what follows each of `texts`, from one run of the model.

        A text that another one begins with costs nothing more. Normalised over the whole head, as `transformers` does;
        what no token of the tokenizer stands for is -inf after that.
        """
        asked = list(dict.fromkeys(texts))
        shortest = min(map(len, asked))
        inner = {text[:length] for text in asked for length in range(shortest, len(text))}
        leaves = [text for text in asked if text not in inner]
        leaf_of = {leaf[:n]: number for number, leaf in enumerate(leaves) for n in range(shortest, len(leaf) + 1)}

        tokens_NT = _padded(leaves)
        kept = self._go_back_to(tokens_NT, shortest - 1)
        logits_NLV = self._run(tokens_NT, kept)
        logits_MV = logits_NLV[[leaf_of[text] for text in asked], [len(text) - 1 - kept for text in asked]]
        rows_MV = logits_MV.float().log_softmax(-1)
        rows_MV[:, self._model.vocabulary_size :] = -torch.inf
        return dict(zip(asked, rows_MV, strict=True))

    def _forget(self) -> None:
        self._read_RT = torch.empty(0, 0, dtype=torch.long)
        # Without a config every layer keeps all it read, see `eager`.
        self._cache: Any = DynamicCache()
        if self._model.is_encoder_decoder:
            self._cache = EncoderDecoderCache(self._cache, DynamicCache())

    def _go_back_to(self, tokens_NT: Tensor, most: int) -> int:
        """Leave in the cache, for each text, what some row has in common with it: the same number of tokens for all, at
        most `most`. Returns that number."""
        compared = min(tokens_NT.shape[1], self._read_RT.shape[1])
        if not compared:
            return 0
        # Padding equals padding, but only behind the end of a text, and `most` is before that.
        same_NR = (tokens_NT[:, None, :compared] == self._read_RT[None, :, :compared]).cumprod(-1).sum(-1)
        common_N, row_N = same_NR.max(-1)
        kept = min(most, int(common_N.min()))
        if kept:
            surplus = self._read_RT.shape[1] - kept
            if surplus:
                self._cache.crop(-surplus)  # a negative count removes that many in every release
            self._cache.reorder_cache(row_N.to(self._model.device))
        else:
            self._forget()
        return kept

    def _run(self, tokens_NT: Tensor, kept: int, **options: Any) -> Tensor:
        """Logits [N, L, V] behind the `kept` tokens of each text that are in the cache. Attention looks back only, so
        the padding behind a shorter text changes nothing before it."""
        ids_NL = tokens_NT[:, kept:].clamp(min=0).to(self._model.device)
        if self._encoded is None:
            inputs: dict[str, Any] = {"input_ids": ids_NL}
        else:
            inputs = {"decoder_input_ids": ids_NL, "encoder_outputs": (self._encoded.expand(len(ids_NL), -1, -1),)}
        logits_NLV: Tensor = self._model.network(
            past_key_values=self._cache, use_cache=True, **inputs, **options
        ).logits
        self._read_RT = tokens_NT
        return logits_NLV


def _padded(texts: list[TokenSequence]) -> Tensor:
    """Token ids [N, T], the shorter texts filled up with PADDING."""
    return pad_sequence([torch.tensor(text) for text in texts], batch_first=True, padding_value=PADDING)
