"""A server's completions as prompts and tokens of the target, row by row, and the rows that cannot be tested.

A row has a prompt (`prompt` as text or token ids, `prompt_token_ids`, or `messages` for a chat template) and a
completion (`tokens` or `token_ids`, otherwise `text`). `finish_reason` distinguishes a completion that ended by itself
from a completion cut by length. The prompt is the whole input of the server; `tokens` do not include it.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from jinja2 import TemplateError

from specbench.engine.session import Prompt
from specbench.errors import UserError
from specbench.tasks.row_files import PROMPT_IDS, Row, messages_of, prompt_ids_of, read_rows, token_ids
from specbench.text.vocabulary import Vocabulary

TOKENS = ("tokens", "token_ids", "output_token_ids", "output_ids", "completion_token_ids")
TEXTS = ("text", "output", "completion", "generated_text", "response")
ENDED = ("stop", "eos", "eos_token")  # finish reasons of a text that ended by itself
CUT = ("length", "max_tokens")  # of a text that was cut
STOPPED = ("stop_reason", "matched_stop")  # the token or the string at which a text ended: vLLM, SGLang
LIMITS = ("max_tokens", "max_new_tokens", "max_completion_tokens", "n_predict")
TOKENS_OF = frozenset(TOKENS)
LONGEST = 1_000_000  # tokens of a prompt: never cut


@dataclass(frozen=True)
class Output:
    """A prompt, and the tokens that were written for it.

    `text` is the row's text if it holds no tokens. `ends`: the completion ended with one of these tokens, and the row
    does not say which. `claimed`: its last token is an end that only the row's `finish_reason` reports. `logprobs`: the
    server's own, of the first tokens; empty if it gives none.
    """

    where: str
    prompt: Prompt
    tokens: list[int]
    text: str | None = None
    ends: tuple[int, ...] = ()
    claimed: bool = False
    logprobs: tuple[float, ...] = ()


@dataclass
class Outputs:
    """The usable rows; how many are left out, by reason; the number of tokens dropped after ends of completions.

    `begun_twice`: prompts whose text begins with the token that the tokenizer adds. `contradictions`: rows by the name
    of a finding and by what contradicts.
    """

    rows: list[Output] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    after_end: int = 0
    begun_twice: int = 0
    contradictions: dict[tuple[str, str], list[str]] = field(default_factory=lambda: defaultdict(list))


def read_outputs(
    path: Path, vocabulary: Vocabulary, eos_ids: frozenset[int], longest: int | None, limit: int | None, target: str
) -> Outputs:
    """The rows of a file. Raises UserError at a row that has no prompt or no text, or tokens that the target lacks."""
    found = Outputs()
    for row in islice(read_rows(path), limit):
        prompt = _prompt(row, vocabulary, target)
        found.begun_twice += isinstance(sent := row.fields.get("prompt"), str) and vocabulary.begins_itself(sent)
        tokens, text = _tokens(row, vocabulary, target)
        reason, stopped = _finish(row)
        ends: tuple[int, ...] = ()
        if vocabulary.is_encoder_decoder and tokens[:1] == [vocabulary.start]:
            tokens = tokens[1:]
        end = next((place for place, token in enumerate(tokens, 1) if token in eos_ids), None)
        for name, what in _contradicts(row, reason, len(tokens), end):
            found.contradictions[name, what].append(row.where)
        claimed = end is None and reason in ENDED and bool(tokens)
        if end is not None:
            found.after_end += len(tokens) - end
            tokens = tokens[:end]
        elif claimed:
            # Servers leave the end out of what they return. A stop string, or a stop token of the request, is no end.
            possible = sorted(eos_ids) if stopped is None else [end for end in eos_ids if end == stopped]
            if len(possible) == 1:
                tokens = [*tokens, *possible]
            else:
                ends, claimed = tuple(possible), bool(possible)
        if not tokens:
            found.left_out["nothing was written"] += 1
        elif longest is not None and len(prompt.prefix) + len(tokens) + bool(ends) > longest:
            found.left_out[f"longer than the {longest} positions of the target"] += 1
        else:
            found.rows.append(Output(row.where, prompt, tokens, text, ends, claimed, _logprobs(row, len(tokens))))
    if not found.rows and not found.left_out:
        raise UserError(f"{path}: it has no rows")
    return found


def _contradicts(row: Row, reason: object, tokens: int, end: int | None) -> Iterator[tuple[str, str]]:
    """A contradiction between a row's stated end and its tokens: the name of a finding, and what contradicts.

    `end` is the place of the first end token, from 1.
    """
    if end is not None and end < tokens:
        yield "after end", "tokens follow an end token"
    if reason not in CUT:
        return
    if end == tokens:
        yield "finish reason", f"finish_reason is {reason}, and the last token is an end"
    most = next((limit for name in LIMITS if isinstance(limit := row.fields.get(name), int)), None)
    if end is None and most is not None and tokens < most and TOKENS_OF.intersection(row.fields):
        yield "finish reason", f"finish_reason is {reason}, before the limit of tokens that the row names"


def _logprobs(row: Row, tokens: int) -> tuple[float, ...]:
    """The log-probability of each token as the server gives it: a list, or as the completions and chat APIs nest it.

    None if a row has other tokens than log-probabilities, as one whose tokens are made of its text may.
    """
    given: object = row.fields.get("logprobs")
    if isinstance(given, dict):
        given = given.get("token_logprobs", given.get("content"))
    if not isinstance(given, list):
        return ()
    values = [one.get("logprob") if isinstance(one, dict) else one for one in given]
    known = [float(one) for one in values if isinstance(one, int | float) and not isinstance(one, bool)]
    fits = len(known) == len(values) and tokens - 1 <= len(known) and TOKENS_OF.intersection(row.fields)
    return tuple(known[:tokens]) if fits else ()


def _finish(row: Row) -> tuple[object, object]:
    """Why a completion ended, and the token or string at which it stopped, where the row says it (vLLM, SGLang)."""
    reason = row.fields.get("finish_reason")
    stopped = next((found for name in STOPPED if (found := row.fields.get(name)) is not None), None)
    if not isinstance(reason, dict):
        return reason, stopped
    return reason.get("type"), reason.get("matched", stopped)


def _prompt(row: Row, vocabulary: Vocabulary, target: str) -> Prompt:
    if (ids := prompt_ids_of(row)) is not None:
        _require_known(row, ids, "the prompt", vocabulary, target)
        if vocabulary.is_encoder_decoder:
            return Prompt(tuple(ids), (vocabulary.start,))
        return Prompt((), tuple(ids) or (vocabulary.start,))
    if "messages" in row.fields:
        messages = messages_of(row, "messages")
        if not vocabulary.has_chat_template:
            raise UserError(f"{row.where}: messages, and target={target} has no chat template; give prompt_token_ids")
        try:
            return vocabulary.chat(messages or [], LONGEST)
        except TemplateError as error:
            raise UserError(f"{row.where}: the chat template of {target} rejects it: {error}") from error
    text = row.text("prompt", f"give the prompt as text, or its tokens as {PROMPT_IDS[0]}")
    return vocabulary.prompt(text, "", LONGEST)


def _tokens(row: Row, vocabulary: Vocabulary, target: str) -> tuple[list[int], str | None]:
    """The tokens, and the text if they were made from it."""
    name = next((name for name in TOKENS if isinstance(row.fields.get(name), list)), None)
    if name is not None:
        return _ids(row, name, vocabulary, target), None
    for name in TEXTS:
        if isinstance(text := row.fields.get(name), str):
            return vocabulary.continuation(text), text
    raise UserError(
        f"{row.where}: neither '{TOKENS[0]}' (ids) nor '{TEXTS[0]}' (it has {', '.join(sorted(row.fields))}); "
        "give the completion of the prompt"
    )


def _ids(row: Row, name: str, vocabulary: Vocabulary, target: str) -> list[int]:
    """A field of token ids. Raises UserError if one is not the target's."""
    ids = token_ids(row, name)
    _require_known(row, ids, f"'{name}'", vocabulary, target)
    return ids


def _require_known(row: Row, ids: Sequence[int], name: str, vocabulary: Vocabulary, target: str) -> None:
    """Raise UserError if a token of the field `name` is not the target's."""
    if (odd := next((one for one in ids if not 0 <= one < vocabulary.size), None)) is not None:
        raise UserError(
            f"{row.where}: token {odd} in {name}, and target={target} has {vocabulary.size} tokens: these "
            "completions are of another vocabulary; name their target"
        )
