"""Models with one interface: a `Model` starts a `Session` on a prompt; a session extends, selects and rolls back.

Only this room uses caches, devices and `transformers`.
"""

from specbench.models.base import (
    LayeredModel,
    LayeredSession,
    Model,
    Prompt,
    RolloutSession,
    RollsOut,
    Session,
    StatefulSession,
    Tokens,
    get_ready,
    up_to_end,
)
from specbench.models.batch import Batch, batch_of, bytes_of_row, read_together
from specbench.models.clock import marking
from specbench.models.heads import Heads
from specbench.models.layout import path_to
from specbench.models.load import load_model, load_tokenizer
from specbench.models.medusa import HydraHeads, MedusaHeads
from specbench.models.prefix_batch import PrefixBatch, TokenSequence
from specbench.models.reading import Read, Reading, answered
from specbench.models.spelling import Spelling
from specbench.models.translated import TranslatedModel
from specbench.models.translation import Overlap, Translation
from specbench.models.vocabulary import Vocabulary, require_same_vocabulary

__all__ = [
    "Batch",
    "Heads",
    "HydraHeads",
    "LayeredModel",
    "LayeredSession",
    "MedusaHeads",
    "Model",
    "Overlap",
    "PrefixBatch",
    "Prompt",
    "Read",
    "Reading",
    "RolloutSession",
    "RollsOut",
    "Session",
    "Spelling",
    "StatefulSession",
    "TokenSequence",
    "Tokens",
    "TranslatedModel",
    "Translation",
    "Vocabulary",
    "answered",
    "batch_of",
    "bytes_of_row",
    "get_ready",
    "load_model",
    "load_tokenizer",
    "marking",
    "path_to",
    "read_together",
    "require_same_vocabulary",
    "up_to_end",
]
