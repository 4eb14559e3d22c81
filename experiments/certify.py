"""How many tokens it takes `specbench certify` to see a planted fault: the table in docs/certify.md.

    python experiments/certify.py [--temperature 0] [--texts 160] [--tokens 96]
    python experiments/certify.py --engines [--temperature 0] [--texts 60] [--tokens 64]

gpt-mini in fp32 on the first words of its task's passages. Each fault generates as many completions; they are then
tested one after another in 100 orders, and the table has the tokens after which nine of ten orders had a verdict 'not
the target's'. `--engines` plants the faults that engines had, instead of the others. Nothing depends on the time that
anything takes. Writes docs/certify.csv, the rows of one temperature anew.
"""

import argparse
import csv
import itertools
import json
import random
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from specbench.algorithm.acceptance.rules.exact import accept_exact
from specbench.algorithm.acceptance.rules.lenient import lenient
from specbench.algorithm.acceptance.verify import Verification
from specbench.algorithm.decoding import DecodingSpec, autoregressive, speculative
from specbench.algorithm.gamma import Constant
from specbench.analysis.acceptance.agreement import logits_along, total_variation
from specbench.analysis.proof import prove
from specbench.analysis.proof.departures import departures
from specbench.analysis.proof.evidence import evidence
from specbench.analysis.proof.foreign import Foreign
from specbench.config.model import ModelConfig
from specbench.config.paths import shipped
from specbench.engine.eager.model import EagerModel
from specbench.engine.session import Prompt, Session
from specbench.engine.weights.load import load_model
from specbench.methods.model.draft import ModelDraft
from specbench.methods.ngram.draft import UniformDraft
from specbench.records.decoded import Trace
from specbench.records.prompt_sums import Evidence, Sums
from specbench.sampling import Sampling, TokenChoice, before_argmax, draw, standardise
from specbench.tasks.row_files import read_rows
from specbench.text.tokenizer import load_tokenizer

GAMMA, PROMPT_WORDS, ORDERS, SHARE = 4, 8, 100, 0.9
TABLE = Path(__file__).resolve().parent.parent / "docs" / "certify.csv"
COLUMNS = ("temperature", "fault", "total_variation", "tokens", "tokens_with_draft", "tokens_read")
Writer = Callable[[Prompt, torch.Generator], list[int]]


class Fault(NamedTuple):
    """A name, what writes the texts, and what they are drawn from in place of the target: for the total variation."""

    name: str
    write: Writer
    drawn_from: EagerModel | None = None
    sampling: Sampling | None = None
    lenience: float | None = None
    claimed: Sampling | None = None  # the sampling that the server claims, if it is not the command's


def model(name: str) -> EagerModel:
    config = ModelConfig(name=name, shipped=name)
    vocabulary = load_tokenizer(config, "target")
    return load_model(config, "target", vocabulary, torch.float32, torch.device("cpu"))


def rounded(target: EagerModel, bits: int) -> EagerModel:
    """The target with each matrix rounded to whole numbers of `bits` bits, with a scale for each of its outputs."""
    network = deepcopy(target.network)
    highest = 2 ** (bits - 1) - 1
    with torch.no_grad():
        for weight in network.parameters():
            if weight.dim() == 2:
                scale = weight.abs().amax(0, keepdim=True).clamp(min=1e-12) / highest
                weight.copy_((weight / scale).round() * scale)
    return EagerModel(network, target.vocabulary_size, target.eos_ids)


