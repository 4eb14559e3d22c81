"""Logits processed as servers do: the rows of `transformers`, the exact law of speculative decoding, and the command.

The law is enumerated on the toy model (`laws.Law`); two planted faults must change it.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest
import torch
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from specbench.algorithm.acceptance.rules.lenient import lenient
from specbench.cli import main
from specbench.config.model import ModelConfig
from specbench.config.schema import SamplingConfig
from specbench.config.verbs import CertifyConfig, certify_run
from specbench.engine.session import Prompt
from specbench.errors import UserError
from specbench.methods.model.draft import ModelDraft
from specbench.sampling import Sampling, most_likely, standardise
from specbench.text.processed import ProcessedModel, ProcessedSession
from specbench.text.processors import Processors, processors
from specbench.text.tokenizer import load_tokenizer
from specbench.text.vocabulary import Vocabulary
from tests.support.decode import autoregressive, speculative
from tests.support.laws import Law, token_by_token, total_variation
from tests.support.toy import EOS, PROMPT, START, VOCABULARY, ToyModel, exact, random_table

WIDE, ENDS = 50, frozenset({7, 9})
ONE = Sampling(1.0)


def rows(seed: int, count: int = 1) -> torch.Tensor:
    return 3 * torch.randn(count, WIDE, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("seed", range(5))
def test_rows_are_those_of_transformers_in_its_order(seed: int) -> None:
    sequence = torch.randint(WIDE, (24,), generator=torch.Generator().manual_seed(seed)).tolist()
    prompt, logits_1V = 10, rows(seed) / 3
    bad = [[3], [sequence[-1], 11], [sequence[-2], sequence[-1], 12], [sequence[0], 13], [9]]
    own = Processors(WIDE, ENDS, repetition=1.3, bad_words=tuple(map(tuple, bad)), min_new_tokens=20)
    theirs = LogitsProcessorList([
        RepetitionPenaltyLogitsProcessor(1.3), NoBadWordsLogitsProcessor(bad),
        MinLengthLogitsProcessor(prompt + 20, sorted(ENDS)),
        MinNewTokensLengthLogitsProcessor(prompt, 20, sorted(ENDS)),
        TemperatureLogitsWarper(0.7), TopKLogitsWarper(30), TopPLogitsWarper(0.95), MinPLogitsWarper(0.02),
    ])  # fmt: skip
    wanted = theirs(torch.tensor([sequence]), logits_1V.clone()).softmax(-1)
    found = standardise(own.processed(logits_1V, [sequence], prompt), Sampling(0.7, 30, 0.95, 0.02), WIDE)
    assert (found - wanted).abs().max() < 1e-6
    assert (found == 0).equal(wanted == 0) and 1 < int((found > 0).sum()) < 30


@pytest.mark.parametrize("seed", range(5))
def test_presence_and_frequency_are_subtracted_for_tokens_of_the_completion_alone(seed: int) -> None:
    """vLLM: logits -= frequency * count + presence * (count > 0), of the generated tokens."""
    sequence = torch.randint(8, (24,), generator=torch.Generator().manual_seed(seed)).tolist()
    found = Processors(WIDE, ENDS, presence=0.4, frequency=0.3).processed(rows(seed), [sequence], 10)
    counts = torch.bincount(torch.tensor(sequence[10:]), minlength=WIDE)
    assert (found - (rows(seed) - 0.3 * counts - 0.4 * (counts > 0))).abs().max() < 1e-6


def test_min_p_keeps_the_likeliest_at_any_share() -> None:
    for share in (1e-3, 0.1, 1.0):
        p_LV = standardise(rows(0, 4), Sampling(1.0, min_p=share), WIDE)
        plain_LV = rows(0, 4).softmax(-1)
        kept = plain_LV >= share * plain_LV.amax(-1, keepdim=True)
        assert (p_LV > 0).equal(kept) and torch.allclose(p_LV.sum(-1), torch.ones(4))


def test_the_processors_leave_the_logits_of_the_engine_alone() -> None:
    logits, before = rows(1), rows(1)
    Processors(WIDE, ENDS, repetition=2.0, min_new_tokens=5).processed(logits, [[1, 2, 3]], 1)
    assert logits.equal(before)


# The law of whole texts.

TARGET, DRAFT = ToyModel(random_table(1)), ToyModel(0.6 * random_table(1) + 0.4 * random_table(2))
ON = {
    "penalties": Processors(VOCABULARY, frozenset({EOS}), repetition=1.6, presence=0.5, frequency=0.7),
    "bad words": Processors(VOCABULARY, frozenset({EOS}), bad_words=((0,), (2, 2))),
    "minimum length": Processors(VOCABULARY, frozenset({EOS}), min_new_tokens=3),
    "bias": Processors(VOCABULARY, frozenset({EOS}), bias=((0, 1.5), (2, -0.7))),
    "no repeated bigram": Processors(VOCABULARY, frozenset({EOS}), ngram=2),
    "suppressed": Processors(VOCABULARY, frozenset({EOS}), suppressed=(0,)),
    "forced": Processors(VOCABULARY, frozenset({EOS}), forced=(2, 1)),
}
SAMPLED = {"T=1": ONE, "min-p": Sampling(0.8, min_p=0.3)}
LENGTH = 4


def law(target: object, draft: object, gamma: int, sampling: Sampling) -> dict[tuple[int, ...], float]:
    algorithm_1 = token_by_token(lenient(1.0, sampling))
    return Law(target, draft, algorithm_1, gamma, sampling).texts(LENGTH)  # type: ignore[arg-type]


@pytest.mark.parametrize("sampled", SAMPLED)
@pytest.mark.parametrize("name", ON)
@pytest.mark.parametrize("gamma", [1, 3])
def test_speculative_decoding_has_the_law_of_the_processed_target(name: str, sampled: str, gamma: int) -> None:
    target, sampling = ProcessedModel(TARGET, ON[name]), SAMPLED[sampled]
    alone = exact(target, sampling, LENGTH)
    assert total_variation(alone, exact(TARGET, sampling, LENGTH)) > 0.02  # the processors do something
    for draft in (ProcessedModel(DRAFT, ON[name]), DRAFT):  # every q is right, the processed q is accepted more often
        assert total_variation(law(target, draft, gamma, sampling), alone) < 1e-5


@pytest.mark.parametrize("name", ON)
def test_processors_of_the_draft_alone_are_a_fault(name: str) -> None:
    alone = exact(ProcessedModel(TARGET, ON[name]), ONE, LENGTH)
    assert total_variation(law(TARGET, ProcessedModel(DRAFT, ON[name]), 3, ONE), alone) > 0.02


class Forgetful(ProcessedModel):
    """Its state is not rolled back: rejected tokens count."""

    def start(self, prompt: Prompt) -> ProcessedSession:
        class Session(ProcessedSession):
            def rollback(self, length: int) -> None:
                self.session.rollback(length)

        return Session(self.processors, self.model.start(prompt), prompt)


def written(target: ProcessedModel, draft: object, sampling: Sampling, seed: int) -> list[int]:
    return speculative(
        target, ModelDraft(draft, VOCABULARY), PROMPT, gamma=3, sampling=sampling, max_new_tokens=LENGTH,  # type: ignore[arg-type]
        generator=torch.Generator().manual_seed(seed),
    ).tokens  # fmt: skip


@pytest.mark.parametrize("name", ON)
def test_the_loop_rolls_the_state_back(name: str) -> None:
    """Every pass of the loop reads the rows that a session reads from scratch."""
    for seed in range(20):
        target, seen = ProcessedModel(TARGET, ON[name]), list[tuple[list[int], torch.Tensor]]()

        class Watched(ProcessedSession):
            def extend(self, tokens, parents=None):  # type: ignore[no-untyped-def]
                found = super().extend(tokens, parents)
                seen.append((list(self._tokens), found[-1]))  # noqa: B023
                return found

        target.start = lambda prompt: Watched(ON[name], TARGET.start(prompt), prompt)  # type: ignore[method-assign]
        written(target, ProcessedModel(DRAFT, ON[name]), ONE, seed)
        for tokens, row_V in seen:
            assert row_V.equal(ProcessedModel(TARGET, ON[name]).start(PROMPT).extend(tokens)[-1])


@pytest.mark.statistical
def test_a_state_that_is_not_rolled_back_changes_completions() -> None:
    """At T = 0 one completion in a few differs from the target's own (no chance is involved)."""
    differing = 0
    for seed in range(30):
        table = ToyModel(random_table(seed))
        right, faulty = ProcessedModel(table, ON["penalties"]), Forgetful(table, ON["penalties"])
        own = autoregressive(
            right, PROMPT, sampling=Sampling(), max_new_tokens=LENGTH, generator=torch.Generator()
        ).tokens
        draft = ToyModel(random_table(seed + 100))
        assert written(right, ProcessedModel(draft, ON["penalties"]), Sampling(), seed) == own
        differing += written(faulty, ProcessedModel(draft, ON["penalties"]), Sampling(), seed) != own
    assert differing >= 3


