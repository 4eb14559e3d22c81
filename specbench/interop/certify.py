"""Whether a server's completions come from the target."""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, cast

import torch
from jinja2 import TemplateError

from specbench.algorithm.acceptance.base import Verification
from specbench.algorithm.acceptance.rules.exact import accept_exact
from specbench.algorithm.decoding import DecodingSpec, autoregressive
from specbench.algorithm.draft import Draft
from specbench.analysis.acceptance.agreement import logits_along
from specbench.analysis.proof import prove
from specbench.analysis.proof.certificate import Certificate, greedy_certificate, sampled_certificate, with_copies
from specbench.analysis.proof.departures import Departure, departures, first_difference
from specbench.analysis.proof.evidence import evidence
from specbench.config.model import name_of
from specbench.config.schema import RunConfig
from specbench.config.verbs import CertifyConfig, certify_run
from specbench.engine.session import Model, Prompt
from specbench.errors import UserError
from specbench.experiment.build import resolve
from specbench.experiment.prompts import repeated_tokens
from specbench.experiment.runner import translated_errors
from specbench.loading import require_range
from specbench.loading.model_loader import ModelLoader, ModelRequest, Say
from specbench.methods.build import DraftRequest, builder_for, needed_of_target
from specbench.records.schema import PromptRecord
from specbench.sampling import Sampling, standardise
from specbench.tasks.rows import Row, messages_of, read_rows
from specbench.text.processed import drawing, processed
from specbench.text.tokenizer import load_tokenizer
from specbench.text.vocabulary import Vocabulary

# A server's completions as prompts and tokens of the target, row by row, and the rows that cannot be tested.
#
# A row has a prompt (`prompt` as text or token ids, `prompt_token_ids`, or `messages` for a chat template) and a
# completion (`tokens` or `token_ids`, else `text`). `finish_reason` distinguishes a completion that ended by itself
# from a completion cut by length. The prompt is the whole input of the server; `tokens` do not include it.


PROMPT_IDS = ("prompt_token_ids", "prompt_tokens", "prompt_ids")
TOKENS = ("tokens", "token_ids", "output_token_ids", "output_ids", "completion_token_ids")
TEXTS = ("text", "output", "completion", "generated_text", "response")
ENDED = ("stop", "eos", "eos_token")  # finish reasons of a text that ended by itself
LONGEST = 1_000_000  # tokens of a prompt: never cut


@dataclass(frozen=True)
class Output:
    """A prompt, and the tokens that were written for it.

    `text` is what the row holds where it holds no tokens. `ends`: the completion ended with one of these tokens, and
    the row does not say which.
    """

    where: str
    prompt: Prompt
    tokens: list[int]
    text: str | None = None
    ends: tuple[int, ...] = ()


@dataclass
class Outputs:
    """The usable rows; how many are left out, by reason; the number of tokens dropped after ends of completions.

    `begun_twice`: prompts whose text begins with the token that the tokenizer adds.
    """

    rows: list[Output] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    after_end: int = 0
    begun_twice: int = 0


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
        if end is not None:
            found.after_end += len(tokens) - end
            tokens = tokens[:end]
        elif reason in ENDED and tokens:
            # Servers leave the end out of what they return. A stop string, or a stop token of the request, is no end.
            possible = sorted(eos_ids) if stopped is None else [end for end in eos_ids if end == stopped]
            if len(possible) == 1:
                tokens = [*tokens, *possible]
            else:
                ends = tuple(possible)
        if not tokens:
            found.left_out["nothing was written"] += 1
        elif longest is not None and len(prompt.prefix) + len(tokens) + bool(ends) > longest:
            found.left_out[f"longer than the {longest} positions of the target"] += 1
        else:
            found.rows.append(Output(row.where, prompt, tokens, text, ends))
    if not found.rows and not found.left_out:
        raise UserError(f"{path}: it has no rows")
    return found


