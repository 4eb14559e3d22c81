"""Drafts, which propose tokens. A `Draft` starts a `DraftSession` on a prompt.

A draft returns its tokens together with the distributions that they were drawn from, so that the acceptance test uses
the q that was sampled. Deterministic drafts have a one-hot q.
"""

from specbench.acceptance import Proposal
from specbench.drafts.base import (
    Batchable,
    Draft,
    DraftSession,
    Grows,
    Learns,
    Lesson,
    ProposesByReading,
    ProposesTrees,
    ReadsBeside,
    ReadsTarget,
    ReadsTrees,
    ScoresAhead,
    SeesVerification,
    expect,
    growing,
    in_batch,
    models_of,
    proposing,
    read_of,
    start_beside,
)
from specbench.drafts.blockwise import BlockwiseDraft
from specbench.drafts.cascade import CascadeDraft
from specbench.drafts.eagle import EagleDraft
from specbench.drafts.early_exit import EarlyExitDraft
from specbench.drafts.horizontal import HorizontalDraft
from specbench.drafts.layer_skip import LayerSkipDraft
from specbench.drafts.lookahead import LookaheadDraft
from specbench.drafts.lookup import LookupDraft
from specbench.drafts.medusa import HydraDraft, MedusaDraft
from specbench.drafts.merged import MergedDraft
from specbench.drafts.model import ModelDraft
from specbench.drafts.ngram import NgramDraft
from specbench.drafts.online import Learner, OnlineDraft, VerifiedText
from specbench.drafts.parallel import ParallelDraft
from specbench.drafts.retrieval import RetrievalDraft
from specbench.drafts.specdec import SpecDecDraft
from specbench.drafts.text import TextDraft, TextDraftSession
from specbench.drafts.tree import TreeDraft
from specbench.drafts.uniform import UniformDraft

__all__ = [
    "Batchable",
    "BlockwiseDraft",
    "CascadeDraft",
    "Draft",
    "DraftSession",
    "EagleDraft",
    "EarlyExitDraft",
    "Grows",
    "HorizontalDraft",
    "HydraDraft",
    "LayerSkipDraft",
    "Learner",
    "Learns",
    "Lesson",
    "LookaheadDraft",
    "LookupDraft",
    "MedusaDraft",
    "MergedDraft",
    "ModelDraft",
    "NgramDraft",
    "OnlineDraft",
    "ParallelDraft",
    "Proposal",
    "ProposesByReading",
    "ProposesTrees",
    "ReadsBeside",
    "ReadsTarget",
    "ReadsTrees",
    "RetrievalDraft",
    "ScoresAhead",
    "SeesVerification",
    "SpecDecDraft",
    "TextDraft",
    "TextDraftSession",
    "TreeDraft",
    "UniformDraft",
    "VerifiedText",
    "expect",
    "growing",
    "in_batch",
    "models_of",
    "proposing",
    "read_of",
    "start_beside",
]