def test_a_tree_reads_each_node_after_its_ancestors() -> None:
    session = ProcessedModel(TARGET, ON["penalties"]).start(PROMPT)
    session.extend([START, 1])
    rows_NV = session.extend([1, 2, 2], [-1, -1, 0])
    for row_V, path in zip(rows_NV, ([1], [2], [1, 2]), strict=True):
        alone = ProcessedModel(TARGET, ON["penalties"]).start(PROMPT).extend([START, 1, *path])[-1]
        assert torch.allclose(row_V, alone)
    session.select([0, 2])
    assert session.extend([0])[-1].equal(
        ProcessedModel(TARGET, ON["penalties"]).start(PROMPT).extend([START, 1, 1, 2, 0])[-1]
    )


# From the config.

SHIPPED = ("gpt-mini", "t5-mini")


@cache
def shipped(name: str) -> Vocabulary:
    return load_tokenizer(ModelConfig(name=name, shipped=name), "target")


def ids(name: str, text: str) -> Sequence[int]:
    return shipped(name).continuation(text)


def test_nothing_is_processed_by_default() -> None:
    assert processors(SamplingConfig(temperature=1, top_k=3, top_p=0.5, min_p=0.1), shipped("gpt-mini"), ENDS) is None
    assert SamplingConfig().set_keys() == {}