def _finish(row: Row) -> tuple[object, object]:
    """Why a completion ended, and the token or string at which it stopped, where the row says it (vLLM, SGLang)."""
    reason, stopped = row.fields.get("finish_reason"), row.fields.get("stop_reason")
    if not isinstance(reason, dict):
        return reason, stopped
    return reason.get("type"), reason.get("matched", stopped)


def _prompt(row: Row, vocabulary: Vocabulary, target: str) -> Prompt:
    name = next((name for name in (*PROMPT_IDS, "prompt") if isinstance(row.fields.get(name), list)), None)
    if name is not None:
        ids = _ids(row, name, vocabulary, target)
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
    """The tokens, and the text where they were made of it."""
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
    """A field of token ids. Raises UserError where one is none of the target's."""
    values = cast(list[Any], row.fields[name])
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int):
            raise UserError(f"{row.where}: field '{name}' holds {value!r}, not a token id")
        if not 0 <= value < vocabulary.size:
            raise UserError(
                f"{row.where}: token {value} in '{name}', and target={target} has {vocabulary.size} tokens: these "
                "completions are of another vocabulary; name their target"
            )
    return list(values)


OWN_TEXTS = 16  # of the target, to see how often it writes a text in other tokens than the tokenizer's
BEYOND = 8  # tokens that the target writes past a text that is compared as text
IMPLAUSIBLE = -14.0  # log probability below one in a million: two equal draws are copies
COPIES = "the prompt and the completion of an earlier row"
NOT_ROUND = "encoding the text does not give back its tokens (strings that do not round-trip)"


@dataclass(frozen=True)
class Certified:
    """A certificate; the rows that it rests on and those left out, by reason; the departures by row at T = 0."""

    certificate: Certificate
    target: str
    sampling: Sampling
    processing: str | None  # what else is done to logits, as keys; None: nothing
    dtype: str
    rows: int
    left_out: Counter[str]
    after_end: int
    from_text: int
    departures: list[tuple[str, Departure]]


@dataclass(frozen=True)
class _Setup:
    """The target, and the settings of its readings."""

    config: CertifyConfig
    run: RunConfig
    vocabulary: Vocabulary
    target: Model
    draft: Draft
    sampling: Sampling
    device: torch.device


def certify(config: CertifyConfig, path: Path, say: Say) -> Certified:
    """Test the rows of a file.

    Raises:
        UserError: they do not fit the target.
        MachineError: memory does not suffice, or the target's logits are not finite.
    """
    run = resolve(certify_run(config))
    with translated_errors(run):
        setup = _load(config, run, say)
        name, target = name_of(config.target), setup.target
        found = read_outputs(path, setup.vocabulary, target.eos_ids, target.longest, config.limit, name)
        for line in repeated_tokens(setup.vocabulary, name, found.begun_twice, len(found.rows)):
            say(line)
        say(f"{len(found.rows)} rows to test, {sum(found.left_out.values())} left out")
        greedy = setup.sampling.temperature == 0
        certificate, where = (_greedy if greedy else _sampled)(setup, found)
    return Certified(
        certificate,
        name,
        setup.sampling,
        config.sampling.processing(),
        run.dtype,
        len(found.rows),
        found.left_out,
        found.after_end,
        sum(row.text is not None for row in found.rows),
        where,
    )


def _load(config: CertifyConfig, run: RunConfig, say: Say) -> _Setup:
    if run.threads is not None:
        torch.set_num_threads(run.threads)
    device, loader = torch.device(run.device), ModelLoader()
    vocabulary = load_tokenizer(run.target, "target")
    require_range(run, vocabulary, name_of(run.target))
    builder = builder_for(DraftRequest(run, run.draft, "draft", vocabulary, device, loader))
    builder.fit(say)
    request = ModelRequest(run.target, "target", vocabulary, run, device, needed_of_target([builder]))
    loaded = loader.load(request, say)
    target = processed(loaded, config.sampling, vocabulary)
    return _Setup(config, run, vocabulary, target, builder.load(loaded, say), drawing(config.sampling), device)


