"""Every kind of draft that makes trees, on toy models."""

from collections.abc import Sequence

import torch

from specbench.algorithm.acceptance.base import Children
from specbench.algorithm.acceptance.rules.block import accept_block
from specbench.algorithm.acceptance.rules.exact import accept_exact
from specbench.algorithm.draft import Draft
from specbench.methods.cascade.draft import CascadeDraft
from specbench.methods.from_text import gather
from specbench.methods.lookup.draft import LookupDraft
from specbench.methods.model.draft import ModelDraft
from specbench.methods.retrieval import draft as suffixes
from specbench.methods.retrieval.draft import RetrievalDraft
from specbench.methods.retrieval.suffix_array import SuffixIndex
from specbench.methods.several.draft import MergedDraft
from specbench.methods.suffix.config import SuffixConfig
from specbench.methods.suffix.draft import SuffixDraft
from specbench.sampling import Sampling
from tests.support.toy import START, ToyModel

CPU, DOUBLE = torch.device("cpu"), torch.float64
GREEDY, SAMPLED = Sampling(0.0), Sampling(1.0)
CHILDREN: list[Children] = ["distinct", "replaced", "fixed"]
RULES = {"exact": accept_exact, "traversal": accept_block}


def found(size: int, texts: Sequence[Sequence[int]] = ((1, 0, 2), (2, 0, 1), (1, 1, 0))) -> Draft:
    return RetrievalDraft(SuffixIndex(suffixes.build(gather(texts, START), size), size), size, CPU, 2)


def drafts(one: ToyModel, other: ToyModel, size: int) -> dict[str, Draft]:
    lookup, model = LookupDraft(size, CPU, 2), ModelDraft(one, size)
    return {
        "lookup": lookup,
        "retrieval": found(size),
        "suffix": SuffixDraft(SuffixConfig(depth=3), size, CPU),
        "cascade": CascadeDraft(one, ModelDraft(other, size), 2, size, CPU),
        "cascade of a copy": CascadeDraft(one, lookup, 2, size, CPU),
        "merged": MergedDraft([model, ModelDraft(other, size)]),
        "merged with a copy": MergedDraft([model, lookup]),
        "merged with a corpus": MergedDraft([found(size), model]),
    }