@pytest.mark.parametrize("name", SHIPPED)
def test_a_bad_word_is_left_out_wherever_it_stands(name: str) -> None:
    found = processors(SamplingConfig(bad_words=["the"]), shipped(name), ENDS)
    assert found is not None
    assert {tuple(ids(name, "the")), tuple(ids(name, " the"))} == set(found.bad_words)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_pattern_allows_what_can_still_match_and_the_end_where_it_does(name: str) -> None:
    ends = frozenset({shipped(name).tokenizer.eos_token_id})
    found = processors(SamplingConfig(regex="[a-z]{2,4}( [0-9]+)?"), shipped(name), ends)
    assert found is not None and found.pattern is not None

    def texts(begun: str) -> tuple[set[str], bool]:
        allowed = found.pattern.allowed(ids(name, begun) if begun else [], ends)  # type: ignore[union-attr]
        spelled = {shipped(name).text([*ids(name, "a"), token])[1:] for token in allowed if token not in ends}
        return spelled, bool(ends & set(allowed))

    at_start, ended = texts("")
    assert not ended and at_start and all(one.strip().isalpha() and one.islower() for one in at_start)
    after, ended = texts("abc")
    assert ended and all(one == "" or one[0] == " " or one.isalpha() for one in after)


def test_where_no_allowed_token_remains_the_text_ends() -> None:
    """Bad words, or a draft of few tokens, may leave none; a row that is not finite is not taken for that."""
    vocabulary = shipped("gpt-mini")
    end, size = vocabulary.tokenizer.eos_token_id, vocabulary.size
    made = processors(SamplingConfig(regex="a+"), vocabulary, frozenset({end}))
    assert made is not None
    found = replace(made, bad_words=tuple((token,) for token in range(size) if token != end))
    (ended_V,) = found.processed(torch.zeros(1, size), [[end]], 1)
    assert (ended_V > -torch.inf).nonzero().flatten().tolist() == [end]
    with pytest.raises(FloatingPointError):
        most_likely(made.processed(torch.full((1, size), torch.nan), [[end]], 1), size)