def _greedy(setup: _Setup, found: Outputs) -> tuple[Certificate, list[tuple[str, Departure]]]:
    """The certificate, and each row's departures: those that rounding explains, up to the first that it does not."""
    where: list[tuple[str, Departure]] = []
    tokens = 0
    _drop_copies(found, lambda row: True)
    _with_ends(setup, found)
    for row in found.rows:
        differing, tested = _departures(setup, row)
        tokens += tested
        where += [(row.where, one) for one in differing]
    return greedy_certificate(tokens, [one.is_rounding for _, one in where], setup.config.within), where


def _drop_copies(found: Outputs, is_copy: Callable[[Output], bool]) -> None:
    """Leave out rows with the prompt and the completion of an earlier row, as a reused seed or a cache makes them.

    They are no further evidence. A sampled completion may also be drawn twice, so `is_copy` decides.
    """
    seen, rows = set[Hashable](), []
    copies: dict[Hashable, bool] = {}
    for row in found.rows:
        key = (row.prompt, tuple(row.tokens), row.ends, row.text)
        if key in seen and copies.setdefault(key, is_copy(row)):
            found.left_out[COPIES] += 1
        else:
            rows.append(row)
        seen.add(key)
    found.rows[:] = rows


def _log_probability(setup: _Setup, row: Output) -> float:
    """The log-probability (natural) of a completion under the target."""
    tokens, first = [*row.prompt.prefix, *row.tokens], len(row.prompt.prefix)
    total = 0.0
    for start, logits_LV in logits_along(setup.target.start(row.prompt), tokens, first):
        p_LV = standardise(logits_LV, setup.sampling, setup.target.vocabulary_size)
        chosen = torch.tensor(tokens[start : start + len(p_LV)], device=p_LV.device)
        total += float(p_LV.gather(1, chosen[:, None]).double().log().sum())
    return total


def _with_ends(setup: _Setup, found: Outputs) -> None:
    """Append an end to rows that ended with one of several and do not say which.

    At T = 0 it is the end that the target prefers: if that is not its choice, no other end is. At T > 0 it is drawn
    from the target's probabilities of these ends, so that the completions of a right server keep its distribution.
    """
    for place, row in enumerate(found.rows):
        if not row.ends:
            continue
        session = setup.target.start(row.prompt)
        logits_V = session.extend([*row.prompt.prefix, *row.tokens][session.length :])[-1]
        p_E = standardise(logits_V[None], setup.sampling, setup.target.vocabulary_size)[0, list(row.ends)].double()
        if setup.sampling.temperature and float(p_E.sum()) > 0:
            chosen = int(torch.multinomial(p_E, 1, generator=_generator(setup, place)))
        else:
            chosen = int(logits_V[list(row.ends)].argmax())
        found.rows[place] = replace(row, tokens=[*row.tokens, row.ends[chosen]], ends=())


def _departures(setup: _Setup, row: Output) -> tuple[list[Departure], int]:
    """The departures of a row and how many of its tokens were tested.

    A row whose own tokens depart is compared as text: the target may have written it in other tokens.
    """
    target, noise = setup.target, setup.config.noise
    round_trips = row.text is None or setup.vocabulary.text(row.tokens) == row.text
    differing = departures(target, row.prompt, row.tokens, noise) if round_trips else []
    if row.text is None or (round_trips and all(one.is_rounding for one in differing)):
        # All tokens were compared, or those up to the first departure that rounding does not explain.
        faulty = bool(differing) and not differing[-1].is_rounding
        return differing, differing[-1].position + 1 if faulty else len(row.tokens)
    own, whole, complete = _own_text(setup, row)
    ended = row.tokens[-1] in target.eos_ids
    if whole == row.text if ended and complete else whole.startswith(row.text) or not complete:
        return [], min(len(own), len(row.tokens))
    shared = next(
        (count for count in range(len(own), -1, -1) if row.text.startswith(setup.vocabulary.text(own[:count]))), 0
    )
    if shared == len(own) and own[-1] in target.eos_ids:
        shared -= 1  # the target ended its text here, and the row continues
    found = first_difference(target, row.prompt, own, [*own[:shared], -1])
    assert found is not None
    best = own[shared] if shared < len(own) else -1
    moved = found.noise if noise is None else max(found.noise, noise)
    return [Departure(shared, -1, best, found.margin, moved)], shared + 1


