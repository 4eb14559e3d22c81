"""Tiny tokenizers of every kind, trained here, and models over them with exact tables."""

import json
import time
from collections.abc import Sequence
from functools import cache

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from specbench.engine.session import Model, Prompt, Session
from specbench.sampling import Sampling, standardise
from specbench.text.vocabulary import Vocabulary

TEXTS = ["## The old dog\n\n## runs, and the small cats run. ###", "The dogs running: an old tree, über das Haus!"] * 8
SHOWN = "The small dogs run: ## an old tree, and the cats run über das Haus"
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def byte_level() -> Tokenizer:
    """As GPT-2, Llama 3, Qwen and SmolLM2; a token of two hashes is a heading of Markdown, no word's continuation."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=320, initial_alphabet=alphabet))
    return made


def unigram() -> Tokenizer:
    """As T5."""
    made = Tokenizer(models.Unigram())
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=120, special_tokens=["<unk>"], unk_token="<unk>")
    made.train_from_iterator([*TEXTS, SHOWN], trainer)
    return made


def wordpiece() -> Tokenizer:
    """As BERT: '##' marks what continues a word."""
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.decoder = decoders.WordPiece(cleanup=False)
    trainer = trainers.WordPieceTrainer(vocab_size=120, special_tokens=["[UNK]"])
    made.train_from_iterator([*TEXTS, SHOWN], trainer)
    return made


def byte_fallback() -> Tokenizer:
    """As Llama 2: characters that are no token are written in bytes."""
    made = Tokenizer(models.BPE())
    trained = Tokenizer(models.BPE())
    for one in (made, trained):
        one.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trained.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=120))
    described = json.loads(trained.to_str())
    vocabulary = {name: number for number, name in enumerate([*BYTES, *described["model"]["vocab"]])}
    merges = [tuple(merge) for merge in described["model"]["merges"]]
    made.model = models.BPE(vocabulary, merges, byte_fallback=True)
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return made


KINDS = {"byte-level": byte_level, "unigram": unigram, "wordpiece": wordpiece, "byte fallback": byte_fallback}
END = "</s>"


@cache
def vocabulary_of(
    kind: str, normalizer: str | None = None, start: str | None = None, special: tuple[str, ...] = (), end: str = END
) -> Vocabulary:
    """A tokenizer of `kind`. It normalises characters first as `normalizer`, the name of a class, does; `start` is put
    before every text."""
    inner = KINDS[kind]()
    if normalizer is not None:
        first = getattr(normalizers, normalizer)()
        inner.normalizer = normalizers.Sequence([first, *([] if inner.normalizer is None else [inner.normalizer])])
    inner.add_special_tokens([AddedToken(token, special=True) for token in (end, *special, *filter(None, [start]))])
    if start is not None:
        inner.post_processor = processors.TemplateProcessing(
            single=f"{start} $A", special_tokens=[(start, inner.token_to_id(start))]
        )
    known = {"unk_token": "<unk>"} if kind == "unigram" else {"unk_token": "[UNK]"} if kind == "wordpiece" else {}
    made = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=end, bos_token=start, **known)
    return Vocabulary(made, inner.token_to_id(start or end), is_encoder_decoder=False)


class Tables(Model):
    """A model whose next token depends on the last two, drawn at random for each pair, over the tokens of `support`."""

    longest: int | None = None
    operations = 1.0

    def __init__(self, size: int, eos_ids: frozenset[int], seed: int, support: Sequence[int] | None = None) -> None:
        self.vocabulary_size, self.eos_ids, self.seed = size, eos_ids, seed
        self.support = list(range(size)) if support is None else list(support)
        self._rows: dict[tuple[int, int], Tensor] = {}

    def row(self, before: int, last: int) -> Tensor:
        if (before, last) not in self._rows:
            generator = torch.Generator().manual_seed((self.seed * 1000 + before) * 1000 + last)
            row_V = torch.full((self.vocabulary_size,), -torch.inf)
            row_V[self.support] = 1.5 * torch.randn(len(self.support), generator=generator)
            self._rows[before, last] = row_V
        return self._rows[before, last]

    def start(self, prompt: Prompt) -> "TablesSession":
        return TablesSession(self, prompt)

    def now(self) -> float:
        return time.perf_counter()

    def exact(self, prompt: Prompt, sampling: Sampling, length: int) -> dict[tuple[int, ...], float]:
        """The probability of every text of up to `length` tokens."""
        found, open_texts = {}, {(): 1.0}
        while open_texts:
            text, chance = open_texts.popitem()
            before = [0, *prompt.prefix, *text][-2:]
            row_V = standardise(self.row(*before).unsqueeze(0), sampling, self.vocabulary_size)[0].double()
            for token in row_V.nonzero().flatten().tolist():
                ended = len(text) + 1 == length or token in self.eos_ids
                (found if ended else open_texts)[(*text, token)] = chance * float(row_V[token])
        return found


class TablesSession(Session):
    """Keeps the very tokens that it was fed."""

    def __init__(self, model: Tables, prompt: Prompt) -> None:
        self.model, self.fed = model, list(prompt.prefix[:-1])
        self.nodes: list[tuple[int, int]] = []  # token and parent

    @property
    def length(self) -> int:
        return len(self.fed)

    def extend(self, tokens: Sequence[int], parents: Sequence[int] | None = None) -> Tensor:
        assert len(tokens) > 0
        rows = []
        for index, token in enumerate(tokens):
            if parents is None:
                assert not self.nodes, "a tree has been read: select a path of it"
                before = self.fed[-1] if self.fed else 0
                self.fed.append(token)
            else:
                before = self.fed[-1] if parents[index] < 0 else self.nodes[parents[index]][0]
                self.nodes.append((token, parents[index]))
            rows.append(self.model.row(before, token))
        return torch.stack(rows)

    def select(self, path: Sequence[int]) -> None:
        assert [self.nodes[node][1] for node in path] == [-1, *path][: len(path)]
        self.fed += [self.nodes[node][0] for node in path]
        self.nodes = []

    def rollback(self, length: int) -> None:
        self.nodes = []
        del self.fed[length:]
