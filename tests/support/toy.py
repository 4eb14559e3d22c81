"""A model with exact probability tables, so that the distribution of whole texts can be computed and compared.

The next token depends on the last two. The session keeps the very tokens that it was fed, as a real cache does: a
decoder that feeds a token twice, or not at all, or rolls back wrongly, changes the distribution here too.
"""

import itertools
import time
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from specbench.engine.session import Model, Prompt, Session
from specbench.sampling import Sampling, standardise

START, EOS = 0, 3
VOCABULARY = 4
PROMPT = Prompt((), (START,))


class ToyModel(Model):
    """Log-probabilities from a table [V, V, V]: row [a, b] is what follows a, b."""

    vocabulary_size = VOCABULARY
    eos_ids = frozenset({EOS})
    longest: int | None = None
    operations = 1.0

    def __init__(self, table_VVV: Tensor) -> None:
        self.table_VVV = table_VVV

    def start(self, prompt: Prompt) -> "ToySession":
        return ToySession(self)

    def now(self) -> float:
        return time.perf_counter()


class ToySession(Session):
    def __init__(self, model: ToyModel) -> None:
        self.model = model
        self.fed: list[int] = []
        self.nodes: list[int] = []
        self.parents: list[int] = []

    @property
    def length(self) -> int:
        return len(self.fed)

    def extend(self, tokens: Sequence[int], parents: Sequence[int] | None = None) -> Tensor:
        rows = []
        for index, token in enumerate(tokens):
            if parents is None:
                assert not self.nodes, "a tree has been read: select a path of it"
                before = self.fed[-1:]
                self.fed.append(token)
            else:
                before = self.fed[-1:] if parents[index] < 0 else [self.nodes[parents[index]]]
                self.nodes.append(token)
                self.parents.append(parents[index])
            rows.append(self.model.table_VVV[before[0] if before else START, token])
        return torch.stack(rows).log()

    def select(self, path: Sequence[int]) -> None:
        assert [self.parents[node] for node in path] == [-1, *path][: len(path)]
        self.fed += [self.nodes[node] for node in path]
        self.nodes, self.parents = [], []

    def rollback(self, length: int) -> None:
        self.nodes, self.parents = [], []
        del self.fed[length:]


def random_table(seed: int, zeros: bool = False) -> Tensor:
    """Probabilities drawn at random; with `zeros`, one token in each row can never follow."""
    generator = torch.Generator().manual_seed(seed)
    table = torch.rand(VOCABULARY, VOCABULARY, VOCABULARY, generator=generator) ** 2 + 0.01
    if zeros:
        forbidden = torch.randint(VOCABULARY, (VOCABULARY, VOCABULARY, 1), generator=generator)
        table = table.scatter(-1, forbidden, 0.0)
    return table / table.sum(-1, keepdim=True)


def disjoint_table(table: Tensor) -> Tensor:
    """A draft that proposes only what the target can never say (of a table with zeros)."""
    return (table == 0).float()


def exact(model: Model, sampling: Sampling, length: int, prompt: Prompt = PROMPT) -> dict[tuple[int, ...], float]:
    """The probability of every text of up to `length` tokens; shorter ones end in EOS. `prompt` is one token long."""
    probabilities: dict[tuple[int, ...], float] = {}
    for text in _texts(length):
        session = model.start(prompt)
        rows = standardise(session.extend([*prompt.prefix, *text[:-1]]), sampling, VOCABULARY).double()
        probabilities[text] = float(torch.stack([row[token] for row, token in zip(rows, text, strict=True)]).prod())
    return probabilities


def _texts(length: int) -> Iterator[tuple[int, ...]]:
    others = [token for token in range(VOCABULARY) if token != EOS]
    for before in range(length):
        for head in itertools.product(others, repeat=before):
            yield (*head, EOS)
    yield from itertools.product(others, repeat=length)