def faults(target: EagerModel, draft: EagerModel, temperature: float, most: int) -> Iterator[Fault]:
    sampling = Sampling(temperature)
    proposing = ModelDraft(draft, target.vocabulary_size)

    def alone(one: EagerModel, drawn: Sampling = sampling) -> Writer:
        spec = DecodingSpec(drawn, most, Verification(accept_exact, drawn))
        return lambda prompt, generator: autoregressive(one, prompt, spec, generator).tokens

    def loop(verification: Verification) -> Writer:
        spec = DecodingSpec(sampling, most, verification, Constant(GAMMA))
        return lambda prompt, generator: speculative(target, proposing, prompt, spec, generator).tokens

    def assisted(prompt: Prompt, generator: torch.Generator) -> list[int]:
        torch.manual_seed(generator.initial_seed())
        ids = torch.tensor([prompt.prefix])
        sampled = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature else {}
        text = target.network.generate(
            ids, attention_mask=torch.ones_like(ids), assistant_model=draft.network, max_new_tokens=most, **sampled
        )
        return text[0, ids.shape[1] :].tolist()

    def one_in(often: int) -> Writer:
        """Each token is, once in `often`, any token of the vocabulary, after which the target goes on."""

        def write(prompt: Prompt, generator: torch.Generator) -> list[int]:
            session, tokens = target.start(prompt), list(prompt.prefix)
            while len(tokens) < len(prompt.prefix) + most:
                p_1V = standardise(session.extend(tokens[session.length :])[-1:], sampling, target.vocabulary_size)
                is_foreign = float(torch.rand((), generator=generator)) < 1 / often
                row_V = torch.ones_like(p_1V[0]) / p_1V.shape[-1] if is_foreign else p_1V[0]
                tokens.append(draw(row_V, generator))
                if tokens[-1] in target.eos_ids:
                    break
            return tokens[len(prompt.prefix) :]

        return write

    yield Fault("none: our speculative decoding", loop(Verification(accept_exact, sampling)))
    yield Fault("none: assisted generation of transformers", assisted)
    for other in (0.95, 0.9, 0.7) if temperature else (0.3, 0.1):
        yield Fault(f"temperature {other:g}", alone(target, Sampling(other)), target, Sampling(other))
    for often in (50, 100, 200) if temperature else ():
        yield Fault(f"one token in {often} is any token", one_in(often))
    for lenience in (0.5, 0.3, 0.1):
        rule = Verification(lenient(lenience, sampling), before_argmax(sampling))
        yield Fault(f"lossy rule, lenience {lenience:g}", loop(rule), lenience=lenience)
    for bits in (8, 6, 4):
        other_target = rounded(target, bits)
        yield Fault(f"weights rounded to {bits} bits", alone(other_target), other_target, sampling)
    yield Fault("another model, gpt-nano", alone(draft), draft, sampling)


class StaleSession:
    """A session in which a rejected token's keys and values remain in place of the replacing token's.

    The pass that reads the replacement is right; later passes attend to the stale row.
    """

    def __init__(self, inner: Session) -> None:
        self.inner, self.begins = inner, inner.length
        self.read: list[int] = []
        self.rejected: int | None = None

    @property
    def length(self) -> int:
        return self.inner.length

    def extend(self, tokens: Any, parents: Any = None) -> torch.Tensor:
        logits_LV = self.inner.extend(tokens).clone()
        if self.rejected is not None:
            self.inner.rollback(self.length - len(tokens))
            self.inner.extend([self.rejected, *tokens[1:]])
            self.rejected = None
        self.read += tokens
        return logits_LV

    def rollback(self, length: int) -> None:
        left = length - self.begins
        self.rejected = self.read[left] if left < len(self.read) else None
        del self.read[left:]
        self.inner.rollback(length)


class Stale(EagerModel):
    def start(self, prompt: Prompt) -> Any:
        return StaleSession(super().start(prompt))


