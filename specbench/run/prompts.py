"""A task's examples as prompts of the target, and what a reader must know of them before a number is measured."""

from collections.abc import Iterator, Sequence

from specbench.config import RunConfig
from specbench.errors import UserError
from specbench.models import Prompt, Vocabulary
from specbench.models.load import name_of
from specbench.run.model_loader import Say
from specbench.tasks import Example, Task


def encode_tasks(
    configs: Sequence[RunConfig], vocabulary: Vocabulary, note: Say, heading: str = ""
) -> list[tuple[list[Example], list[Prompt]]]:
    """The examples of each resolved config's task, and each of them in the target's tokens.

    `note` is told the task and its number of prompts, after `heading`, and then what a reader must know of them. Raises
    UserError where a row cannot be a prompt.
    """
    encoded = []
    for config in configs:
        examples = Task(config.task).examples(config.limit)
        encoded.append((examples, [_prompt(config, vocabulary, example) for example in examples]))
    described = (_describe(config, vocabulary, pair[1]) for config, pair in zip(configs, encoded, strict=True))
    for number, line in enumerate(dict.fromkeys(line for lines in described for line in lines)):
        note(line if number else heading + line)
    return encoded


def _describe(config: RunConfig, vocabulary: Vocabulary, prompts: Sequence[Prompt]) -> Iterator[str]:
    """The task and its number of prompts in a line, and a line for each thing that changes what is measured."""
    task = config.task
    yield f"task {task.name}, {len(prompts)} prompt{'' if len(prompts) == 1 else 's'}"
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