def test_a_pattern_needs_an_end() -> None:
    with pytest.raises(UserError, match=r"sampling\.regex: the target has no end-of-sequence token"):
        processors(SamplingConfig(regex="a+"), shipped("gpt-mini"), frozenset())


def test_certify_takes_a_minimum_length_of_any_size() -> None:
    run = certify_run(CertifyConfig(sampling=SamplingConfig(min_new_tokens=500)))
    assert run.sampling.min_new_tokens <= run.max_new_tokens


RUN = ["run", "target=t5-mini", "task=ende-mini", "limit=3", "max_new_tokens=12"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("sampling.min_p=2", "sampling.min_p=2.0: must be above 0 and at most 1"),
        ("sampling.repetition_penalty=0", "sampling.repetition_penalty=0.0: must be above 0"),
        ("sampling.presence_penalty=3", "sampling.presence_penalty=3.0: must be from -2 to 2"),
        ("sampling.min_new_tokens=13", "sampling.min_new_tokens=13: must be at most max_new_tokens=12"),
        ("sampling.bad_words=[' ']", "sampling.bad_words=[' ']: must be words"),
        ("sampling.regex='['", "sampling.regex=[: is no regular expression"),
        ("sampling.frequency_penalty=1 batch=2", "batch=2: not together with sampling.frequency_penalty"),
        ("sampling.regex=a sampling.min_new_tokens=2", "sampling.min_new_tokens: not together with sampling.regex"),
        (
            "sampling.min_new_tokens=2 simulate.alpha=.5",
            "simulate.alpha=0.5: not together with sampling.min_new_tokens",
        ),
    ],
)
def test_a_wrong_key_is_one_line(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = [words] if "' '" in words else words.split(" ")
    assert main([*RUN, "draft=t5-nano", *given]) == 2
    error = capsys.readouterr().err
    assert said in error and "Traceback" not in error


@pytest.mark.parametrize("temperature", [pytest.param("0", marks=pytest.mark.full), "1"])
def test_a_run_with_all_of_them_is_lossless(temperature: str, tmp_path, capsys) -> None:  # type: ignore[no-untyped-def]
    words = ["repetition_penalty=1.2", "frequency_penalty=.2", "bad_words=[der,die]", "min_new_tokens=6", "min_p=.05"]
    keys = [*(f"sampling.{word}" for word in words), f"sampling.temperature={temperature}", f"results={tmp_path}"]
    assert main([*RUN, *keys, "draft=t5-nano", "dtype=float32", "gamma=3"]) == 0
    from specbench.records.frame import Records

    records = Records(tmp_path)
    (run,) = records.all_runs.to_dict("records")
    assert run["lossless"] and run["processing"].startswith("min_p=0.05 repetition_penalty=1.2")
    assert records.paper_runs.empty
    for prompt in records.whole(run["run_id"])["prompts"]:
        for way in ("baseline", "speculative"):
            trace = prompt[way]  # type: ignore[literal-required]
            assert len(trace.tokens) >= 6 and not {"der", "die"} & set(trace.text.split())


@pytest.mark.full
@pytest.mark.parametrize(
    "draft",
    [
        "draft=t5-nano tree=dynamic gamma=tree",
        "draft=bigram gamma=3",
        "draft=lookup gamma=3",
        "draft=eagle gamma=3",
        "draft=blockwise gamma=3",
        "draft=early-exit gamma=3",
        "draft=specdec gamma=3",
        "draft=lookahead gamma=3",
        "draft=quantised gamma=3",
        "draft=cascade draft@draft.via=t5-nano draft@draft.inner=bigram gamma=3",
    ],
)
def test_every_kind_of_draft_is_lossless(draft: str, tmp_path) -> None:  # type: ignore[no-untyped-def]
    """A run at T = 0 compares all completions."""
    from specbench.records.frame import Records

    keys = ["sampling.repetition_penalty=1.3", "sampling.min_new_tokens=4", "dtype=float32", "warmup=0"]
    assert main([*RUN, *draft.split(), *keys, f"results={tmp_path}"]) == 0
    (found,) = Records(tmp_path).all_runs.to_dict("records")
    assert found["lossless"] and found["identical"] == 1