def _own_text(setup: _Setup, row: Output) -> tuple[list[int], str, bool]:
    """The target's completion of a row's prompt as tokens and text.

    It stops when it ends, exceeds the row's text, or differs from it. The third value is False if the target's
    positions end before that.
    """
    assert row.text is not None
    most = None if setup.target.longest is None else setup.target.longest - len(row.prompt.prefix)
    room = len(row.tokens) + BEYOND
    while True:
        room = room if most is None else min(room, most)
        own = autoregressive(setup.target, row.prompt, _spec(setup.sampling, room), _generator(setup, 0)).tokens
        whole = setup.vocabulary.text(own)
        begins = row.text.startswith(whole) and len(whole) < len(row.text)
        if not begins or own[-1] in setup.target.eos_ids:
            return own, whole, True
        if room == most:
            return own, whole, False
        room *= 2  # the tokenizer needs fewer tokens for this text than the target


def _sampled(setup: _Setup, found: Outputs) -> tuple[Certificate, list[tuple[str, Departure]]]:
    _drop_copies(found, lambda row: _log_probability(setup, row) < IMPLAUSIBLE)
    _with_ends(setup, found)
    rows = []
    for row in found.rows:
        if row.text is not None and setup.vocabulary.text(row.tokens) != row.text:
            found.left_out[NOT_ROUND] += 1
        else:
            rows.append(row)
    found.rows[:] = rows
    proof = prove(cast(list[PromptRecord], [
        {"proof": evidence(setup.target, setup.draft, row.prompt, row.tokens, setup.sampling)} for row in rows
    ]))  # fmt: skip
    kind = setup.config.draft.kind
    suspect = "" if kind == CertifyConfig().draft.kind else kind  # a draft that the user named, whose faults show
    certificate = sampled_certificate(proof, setup.config.within, suspect=suspect)
    from_text = any(row.text is not None for row in rows)
    if certificate.verdict == "not the target's" and from_text and (retokenised := _retokenised(setup, rows)):
        certificate = sampled_certificate(proof, setup.config.within, retokenised)
    return with_copies(certificate, found.left_out[COPIES], len(rows)), []


def _retokenised(setup: _Setup, rows: Sequence[Output]) -> str:
    """How many of the target's own completions the tokenizer would split differently, in words; '' if none."""
    other, asked = 0, min(OWN_TEXTS, len(rows))
    for number, row in enumerate(rows[:OWN_TEXTS]):
        spec = _spec(setup.sampling, len(row.tokens))
        own = autoregressive(setup.target, row.prompt, spec, _generator(setup, number)).tokens
        text = setup.vocabulary.text(own)
        written = [token for token in own if token not in setup.target.eos_ids]
        other += setup.vocabulary.continuation(text) != written
    if not other:
        return ""
    return (
        f"{other} of {asked} of the target's own completions are retokenised differently, which would also change "
        "these tests; give token ids"
    )


def _spec(sampling: Sampling, tokens: int) -> DecodingSpec:
    return DecodingSpec(sampling, max(1, tokens), Verification(accept_exact, sampling))


def _generator(setup: _Setup, number: int) -> torch.Generator:
    return torch.Generator(setup.device).manual_seed(setup.config.seed * 1_000_003 + number)
