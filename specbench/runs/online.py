"""A draft that learns between prompts (`drafts.base.Learns`): when it does, and what of it is recorded."""

import time

from specbench.config import RunConfig
from specbench.config.draft_kinds import ModelDraftConfig
from specbench.drafts import Learns, models_of
from specbench.models import get_ready
from specbench.records.schema import PromptRecord
from specbench.runs.build import Parts


def learn_from(config: RunConfig, parts: Parts, place: int, prompt: PromptRecord) -> None:
    """Let the draft learn from the prompt at `place`, decoded just now, and add to its record what it learnt.

    With `draft.online_timed` the seconds are part of this prompt's decoding time.
    """
    draft = parts.draft
    if not isinstance(draft, Learns):
        return
    assert isinstance(config.draft, ModelDraftConfig)
    parts.target.now()  # all work given to the device before is done
    began = time.perf_counter()
    lesson = draft.learn(parts.prompts[place], prompt["speculative"]["tokens"])
    if lesson.steps:  # CUDA graphs are captured again now, and not before the timing of the next prompt starts
        for model in models_of(parts.draft):
            get_ready(model, parts.prompts[place], parts.spec.max_new_tokens)
    parts.target.now()
    seconds = time.perf_counter() - began
    prompt["online"] = {
        "rejected": lesson.rejected,
        "positions": lesson.positions,
        "steps": lesson.steps,
        "loss": lesson.loss,
        "seconds": seconds,
        "timed": config.draft.online_timed,
    }
    if config.draft.online_timed:
        prompt["speculative"]["decode_s"] += seconds
