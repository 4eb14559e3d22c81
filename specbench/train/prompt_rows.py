"""Prompts whose completions by a decoder-only target are learned: their rows, and their tokens.

A row is a prompt as `task.path` of `specbench run` takes it (`messages`, `turns`, `prompt`, `instruction`): of several
turns the first, since the target has not answered it yet.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from specbench.errors import UserError
from specbench.tasks import FIELDS, turns_of
from specbench.tasks.row_files import MESSAGES_FIELD, messages_of, read_rows, split_answer, transcript
from specbench.tasks.row_files import Row as FileRow
from specbench.text.vocabulary import Vocabulary
from specbench.train.networks import load_config
from specbench.train.passages import sentences
from specbench.train.recipe_places import resolve
from specbench.train.recipe_rows import HeldOut, Row, is_kept
from specbench.train.recipe_schema import DataPlan, Recipe

UNLIMITED = 10**9  # positions that are not learned
LONG = 10  # words of a sentence that two prompts only share if they have a text in common
SAID = "text"  # the field of what the user says, which near copies are found by
PROMPT_FIELDS = (MESSAGES_FIELD, *FIELDS)
HELD_OUT_FIELDS = ("text", "article", "highlights")  # of rows that are no prompts, in files of `data.exclude`
WAY_OUT = "rows of prompts have messages, turns or a prompt; data.completions=false trains on running text"


def is_prompt(row: Row) -> bool:
    """Whether a row is a prompt, and no text."""
    return not isinstance(row.get("text"), str) and any(name in row for name in PROMPT_FIELDS)


def load_prompts(plan: DataPlan, paths: Iterable[str] | None = None) -> list[Row]:
    """The prompts of `plan`, or all of `paths`, each with its messages and what the user says in them.

    Raises UserError if there are none, or a row is no prompt.
    """
    files = list(plan.path if paths is None else paths)
    keep = plan.keep if paths is None else {}
    found: list[Row] = []
    for row in (row for file in files for row in read_rows(Path(resolve(file)))):
        if not is_kept(row.fields, keep):
            continue
        messages = _messages(row)
        said = _text_of_users(messages)
        if said.strip() and not (plan.max_words and len(said.split()) > plan.max_words):
            found.append({SAID: said, MESSAGES_FIELD: messages})
        if plan.max_rows and len(found) >= plan.max_rows:
            break
    if not found:
        raise UserError(f"{', '.join(files)}: no prompt is left after data.keep={dict(keep)}")
    return found


def _messages(row: FileRow) -> list[dict[str, str]]:
    messages = messages_of(row, "prompt")
    if messages is not None:
        return split_answer(messages)[0]
    return [{"role": "user", "content": turns_of(row, "prompt", True, WAY_OUT)[0]}]


def _text_of_users(messages: Iterable[dict[str, str]]) -> str:
    """The users' words in a conversation: its system prompt may be the same as in all others."""
    return "\n".join(message["content"] for message in messages if message["role"] == "user")


def without_held_out_prompts(rows: list[Row], plan: DataPlan) -> list[Row]:
    """`rows` minus the prompts and texts of `plan.exclude`, their near copies, and what has a long sentence of them."""
    if not plan.exclude:
        return rows
    texts = [text for file in plan.exclude for text in _held_texts(file)]
    held, long = HeldOut(({SAID: text} for text in texts), (SAID,)), {*_long_sentences(texts)}
    return [row for row in rows if not held.covers(row) and long.isdisjoint(_long_sentences([row[SAID]]))]


def _long_sentences(texts: Iterable[str]) -> Iterable[str]:
    """The sentences of texts, without those that prompts may share, such as what to do with a text.

    Also the parts of a sentence at its colons: before the first may stand what to do with the rest.
    """
    found = (part for text in texts for one in sentences(text) for part in {one, *one.split(": ")})
    return (part for part in found if len(part.split()) >= LONG)


def _held_texts(file: str) -> Iterable[str]:
    """The texts that must not be trained on: every turn of a prompt, or the text of a row that is no prompt."""
    for row in read_rows(Path(resolve(file))):
        if any(name in row.fields for name in PROMPT_FIELDS):
            messages = messages_of(row, "prompt")
            yield from [_text_of_users(messages)] if messages is not None else turns_of(row, "prompt", True, WAY_OUT)
        else:
            yield from (text for name in HELD_OUT_FIELDS if isinstance(text := row.fields.get(name), str))


def uses_template(plan: DataPlan, tokenizer: Any) -> bool:
    """Whether prompts are put into the chat template. Raises UserError for a template that the tokenizer lacks."""
    has = bool(getattr(tokenizer, "chat_template", None))
    if plan.chat_template and not has:
        raise UserError("data.chat_template=true: the target's tokenizer has no chat template; leave it out")
    return has if plan.chat_template is None else plan.chat_template


def prompt_ids(rows: list[Row], recipe: Recipe, tokenizer: Any, what: str) -> list[list[int]]:
    """The tokens of the prompts that have at most `data.max_source`, and leave room for a completion.

    `what` they are for stands in messages. Raises UserError if none is short enough, or the chat template rejects one.
    """
    plan, new = recipe.data, recipe.distill.max_new_tokens
    positions = _positions(recipe)
    most = min(plan.max_source, positions - new)
    if most < 1:
        raise UserError(
            f"distill.max_new_tokens={new}: prompt and completion have {positions} positions in the target or the "
            "draft (model.positions); give fewer tokens"
        )
    start = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    vocabulary, in_template = Vocabulary(tokenizer, start, is_encoder_decoder=False), uses_template(plan, tokenizer)
    try:
        prompts = [
            vocabulary.chat(row[MESSAGES_FIELD], most) if in_template else vocabulary.prompt(_plain(row), "", most)
            for row in rows
        ]
    except TemplateError as error:
        raise UserError(f"data.path: the chat template of the target rejects a prompt: {error}") from error
    whole = [list(prompt.prefix) for prompt in prompts if not prompt.truncated]
    if not whole:
        raise UserError(
            f"data.max_source={plan.max_source}: no prompt {what} has {most} tokens or fewer, which leaves room for "
            f"distill.max_new_tokens={new}"
        )
    return whole


def _positions(recipe: Recipe) -> int:
    """The tokens of a text that the target and the draft can read."""
    distill, own = recipe.distill, recipe.model
    config = load_config(distill.target or "", distill.revision).get_text_config()
    longest = getattr(config, "max_position_embeddings", None) or UNLIMITED
    draft = own.family == "gpt2" and own.start_from is None and not recipe.on_frozen_target
    return min(longest, own.positions) if draft else int(longest)


def _plain(row: Row) -> str:
    messages = row[MESSAGES_FIELD]
    return str(messages[0]["content"]) if len(messages) == 1 else transcript(messages)


def as_task_row(row: Row, in_template: bool) -> dict[str, Any]:
    """A row of `task.path` that gives the same prompt."""
    return {MESSAGES_FIELD: row[MESSAGES_FIELD]} if in_template else {"prompt": _plain(row)}
