"""Beginnings that the prompts of a run share: each way of decoding reads them once per run and then copies them.

Standard and speculative decoding copy from separate caches, so that neither saves what the other has read, and both
read the first of these prompts as a whole. A check and a warm-up have no such cache, or their own.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from specbench.engine.beginnings import Beginnings
from specbench.engine.session import Model, Prompt, innermost
from specbench.records.run_record import DecodingMode
from specbench.tasks import Example


class SharedBeginnings:
    """The caches that the models of a run copy, for each kind of decoding."""

    def __init__(
        self, target: Model, of_draft: Sequence[Model], prompts: Sequence[Prompt], examples: Sequence[Example]
    ) -> None:
        """`prompts[i]` is `examples[i]` in tokens. `of_draft` are the models that the draft runs."""
        self._examples = examples
        self._models: Mapping[DecodingMode, Sequence[Model]] = {
            "baseline": [target],
            "speculative": list(dict.fromkeys([target, *of_draft])),
        }
        self._beginnings = {
            mode: {model: Beginnings([model.own_prompt(prompt) for prompt in prompts]) for model in models}
            for mode, models in self._models.items()
        }

    def expect(self, place: int, prompt: Prompt) -> None:
        """The prompt at `place` is decoded next: if a turn follows, its prompt begins with all of this."""
        turns = [example.turns for example in self._examples[place : place + 2]]
        if len(turns) < 2 or not turns[0] or turns[1][: len(turns[0])] != turns[0]:
            return
        for of_models in self._beginnings.values():
            for model, beginnings in of_models.items():
                beginnings.expect_all_of(model.own_prompt(prompt))

    @contextmanager
    def copied(self, mode: DecodingMode) -> Iterator[None]:
        """A context in which sessions copy what this kind of decoding has read."""
        for model, beginnings in self._beginnings[mode].items():
            innermost(model).beginnings = beginnings or None
        try:
            yield
        finally:
            for model in self._models[mode]:
                innermost(model).beginnings = None
