"""Measure a server with a draft against the same target without one: speedup, times, acceptance, and the verdict.

With one request at a time the servers answer each prompt in turn, in alternating order, so that a machine that slows
down slows both. With several at once, and with arrivals, blocks of prompts alternate. Finished blocks are in the
journal: an interrupted measurement goes on after them.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol, cast

from specbench.border import Unreadable
from specbench.config.model import name_of
from specbench.config.schema import RunConfig
from specbench.config.server import ServerConfig, address, check_server
from specbench.environment import code, commit_of, environment, time_stamp
from specbench.errors import MachineError, UserError
from specbench.escaping import file_name
from specbench.experiment.identity import content_of
from specbench.files import again, json_digest, require_writable
from specbench.interop.server.asked import Prompts, prompts_of
from specbench.interop.server.client import Client
from specbench.interop.server.server_summary import counted, gamma_of, summary_of
from specbench.interop.server.two_clients import Alone, Servers, connect
from specbench.interop.server.verdict import Completed, verdict_of
from specbench.interop.server.when_sent import Load, Request, answers
from specbench.records import store
from specbench.records.decoded import Trace
from specbench.records.journal import Journal, codes_of
from specbench.records.prediction import DraftingPlan
from specbench.records.run_record import SCHEMA_VERSION, PromptRecord, RunRecord, ServedRecord
from specbench.records.served import UNKNOWN, Answer, DraftCounts, is_served
from specbench.records.store import Result
from specbench.sampling import Sampling
from specbench.tasks import Example
from specbench.text.vocabulary import Vocabulary

# What is no part of a measurement: where its record lies, and how long it waits.
NOT_IDENTITY = ("results", "force", "timeout", "token_env", "url", "plain", "batch", "rates")
LONGER = 0.2  # of its tokens that a text may have more or fewer when it is tokenised anew, before a count is wrong
FEW = 4  # tokens that it may differ in anyway


class Progress(Protocol):
    """Receives the progress of a measurement."""

    def say(self, text: str) -> None:
        """The current step."""

    def note(self, text: str) -> None:
        """A line that must remain on the screen."""

    def advance(self, done: int, total: int, now: str = "") -> None:
        """So many prompts are done."""


def measure(
    config: ServerConfig, progress: Progress, asked: Callable[[], None] | None = None, device: str | None = None,
    alone: Alone = nullcontext,
) -> list[Result]:  # fmt: skip
    """Measure each load that `config` asks for (batch, rates), and write the record of each once it is done.

    A record of the same config and the same engine is returned as it is, unless `force`. With `asked` the target is
    loaded for the verdicts, and records are written, only after all loads: `asked` lets the servers go before that.
    `device` and `alone` belong to servers that were started here.

    Raises:
        UserError: the config does not hold, or an address is not a server of this API.
        MachineError: a server failed; what was measured is kept, and the same call goes on.
    """
    check_server(config)
    require_writable(config.results)
    servers = replace(connect(config), device=device, alone=alone)
    progress.say(f"{servers.named()}: {servers.identity.model}")
    prompts = prompts_of(config, progress.say)
    with ExitStack() as held:
        found: list[Result | _Asking] = []
        for load in loads_of(config):
            one = _asked(config, servers, prompts, load, progress, held)
            found.append(_recorded(one) if asked is None else one)
        if asked is not None:
            asked()
        return [_recorded(one) for one in found]


def loads_of(config: ServerConfig) -> list[Load]:
    """The loads that are measured: each batch, and each rate; with rates one at a time only if batch= names it.

    Their order does not depend on the lists' order: two processes that measure the same lock the same journals.
    """
    batches = [] if config.rates and config.batch == [1] else config.batch
    return [*(Load(batch=one) for one in sorted({*batches})), *(Load(rate=one) for one in sorted({*config.rates}))]


def run_id_of(config: ServerConfig, servers: Servers, load: Load) -> str:
    """The id of a measurement, of its config, its engine and the files that it names.

    Flags, if told, stand for the address.
    """
    frozen = {key: value for key, value in asdict(config).items() if key not in NOT_IDENTITY}
    frozen["content"] = content_of(RunConfig(target=config.target, draft=config.draft, task=config.task))
    told = [address(config.url), config.plain and address(config.plain)] if config.flags is None else []
    where = {"engine": config.engine or servers.named(), "model": servers.identity.model, "address": told}
    names = f"{servers.identity.model.rpartition('/')[2] or 'model'}-{config.draft_name}-{config.task.name}"
    setting = f"T{config.sampling.temperature:g}-g{'' if config.gamma is None else config.gamma}"
    setting += f"-b{load.batch}" if load.batch > 1 else "" if load.rate is None else f"-r{load.rate:g}"
    return file_name(
        f"served-{names}", f"-{setting}-{json_digest([frozen, where, asdict(load), config.plain is None])}"
    )


def _asked(
    config: ServerConfig, servers: Servers, prompts: Prompts, load: Load, progress: Progress, held: ExitStack
) -> "Result | _Asking":
    """The record of a load if it is there; otherwise its asked prompts, with their journal, which `held` closes."""
    run_id = run_id_of(config, servers, load)
    file = store.record_file(config.results, run_id)
    if (there := None if config.force else _existing(file)) is not None:
        return Result(file, there, reused=True)
    waiting = f"{run_id}: another process measures this; waiting"
    journal = held.enter_context(Journal(config.results, run_id, lambda: progress.note(waiting)))
    if config.force:
        journal.restart()
    asking = _Asking(config, servers, prompts, load, journal, progress)
    if asking.missing():
        journal.begin_part(time_stamp(), asking.plan, code())
        try:
            asking.ask_missing()
        except MachineError as error:
            raise MachineError(f"{error}{again()}" if journal.prompts else str(error)) from error
    return asking


def _recorded(asking: "Result | _Asking") -> Result:
    """The record of a load whose prompts are asked, written; or a record that is there, as it is."""
    if isinstance(asking, Result):
        return asking
    config, journal = asking.config, asking.journal
    record = _record(asking)
    store.write(config.results, record)
    journal.remove()
    return Result(store.record_file(config.results, journal.run_id), cast(RunRecord, record), reused=False)


def _existing(file: Path) -> RunRecord | None:
    try:
        found = store.read(file) if file.exists() else None
    except Unreadable:
        return None
    return found if found is not None and is_served(found) else None


class _Asking:
    """The prompts of one load at both servers, with what the journal has of them."""

    def __init__(
        self, config: ServerConfig, servers: Servers, prompts: Prompts, load: Load, journal: Journal, progress: Progress
    ) -> None:
        self.config, self.servers, self.prompts, self.load = config, servers, prompts, load
        self.journal, self.progress = journal, progress
        self.plan = DraftingPlan(config.gamma if config.gamma is not None else "server", config.gamma)
        drawn = config.sampling
        self.sampling = Sampling(drawn.temperature, drawn.top_k, drawn.top_p, drawn.min_p)

    def missing(self) -> bool:
        """Whether prompts are still to be asked."""
        return any(example.index not in self.journal.prompts for example in self.prompts.examples)

    def ask_missing(self) -> None:
        """Ask what the journal lacks, block by block. Raises what a server's answer raises."""
        clients = [one for one in (self.servers.drafting, self.servers.plain) if one is not None]
        first = self.request(self.prompts.examples[0])
        for _ in range(self.config.warmup):
            for client in clients:
                client.ask(first.prompt, first.tokens, first.sampling, first.seed)
        total = len(self.prompts.examples)
        for number, block in enumerate(self.blocks()):
            if any(example.index not in self.journal.prompts for example in block):
                self.ask(block, number)
                self.progress.advance(len(self.journal.prompts), total)

    def blocks(self) -> Iterator[list[Example]]:
        """The examples that are asked together."""
        examples = self.prompts.examples
        size = self.load.block(len(examples))
        for start in range(0, len(examples), size):
            yield examples[start : start + size]

    def answers_before(self, example: Example) -> list[str]:
        """The answers to the turns before an example, without a draft if there is such a server."""
        earlier = len(example.turns) - 1
        return [
            self.journal.prompts[example.index - back]["baseline" if self.servers.plain else "speculative"].text
            for back in range(earlier, 0, -1)
        ]

    def request(self, example: Example) -> Request:
        """The request of an example."""
        asked = self.prompts.asked(example, self.answers_before(example) if len(example.turns) > 1 else ())
        return Request(asked, self.config.max_new_tokens, self.sampling, self.config.seed + example.index)

    def ask(self, block: Sequence[Example], number: int) -> None:
        """Ask a block at both servers, the order of which alternates, and add it to the journal."""
        requests = [self.request(example) for example in block]
        found: dict[str, tuple[list[Answer], float]] = {}
        order = ["drafting", *(["plain"] if self.servers.plain is not None else [])]
        for which in order if number % 2 == 0 else order[::-1]:
            client: Client = getattr(self.servers, which)
            with self.servers.alone(which):
                before = self._counts(client) if which == "drafting" else None
                found[which] = answers(client, requests, self.load, self.config.seed + number)
                if which == "drafting":
                    self._count(client, found[which][0], before)
            for answer in found[which][0]:
                self._require_right_count(client, answer)
        drafted, wall_s = found["drafting"]
        plain, plain_wall_s = found.get("plain", ([None] * len(block), None))
        shares, plain_shares = (_shares(some) for some in (drafted, plain))
        for place, example in enumerate(block):
            self.journal.add(
                self._prompt(
                    example, requests[place], drafted[place], plain[place], number, wall_s * shares[place],
                    None if plain_wall_s is None else plain_wall_s * plain_shares[place],
                )
            )  # fmt: skip

    def _prompt(
        self, example: Example, request: Request, drafted: Answer, plain: Answer | None, block: int, wall_s: float,
        plain_wall_s: float | None,
    ) -> PromptRecord:  # fmt: skip
        shared = self.load.batch > 1
        prompt: PromptRecord = {
            "index": example.index,
            "prompt": self.prompts.shown(example, self.answers_before(example)),
            "reference": example.reference,
            "prompt_tokens": len(request.prompt.ids or ()),
            "baseline": Trace([], 0.0, 0.0) if plain is None else _trace(plain, plain_wall_s if shared else None),
            "speculative": _trace(drafted, wall_s if shared else None),
            "difference": None,
            "beta": _outcomes(drafted.counts),
            "served": {
                "drafted": drafted, "plain": plain, "block": block, "wall_s": wall_s, "plain_wall_s": plain_wall_s,
            },
        }  # fmt: skip
        if example.category is not None:
            prompt["category"] = example.category
        if example.turns:
            prompt["turn"] = len(example.turns)
        return prompt

    def _counts(self, client: Client) -> DraftCounts | None:
        """The counters before a request; None if answers have their own, or there are none."""
        return None if client.counts_itself else client.draft_counts()

    def _count(self, client: Client, given: Sequence[Answer], before: DraftCounts | None) -> None:
        """Note what the server counted of `given`. Raises MachineError if it also counted other requests."""
        if any(one.counts is not None for one in given):
            client.counts_itself = True
            return
        if before is None or (after := _settled(client, before)) is None:
            return
        seen = after.since(before)
        tokens = sum(one.tokens for one in given)
        if min(seen.drafted, seen.accepted, seen.passes or 0) < 0:
            raise MachineError(f"{client.name}: its /metrics went back; it was started anew")
        longest = len(seen.at_position) or (self.config.gamma or 0)
        if (seen.passes or 0) + seen.accepted > tokens + len(given) * (longest + 1) + 1:
            raise MachineError(
                f"{client.name}: counted {(seen.passes or 0) + seen.accepted} tokens of passes for texts of {tokens}; "
                "the server also works for others: measure it when nobody else asks"
            )
        given[0].counts, given[0].counted_by = replace(seen, prompts=len(given)), "/metrics"

    def _require_right_count(self, client: Client, answer: Answer) -> None:
        """Compare the number of tokens with the text. Raises UserError if it cannot be the text's."""
        vocabulary: Vocabulary | None = self.prompts.vocabulary
        if vocabulary is None or answer.ids is not None:
            return
        written = len(vocabulary.continuation(answer.text))
        if abs(written - answer.tokens) > max(FEW, LONGER * written):
            raise UserError(
                f"{client.name}: counts {answer.tokens} tokens for a text of {written}; its counts are wrong, or it "
                f"does not run target={name_of(self.config.target)}"
            )

    def completed(self) -> list[Completed]:
        """All prompts as they were asked, with their answers, for the verdict."""
        found = []
        for example in self.prompts.examples:
            served = self.journal.prompts[example.index]["served"]
            request = self.request(example)
            found.append(Completed(request.prompt, request.seed, served["drafted"], served["plain"]))
        return found


