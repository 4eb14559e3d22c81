"""Encode a task's examples as prompts of the target, and report facts about them before measuring."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from jinja2 import TemplateError

from specbench.config.model import name_of
from specbench.config.schema import RunConfig
from specbench.engine.session import Prompt
from specbench.errors import UserError
from specbench.experiment.from_model import unapplied
from specbench.experiment.probed_rows import rows_to_read, split_examples
from specbench.experiment.prompts_of_length import in_context
from specbench.loading.model_loader import Say
from specbench.tasks import Example, Task, require_prompt, shuffled
from specbench.tasks.row_files import interleaved
from specbench.text.vocabulary import Vocabulary

UNLIMITED = 10**9


class EncodedTask(NamedTuple):
    """`prompts[i]` is `examples[i]` in tokens. `probe_prompts` are not measured."""

    examples: list[Example]
    prompts: list[Prompt]
    probe_prompts: list[Prompt]
    too_long: int = 0  # rows left out because they are longer than the context asked for


def encode_tasks(
    configs: Sequence[RunConfig], vocabulary: Vocabulary, note: Say, heading: str = "", later_turns: bool = False
) -> list[EncodedTask]:
    """The examples of each resolved config's task, and each of them in the target's tokens.

    `later_turns` of a conversation are included if asked for; until the turns before them are answered they hold only
    questions. `note` receives the task and its number of prompts, after `heading`, and then facts about them. Raises
    UserError if a row cannot be a prompt.
    """
    encoded = []
    for config in configs:
        read = Task(config.task).examples(rows_to_read(config), later_turns)
        too_long = 0
        if config.context is not None:
            if any(one.token_ids for one in read):
                raise UserError(
                    f"context={config.context}: prompts of token ids are read as they are; leave out context"
                )
            length = partial(prompt_tokens, config, vocabulary)
            read, too_long = in_context(config, vocabulary, read, length)
        examples, probed = split_examples(config, read)
        if config.task.shuffle is not None:
            examples = shuffled(examples, config.task.shuffle)
        examples, probed = ([_with_text(one, vocabulary) for one in part] for part in (examples, probed))
        prompts, probe_prompts = ([encode(config, vocabulary, one) for one in part] for part in (examples, probed))
        encoded.append(EncodedTask(examples, prompts, probe_prompts, too_long))
    described = (_describe(config, vocabulary, one, later_turns) for config, one in zip(configs, encoded, strict=True))
    for number, line in enumerate(dict.fromkeys(line for lines in described for line in lines)):
        note(line if number else heading + line)
    return encoded


def _with_text(example: Example, vocabulary: Vocabulary) -> Example:
    """`example` with the text of its token ids, for readers of the record, if its row gives none."""
    return (
        replace(example, prompt=vocabulary.text(example.token_ids))
        if example.token_ids and not example.prompt
        else example
    )


def _describe(config: RunConfig, vocabulary: Vocabulary, encoded: EncodedTask, later_turns: bool) -> Iterator[str]:
    """The task and its number of prompts in a line, and a line for each fact that changes the measurement."""
    task, target, number = config.task, name_of(config.target), len(encoded.prompts)
    in_template = any(example.messages or _in_template(config, vocabulary, example) for example in encoded.examples)
    of_ids = any(example.token_ids for example in encoded.examples)
    yield (
        f"task {task.name}{'' if task.shuffle is None else ' (shuffled)'}, {number} prompt{'' if number == 1 else 's'}"
        f"{', in the chat template of the target' if in_template else ', given as token ids' if of_ids else ''}"
    )
    if any(example.turns for example in encoded.examples):
        yield (
            "a later turn reads the target's own answers to the turns before it"
            if later_turns
            else "of conversations of several turns the first is used here; specbench run with batch=1 decodes all"
        )
    sampling = config.sampling
    for key, value in (("top_k", sampling.top_k), ("top_p", sampling.top_p), ("min_p", sampling.min_p)):
        if value is not None and sampling.temperature == 0:
            yield (
                f"sampling.{key}={value:g}: changes nothing at sampling.temperature=0, which is argmax; "
                "sampling.temperature=1 samples"
            )
    if config.simulate.alpha is None and (left_out := unapplied(config)) is not None:
        yield left_out
    if task.metric is None and task.path is not None and any(example.reference for example in encoded.examples):
        yield "the references are not scored: task.metric is not set; task.metric=bleu or task.metric=rouge scores them"
    if encoded.probe_prompts:
        asked = "tree=sequoia" if config.tree.is_probed else f"gamma={config.gamma}"
        yield f"{asked} is probed on {len(encoded.probe_prompts)} more, which are not measured"
    if config.context is not None:
        lengths = [len(prompt.source) + len(prompt.prefix) for prompt in encoded.prompts]
        yield (
            f"context={config.context}: whole rows of the task before each prompt, {min(lengths)} to {max(lengths)} "
            "tokens in all" + (f"; {encoded.too_long} longer rows are left out" if encoded.too_long else "")
        )
    if not in_template:
        twice = sum(vocabulary.begins_itself(one.prompt) for one in encoded.examples if not one.token_ids)
        yield from repeated_tokens(vocabulary, target, twice, number)
    if cut := sum(prompt.truncated for prompt in encoded.prompts):
        beginning = not in_template and (vocabulary.is_encoder_decoder or task.suffix)
        yield (
            f"{cut} of {number} prompts were cut to {task.max_source_tokens} tokens (task.max_source_tokens), "
            f"which are their {'beginning' if beginning else 'end'}"
        )
    if task.path is not None and any(example.shortened for example in encoded.examples):
        yield (
            f"task.prompt_words={task.prompt_words}: of each row of {task.path} only that many words are the prompt; "
            "task=prompts gives whole rows"
        )
    gives = task.source_field is not None or task.template is not None
    asks = gives and not in_template and not of_ids and config.simulate.alpha is None
    if asks and vocabulary.has_chat_template and task.chat_template is None:
        yield (
            f"target={target} has a chat template, and these prompts are plain text: task.chat_template=true puts them "
            "into it; task.chat_template=false confirms plain text and removes this line"
        )
    elif asks and task.metric is not None and not vocabulary.is_encoder_decoder and not vocabulary.has_chat_template:
        yield (
            f"target={target} is decoder-only and has no chat template: unless it was trained for task={task.name}, "
            f"its completions do not answer the prompts and {task.metric} is meaningless; task=lm-mini or task=lm1b "
            "gives it text to continue"
        )


def repeated_tokens(vocabulary: Vocabulary, target: str, twice: int, prompts: int) -> Iterator[str]:
    """A line for each token that the tokenizer would add to prompts to their harm, and that is left out."""
    if twice:
        yield (
            f"{twice} of {prompts} prompts begin with {vocabulary.tokenizer.bos_token}, which the tokenizer of "
            f"{target} also puts before every text: it is read once"
        )
    if vocabulary.ends_prompts:
        yield (
            f"the tokenizer of {target} ends every text with {vocabulary.tokenizer.eos_token}: prompts are read "
            "without it, since the model would continue after the end"
        )


def prompt_tokens(config: RunConfig, vocabulary: Vocabulary, example: Example) -> int:
    """The tokens of `example` as a prompt, of any length."""
    unlimited = replace(config, context=None, task=replace(config.task, max_source_tokens=UNLIMITED))
    prompt = encode(unlimited, vocabulary, example)
    return len(prompt.source) + len(prompt.prefix)


def encode(config: RunConfig, vocabulary: Vocabulary, example: Example, answers: Sequence[str] = ()) -> Prompt:
    """`example` in the target's tokens; `answers` are to its turns but the last.

    Raises UserError if it cannot be a prompt.
    """
    task, most = config.task, config.context_tokens or config.task.max_source_tokens
    where = f"task={task.name}, row {example.index + 1}"
    require_prompt(task, example)
    if example.token_ids:
        return _of_token_ids(config, vocabulary, example.token_ids, where)
    messages = example.messages
    if _in_template(config, vocabulary, example):
        messages = interleaved(example.turns, answers or [""] * (len(example.turns) - 1))
    if not messages:
        text = transcript_of(example, answers) if example.turns else example.prompt
        return vocabulary.prompt(text, task.suffix, most)
    if not vocabulary.has_chat_template:
        raise UserError(
            f"target={name_of(config.target)}: its tokenizer has no chat template, which "
            + ("task.chat_template=true needs" if task.chat_template else f"the messages of {where} need")
            + "; use plain prompts, or a chat model"
        )
    try:
        return vocabulary.chat(messages, most)
    except TemplateError as error:
        raise UserError(f"{where}: the chat template of {name_of(config.target)} rejects it: {error}") from error


def _of_token_ids(config: RunConfig, vocabulary: Vocabulary, ids: tuple[int, ...], where: str) -> Prompt:
    """The prompt of these tokens, as they are, of any length. Raises UserError if one is not the target's."""
    if (odd := next((one for one in ids if not 0 <= one < vocabulary.size), None)) is not None:
        raise UserError(
            f"{where}: token {odd} in its prompt, and target={name_of(config.target)} has {vocabulary.size} tokens; "
            "give prompts of its own vocabulary"
        )
    return Prompt(ids, (vocabulary.start,)) if vocabulary.is_encoder_decoder else Prompt((), ids)


def transcript_of(example: Example, answers: Sequence[str]) -> str:
    """The questions and answers of a conversation as plain text, for a model without a chat template."""
    return "\n\n".join(
        message["content"] for message in interleaved(example.turns, answers or [""] * (len(example.turns) - 1))
    )


def _in_template(config: RunConfig, vocabulary: Vocabulary, example: Example) -> bool:
    """Whether a conversation of several turns goes into the chat template: the config decides, otherwise the target."""
    asked = config.task.chat_template
    return bool(example.turns) and (vocabulary.has_chat_template if asked is None else asked)
