"""Work between two prompts of a run: turns are answered, and drafts that grow or learn read the completion."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from specbench.experiment.prompts import encode, transcript_of
from specbench.experiment.run_parts import Parts
from specbench.loading import require_room
from specbench.methods.model.config import ModelDraftConfig
from specbench.records.run_record import PromptRecord


def put_answers(parts: Parts, place: int, answers: Mapping[int, str]) -> None:
    """Complete the prompt at `place` by the target's answers, by index of their example, to the turns before it.

    The target's own answers are read with and without the draft. Raises UserError if the prompt is too long.
    """
    example = parts.examples[place]
    earlier = len(example.turns) - 1
    if earlier < 1:
        return
    given = [answers[example.index - back] for back in range(earlier, 0, -1)]
    prompt = encode(parts.config, parts.vocabulary, example, given)
    require_room(parts.config, parts.target.longest, [prompt])
    parts.prompts[place] = prompt
    parts.examples[place] = replace(example, prompt=transcript_of(example, given))


Decoded = tuple[int, list[int]]  # the place of a prompt, and the tokens of its text


def decoded(places: Iterable[int], prompts: Iterable[PromptRecord]) -> list[Decoded]:
    """The speculative completions of the prompts at `places`."""
    return [(place, prompt["speculative"].tokens) for place, prompt in zip(places, prompts, strict=True)]


def give_completions(parts: Parts, texts: Sequence[Decoded]) -> None:
    """Add `texts` to the draft's store, in this order."""
    for draft in parts.draft.stores():
        draft.add_texts([(parts.prompts[place], tokens) for place, tokens in texts])


def learn_from(parts: Parts, place: int, prompt: PromptRecord) -> None:
    """Let the draft learn from the prompt at `place`, decoded just now, and add to its record what it learnt.

    With `draft.online_timed` the seconds are part of this prompt's decoding time.
    """
    draft, config = parts.draft, parts.config.draft
    if not (isinstance(config, ModelDraftConfig) and config.online):
        return
    parts.target.now()  # all work given to the device before is done
    began = time.perf_counter()
    lesson = draft.learn(parts.prompts[place], prompt["speculative"].tokens)
    if lesson is None:
        return
    if lesson.steps:  # CUDA graphs are captured again now, and not before the timing of the next prompt starts
        for model in parts.draft.models:
            model.get_ready(parts.prompts[place], parts.spec.max_new_tokens)
    parts.target.now()
    seconds = time.perf_counter() - began
    prompt["online"] = replace(lesson, seconds=seconds, timed=config.online_timed)
    if config.online_timed:
        prompt["speculative"].decode_s += seconds