def _settled(client: Client, before: DraftCounts) -> DraftCounts | None:
    """The counters once they no longer change: an engine may count a pass a moment after it answered."""
    found = client.draft_counts()
    for _ in range(5):
        time.sleep(0.01)
        now = client.draft_counts()
        if now == found and now != before:
            break
        found = now
    return found


def _shares(given: Sequence[Answer | None]) -> list[float]:
    """The share of each answer in the tokens of all."""
    tokens = [0 if one is None else one.tokens for one in given]
    whole = sum(tokens)
    return [one / whole if whole else 1 / len(tokens) for one in tokens]


def _trace(answer: Answer, share_s: float | None) -> Trace:
    """An answer as records have a decoding; `share_s`: of several at once its share of the time of all."""
    first_s = 0.0 if share_s is not None else answer.first_s or 0.0
    whole_s = answer.seconds if share_s is None else share_s
    tokens = answer.ids if answer.ids is not None else [UNKNOWN] * answer.tokens
    return Trace(tokens, first_s, max(0.0, whole_s - first_s), text=answer.text)


def _outcomes(counts: DraftCounts | None) -> list[float]:
    """1 for each draft token that was verified and accepted, 0 for each rejection, if both are known."""
    if counts is None or not counts.passes or not counts.at_position:
        return []
    if counts.drafted != counts.passes * len(counts.at_position):
        return []
    return [1.0] * counts.accepted + [0.0] * (counts.passes - counts.at_position[-1])