class TwoTruncations(TokenChoice):
    """Draws from a row as `sampling` truncates it, and reports it as `reported` does."""

    def __init__(self, sampling: Sampling, reported: Sampling, vocabulary_size: int) -> None:
        super().__init__(sampling, vocabulary_size)
        self.reported = reported

    def on_device(
        self, logits_1V: torch.Tensor, uniform_1: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        token_1, _ = super().on_device(logits_1V, uniform_1)
        return token_1, standardise(logits_1V, self.reported, self.vocabulary_size)


class TruncatedDraft(ModelDraft):
    """Its tokens are drawn from q as `drawn` truncates it, and compared as `compared` does."""

    def __init__(self, model: EagerModel, vocabulary_size: int, drawn: Sampling, compared: Sampling) -> None:
        super().__init__(model, vocabulary_size)
        self.drawn, self.compared = drawn, compared

    def start(self, prompt: Prompt, sampling: Sampling) -> Any:
        session = super().start(prompt, sampling)
        session.choice = TwoTruncations(self.drawn, self.compared, self.vocabulary_size)
        return session


def engine_faults(target: EagerModel, draft: EagerModel, temperature: float, most: int) -> Iterator[Fault]:
    """Faults that engines had; at T = 0 those that change completions there."""
    sampling, size = Sampling(temperature), target.vocabulary_size
    stale, proposing = Stale(target.network, size, target.eos_ids), ModelDraft(draft, size)

    def loop(one: EagerModel, drafting: ModelDraft) -> Callable[..., Trace]:
        spec = DecodingSpec.algorithm_1(sampling, most, GAMMA)
        return lambda prompt, generator: speculative(one, drafting, prompt, spec, generator)

    def all_of(decode: Callable[..., Trace]) -> Writer:
        return lambda prompt, generator: decode(prompt, generator).tokens

    def without_bonus(prompt: Prompt, generator: torch.Generator) -> list[int]:
        found = loop(target, proposing)(prompt, generator)
        start, kept = 0, list[int]()
        for one in found.passes:
            tokens = found.tokens[start : start + one.emitted]
            kept += tokens[:-1] if one.accepted == one.drafted < one.emitted else tokens
            start += one.emitted
        return kept

    def temperature_last(first: Sampling, last: float) -> Writer:
        def write(prompt: Prompt, generator: torch.Generator) -> list[int]:
            session, tokens = target.start(prompt), list(prompt.prefix)
            for _ in range(most):
                row_V = standardise(session.extend(tokens[session.length :])[-1:], first, size)[0] ** (1 / last)
                tokens.append(draw(row_V / row_V.sum(), generator))
                if tokens[-1] in target.eos_ids:
                    break
            return tokens[len(prompt.prefix) :]

        return write

    yield Fault("a stale cache row after a rejection", all_of(loop(stale, proposing)))
    yield Fault("a dropped bonus token", without_bonus)
    if temperature:
        top_k, top_p = Sampling(temperature, top_k=10), Sampling(temperature, top_p=0.9)
        pairs = {
            "top 10 of q drawn, all of q compared": (top_k, sampling),
            "top-p 0.9 of q drawn, all of q compared": (top_p, sampling),
            "all of q drawn, top 10 of q compared": (sampling, top_k),
            "all of q drawn, top-p 0.9 of q compared": (sampling, top_p),
            "none: top 10 of q drawn and compared with all of p": (top_k, top_k),
        }
        for name, (drawn, compared) in pairs.items():
            yield Fault(name, all_of(loop(target, TruncatedDraft(draft, size, drawn, compared))))
        for name, claimed in (("top 10", top_k), ("top-p 0.9", top_p)):
            yield Fault(f"all of p compared, {name} claimed", all_of(loop(target, proposing)), claimed=claimed)
        for name, first in (("top-k 10", Sampling(1.0, top_k=10)), ("top-p 0.9", Sampling(1.0, top_p=0.9))):
            claimed = replace(first, temperature=0.7)
            yield Fault(f"temperature 0.7 after {name}", temperature_last(first, 0.7), claimed=claimed)


def varied(
    target: EagerModel, draft: EagerModel, fault: Fault, prompt: Prompt, text: Sequence[int], sampling: Sampling
) -> float:
    """The sum over a text's tokens of the total variation between what they are drawn from and the target."""
    if fault.drawn_from is None and fault.lenience is None:
        return 0.0
    tokens, first, size = [*prompt.prefix, *text], len(prompt.prefix), target.vocabulary_size
    other = fault.drawn_from or draft
    total = 0.0
    readings = zip(*(logits_along(one.start(prompt), tokens, first) for one in (target, other)), strict=True)
    for (_, p_LV), (_, q_LV) in readings:
        if fault.lenience is not None:
            warm = before_argmax(sampling)
            rule, q = lenient(fault.lenience, sampling), standardise(q_LV, sampling, size)
            total += float(total_variation(rule, standardise(p_LV, warm, size), q).sum())
        else:
            p, q = standardise(p_LV, sampling, size), standardise(q_LV, fault.sampling or sampling, size)
            total += float((p - q).clamp(min=0).sum())
    return total


def tokens_to_see(seen_after: Callable[[Sequence[int]], int | None], lengths: Sequence[int]) -> int | None:
    """Tokens after which nine of ten orders of the texts are seen to be faulty; None if they are not.

    `seen_after` says after how many texts of an order this happens.
    """
    generator, needed = random.Random(0), list[int]()
    for _ in range(ORDERS):
        order = generator.sample(range(len(lengths)), len(lengths))
        count = seen_after(order)
        needed += [] if count is None else [sum(lengths[index] for index in order[:count])]
    enough = int(SHARE * ORDERS)
    return sorted(needed)[enough - 1] if len(needed) >= enough else None


def fails_after(records: Sequence[Evidence], foreign: Sequence[Foreign], order: Sequence[int]) -> int | None:
    """After how many texts the proof fails for the first time, or the test of foreign tokens."""
    together, others = deepcopy(records[order[0]]), Foreign()
    for count, index in enumerate(order, 1):
        if count > 1:
            _add(together, records[index])
        others.nats = [one + other for one, other in zip(others.nats, foreign[index].nats, strict=True)]
        proof = prove([{"proof": together}])  # type: ignore[list-item, typeddict-item]
        if (proof is not None and proof.failed) or others.failed:
            return count
    return None


def _add(together: Evidence | Sums, one: Evidence | Sums) -> None:
    for name, value in vars(one).items():
        if isinstance(value, Sums):
            _add(getattr(together, name), value)
        else:
            setattr(together, name, getattr(together, name) + value)


def sampled_row(
    fault: Fault, target: EagerModel, draft: EagerModel, prompts: Sequence[Prompt], sampling: Sampling
) -> dict[str, Any]:
    texts = written(fault, prompts)
    pairs = list(zip(prompts, texts, strict=True))
    uniform = UniformDraft(target.vocabulary_size, target.device)
    foreign = [Foreign() for _ in pairs]
    raw = [
        [evidence(target, uniform, *pair, sampling, seen=one.add) for pair, one in zip(pairs, foreign, strict=True)],
        [evidence(target, ModelDraft(draft, target.vocabulary_size), *pair, sampling) for pair in pairs],
    ]
    lengths = list(map(len, texts))
    without, with_draft = (tokens_to_see(partial(fails_after, records, foreign), lengths) for records in raw)
    variation = None
    if fault.name.startswith("none") or fault.drawn_from is not None or fault.lenience is not None:
        variation = sum(varied(target, draft, fault, *pair, sampling) for pair in pairs) / sum(lengths)
    return {
        "total_variation": variation,
        "tokens": without,
        "tokens_with_draft": with_draft,
        "tokens_read": sum(lengths),
    }


def greedy_row(
    fault: Fault, target: EagerModel, draft: EagerModel, prompts: Sequence[Prompt], sampling: Sampling
) -> dict[str, Any]:
    texts = written(fault, prompts)
    found = [departures(target, *pair) for pair in zip(prompts, texts, strict=True)]
    faulty = [bool(one) and not one[-1].is_rounding for one in found]
    lengths = [one[-1].position + 1 if bad else len(text) for one, bad, text in zip(found, faulty, texts, strict=True)]
    return {
        "total_variation": None,
        "tokens": tokens_to_see(partial(_departs_after, faulty), lengths),
        "tokens_with_draft": None,
        "tokens_read": sum(lengths),
    }


def _departs_after(faulty: Sequence[bool], order: Sequence[int]) -> int | None:
    return next((count for count, index in enumerate(order, 1) if faulty[index]), None)


def written(fault: Fault, prompts: Sequence[Prompt]) -> list[list[int]]:
    return [fault.write(prompt, torch.Generator().manual_seed(number)) for number, prompt in enumerate(prompts)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--texts", type=int, default=160)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--engines", action="store_true", help="the faults that engines had")
    parser.add_argument("--faults", default="", help="only those whose name has this in it")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    target, draft = model("gpt-mini"), model("gpt-nano")
    vocabulary = load_tokenizer(ModelConfig(name="gpt-mini", shipped="gpt-mini"), "target")
    passages = (read_rows(shipped("data", name)) for name in ("sum-mini.jsonl.gz", "sum-mini-train.jsonl.gz"))
    rows = itertools.islice(itertools.chain.from_iterable(passages), arguments.texts)
    starts = [" ".join(row.text("article", "").split()[:PROMPT_WORDS]) for row in rows]
    prompts = [vocabulary.prompt(text, "", 128) for text in starts]
    sampling = Sampling(arguments.temperature)
    judge = sampled_row if arguments.temperature else greedy_row
    kept = list(csv.DictReader(TABLE.open())) if TABLE.exists() else []
    planted = engine_faults if arguments.engines else faults
    for fault in planted(target, draft, arguments.temperature, arguments.tokens):
        if arguments.faults not in fault.name:
            continue
        row = {"temperature": f"{arguments.temperature:g}", "fault": fault.name}
        row |= {
            name: _text(value)
            for name, value in judge(fault, target, draft, prompts, fault.claimed or sampling).items()
        }
        print(json.dumps(row), flush=True)
        kept = [one for one in kept if (one["temperature"], one["fault"]) != (row["temperature"], row["fault"])] + [row]
        with TABLE.open("w", newline="") as opened:
            writer = csv.DictWriter(opened, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(sorted(kept, key=lambda one: -float(one["temperature"])))


def _text(value: object) -> str:
    return "" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
