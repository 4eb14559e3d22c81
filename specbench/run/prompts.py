"""A task's examples as prompts of the target, and what a reader must know of them before a number is measured."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from specbench.config import RunConfig
from specbench.errors import UserError
from specbench.models import Prompt, Vocabulary
from specbench.models.load import name_of
from specbench.run.model_loader import Say
from specbench.run.probe_prompts import rows_to_read, split_examples
from specbench.tasks import Example, Task


class EncodedTask(NamedTuple):
    """`prompts[i]` is `examples[i]` in tokens. `probe_prompts` are not measured."""

    examples: list[Example]
    prompts: list[Prompt]
    probe_prompts: list[Prompt]


def encode_tasks(
    configs: Sequence[RunConfig], vocabulary: Vocabulary, note: Say, heading: str = ""
) -> list[EncodedTask]:
    """The examples of each resolved config's task, and each of them in the target's tokens.

    `note` is told the task and its number of prompts, after `heading`, and then what a reader must know of them. Raises
    UserError where a row cannot be a prompt.
    """
    encoded = []
    for config in configs:
        examples, probed = split_examples(config, Task(config.task).examples(rows_to_read(config)))
        prompts, probe_prompts = ([_prompt(config, vocabulary, one) for one in part] for part in (examples, probed))
        encoded.append(EncodedTask(examples, prompts, probe_prompts))
    described = (_describe(config, vocabulary, one) for config, one in zip(configs, encoded, strict=True))
    for number, line in enumerate(dict.fromkeys(line for lines in described for line in lines)):
        note(line if number else heading + line)
    return encoded


def _describe(config: RunConfig, vocabulary: Vocabulary, encoded: EncodedTask) -> Iterator[str]:
    """The task and its number of prompts in a line, and a line for each thing that changes what is measured."""
    task, prompts = config.task, encoded.prompts
    yield f"task {task.name}, {len(prompts)} prompt{'' if len(prompts) == 1 else 's'}"
    if encoded.probe_prompts:
        yield f"gamma={config.gamma} is probed on {len(encoded.probe_prompts)} more, which are not measured"
    cut = sum(prompt.cut for prompt in prompts)
    if cut:
        yield f"{cut} of {len(prompts)} prompts were cut to {task.max_source_tokens} tokens (task.max_source_tokens)"
    if task.metric is not None and not vocabulary.is_encoder_decoder and config.simulate.alpha is None:
        yield (
            f"target={name_of(config.target)} is decoder-only and has no chat template: unless it was trained for "
            f"task={task.name}, its texts do not answer the prompts and {task.metric} means nothing; "
            "task=lm-mini or task=lm1b gives it text to continue"
        )


def _prompt(config: RunConfig, vocabulary: Vocabulary, example: Example) -> Prompt:
    if config.task.source_field is not None and not example.prompt.removeprefix(config.task.prefix).strip():
        raise UserError(
            f"task={config.task.name}, row {example.index + 1}: the prompt is empty "
            f"(field '{config.task.source_field}')"
        )
    return vocabulary.prompt(example.prompt, config.task.suffix, config.task.max_source_tokens)