def _record(asking: _Asking) -> ServedRecord:
    config, servers, prompts, load = asking.config, asking.servers, asking.prompts, asking.load
    journal, plan = asking.journal, asking.plan
    records = [journal.prompts[example.index] for example in prompts.examples]
    served = [prompt["served"] for prompt in records]
    gamma = gamma_of(served, plan.gamma, servers.drafting.name)
    found = counted(served, gamma)
    counts = None if found.drafted is None or found.accepted is None else (found.drafted, found.accepted)
    folder = Path(config.results) / "server"
    verdict = verdict_of(config, asking.completed(), counts, folder, journal.run_id, asking.progress.say)
    surroundings = environment()
    surroundings["commit"] = commit_of(codes_of(journal.parts))
    engine = config.engine or servers.named()
    summary = summary_of(
        config, load, records, verdict, found, gamma, engine, servers.identity.model, prompts.sent, surroundings,
        servers.device,
    )  # fmt: skip
    frozen: dict[str, Any] = asdict(replace(config, force=False)) | {"batch": load.batch, "rate": load.rate}
    for name in ("rates", "timeout", "token_env"):
        del frozen[name]
    if config.flags is not None:  # they say what is served there, wherever that is
        frozen["url"], frozen["plain"] = None, config.plain and "plain"
    frozen["engine"] = engine
    frozen["draft"] = {**frozen["draft"], "name": config.draft_name}
    if not config.names_target:
        frozen["target"] = {"name": servers.identity.model}
    ids = {one for prompt in records for way in ("baseline", "speculative") for one in cast(Any, prompt)[way].tokens}
    pieces = {} if prompts.vocabulary is None else prompts.vocabulary.pieces(ids - {UNKNOWN})
    return {
        "schema_version": SCHEMA_VERSION,
        "run_id": journal.run_id,
        "summary": summary,
        "config": frozen,
        "gamma": replace(plan, gamma=gamma),
        "environment": surroundings,
        "processes": journal.parts,
        "pieces": {str(token): text for token, text in pieces.items()},
        "prompts": records,
    }
