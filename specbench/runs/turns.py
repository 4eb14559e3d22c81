"""Conversations of several turns: a later turn reads the target's own answers to the turns before it."""

from collections.abc import Mapping
from dataclasses import replace

from specbench.config import RunConfig
from specbench.runs.build import Parts
from specbench.runs.compatibility import require_room
from specbench.runs.prompts import encode, transcript_of


def put_answers(config: RunConfig, parts: Parts, place: int, answers: Mapping[int, str]) -> None:
    """Complete the prompt at `place` by the target's answers, by index of their example, to the turns before it.

    The target's own answers are read with and without the draft.

    Raises:
        UserError: the prompt is too long.
    """
    example = parts.examples[place]
    earlier = len(example.turns) - 1
    if earlier < 1:
        return
    given = [answers[example.index - back] for back in range(earlier, 0, -1)]
    prompt = encode(config, parts.vocabulary, example, given)
    require_room(config, parts.target.longest, [prompt])
    parts.prompts[place] = prompt
    parts.examples[place] = replace(example, prompt=transcript_of(example, given))
