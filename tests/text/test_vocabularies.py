"""Drafts of another vocabulary: what two tokenizers share, how a text of one is read in the other, and that what is
written is the target's own.

Each fault that is known elsewhere has a test: start tokens repeated, special tokens read as text, normalisers that
change the text, tokens that are parts of a character, a boundary that moves when more text is tokenised.
"""

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.algorithm.acceptance.base import Proposal
from specbench.algorithm.draft import Draft
from specbench.analysis.acceptance.agreement import agreements
from specbench.cli import main
from specbench.engine.session import Prompt
from specbench.engine.weights.random_weights import WordNumbers
from specbench.errors import UserError
from specbench.methods.model.draft import ModelDraft, TextDraft
from specbench.records.alphas import alpha_files
from specbench.records.documents import read_document
from specbench.records.frame import Records
from specbench.sampling import Sampling
from specbench.text.processed import ProcessedModel
from specbench.text.processors import Processors
from specbench.text.translation import TranslatedModel, Translation
from specbench.text.vocabulary import Vocabulary, unfinished
from tests.support import architectures, chi
from tests.support.around import Around
from tests.support.calls import newest
from tests.support.chi import ALARM
from tests.support.decode import autoregressive, speculative
from tests.support.tokenized import KINDS, Tables, vocabulary_of

TEXT = "The small dogs run: ## an old tree, über das Haus\n\n漢字 and the cats"
PAIRS = [(one, other) for one in KINDS for other in KINDS if one != other]
MIXED = [
    ("byte-level", "unigram"),
    ("unigram", "byte-level"),
    ("byte-level", "byte fallback"),
    ("byte fallback", "unigram"),
]


def translation_of(target: str, draft: str) -> Translation:
    return Translation(vocabulary_of(target), vocabulary_of(draft))


@pytest.mark.parametrize(("target", "draft"), PAIRS)
def test_shared_tokens_spell_the_same_and_pair_one_to_one(target: str, draft: str) -> None:
    found = translation_of(target, draft)
    assert len(set(found.shared.values())) == len(found.shared)
    spelled = 0
    for ours, theirs in found.shared.items():
        assert found.from_.bytes_of.get(ours) == found.to.bytes_of.get(theirs)
        spelled += ours in found.from_.bytes_of
    assert found.shared[vocabulary_of(target).tokenizer.eos_token_id] == vocabulary_of(draft).tokenizer.eos_token_id
    assert spelled > 15
    assert 0 < found.overlap.of_target <= 1 and 0 < found.overlap.of_draft <= 1


def test_spaces_and_tabs_are_shared_however_they_are_written() -> None:
    found = translation_of("byte-level", "byte fallback")
    ours, theirs = vocabulary_of("byte-level").tokens, vocabulary_of("byte fallback").tokens
    assert found.shared[ours["Ġ##"]] == theirs["▁##"]
    assert found.shared[ours["ĉ"]] == theirs["<0x09>"]
    assert found.shared[ours["Ã"]] == theirs["<0xC3>"]


@pytest.mark.parametrize(("target", "draft"), PAIRS)
def test_a_translation_spells_the_text(target: str, draft: str) -> None:
    """Nothing is lost, added or moved, at any place where a text may go on, but what the draft has no tokens for."""
    found = translation_of(target, draft)
    ids = vocabulary_of(target).continuation(TEXT)
    written = b"".join(found.from_.bytes_of.get(token, b"") for token in ids)
    for cut in range(len(ids)):
        read = [*found.continued(ids[:cut]), *found.continued(ids[cut:])]
        if found.to.unknown in read or "wordpiece" in (target, draft):
            continue
        assert b"".join(found.to.bytes_of[token] for token in read) == written
    assert found.continued(ids)


@pytest.mark.parametrize(("target", "draft"), PAIRS)
def test_what_was_read_stands_when_the_text_goes_on(target: str, draft: str) -> None:
    """A tokenizer that is given a longer text may put an earlier boundary elsewhere; a translation never does."""
    found, chance = translation_of(target, draft), random.Random(3)
    tokens = [chance.choice(sorted(found.from_.bytes_of)) for _ in range(60)]
    read, pending = list[int](), b""
    for count, token in enumerate(tokens, 1):
        ids, pending = found.step(token, pending)
        read += ids
        assert found.continued(tokens[:count]) == [*read, *found.to.continuation(pending)]


def test_a_character_is_read_when_it_is_complete() -> None:
    """Byte-level tokens are parts of a character; a draft without byte tokens waits for the last of them."""
    found = translation_of("byte-level", "unigram")
    ids = vocabulary_of("byte-level").continuation("ü")
    assert len(ids) == 2
    first, pending = found.step(ids[0])
    assert first == [] and pending == "ü".encode()[:1]
    assert found.step(ids[1], pending) == ([vocabulary_of("unigram").tokens["ü"]], b"")
    broken, pending = found.step(vocabulary_of("byte-level").tokens["a"], pending)  # the character never ends
    assert broken == [found.to.unknown, vocabulary_of("unigram").tokens["a"]] and pending == b""


def test_how_many_bytes_wait() -> None:
    begun = {"": 0, "a": 0, "ü": 1, "a漢": 2, "🙂": 3}
    for text, most in begun.items():
        assert unfinished(text.encode()) == 0
        for left in range(1, most + 1):
            assert unfinished(text.encode()[: left - most - 1 or None]) == left
    assert unfinished(b"\x80\x80\x80\x80") == 0


NORMALISED = {
    "lower-casing": ("Lowercase", "the Cats", b" the cats"),
    "NFKC": ("NFKC", "the caﬆ", b" the cast"),
    "stripping": ("Strip", "the cats", b" the cats"),
    "none but the added space": (None, "the cats", b" the cats"),
}


@pytest.mark.parametrize("kind", ["unigram", "byte fallback"])
@pytest.mark.parametrize("name", NORMALISED)
def test_a_normaliser_adds_and_strips_no_space(name: str, kind: str) -> None:
    """What is inside a text is read in characters as the draft's tokenizer normalises them, and with the spaces of the
    text."""
    normalizer, text, spelled = NORMALISED[name]
    target = vocabulary_of("byte-level")
    found = Translation(target, vocabulary_of(kind, normalizer=normalizer))

    def read(text: str) -> bytes:
        return b"".join(found.to.bytes_of[token] for token in found.continued(target.continuation(text)))

    if kind == "byte fallback" and name in ("lower-casing", "NFKC"):  # its byte tokens are shared, and read as they are
        assert read(f" {text}") == f" {text}".encode()
        assert (
            bytes(b for token in found.to.continuation(text.encode()) for b in found.to.bytes_of[token]) == spelled[1:]
        )
        return
    assert read(f" {text}") == spelled
    assert read(text) == spelled[1:]
    assert read(f" {text} ") == spelled + b" "
    assert read(" ") == b" "


def test_a_prompt_begins_once() -> None:
    """However the target's prompt begins: with its own start token, without, or with one that a template wrote."""
    target, draft = vocabulary_of("byte-level", start="<s>"), vocabulary_of("byte fallback", start="<begin>")
    found = Translation(target, draft)
    begin = draft.tokens["<begin>"]
    ids = target.tokenizer("the cats").input_ids
    assert ids[0] == target.tokens["<s>"]
    for prefix in (ids, ids[1:], [ids[0], *ids]):
        own = found.prompt(Prompt((), tuple(prefix))).prefix
        assert own[0] == begin and own.count(begin) == 1
        assert draft.text(own) == "the cats"
    assert found.prompt(Prompt((), (target.start,))).prefix == (begin,)
    alike = vocabulary_of("byte fallback", start="<s>")
    own = Translation(target, alike).prompt(Prompt((), (ids[0], *ids))).prefix
    assert own.count(alike.tokens["<s>"]) == 1  # the token is shared, and still no second one


def test_special_tokens_are_never_read_as_text() -> None:
    """Those that both have are read as what they are; others not at all."""
    target = vocabulary_of("byte-level", special=("<|user|>", "<|end|>"))
    draft = vocabulary_of("byte fallback", special=("<|end|>",))
    found = Translation(target, draft)
    user, end = target.tokens["<|user|>"], target.tokens["<|end|>"]
    words = target.continuation("the cats")
    own = list(found.prompt(Prompt((), (user, *words, end, *words))).prefix)
    assert own.count(draft.tokens["<|end|>"]) == 1
    assert draft.text(own).replace(" ", "") == "thecatsthecats"
    assert found.continued([user]) == [] and found.continued([end]) == [draft.tokens["<|end|>"]]
    unknown = vocabulary_of("unigram").tokenizer.unk_token_id
    assert unknown not in found.from_.bytes_of or found.from_.bytes_of[unknown] != b"<unk>"


def session_logits(model: TranslatedModel, prompt: Prompt, tokens: list[int]) -> torch.Tensor:
    session = model.start(prompt)
    return session.extend([*prompt.prefix, *tokens][session.length :])[-1]


@pytest.mark.parametrize(("target", "draft"), MIXED)
def test_a_session_that_was_rolled_back_reads_as_a_fresh_one(target: str, draft: str) -> None:
    """Text by text and as nodes of a tree, in parts of characters too."""
    found, chance = translation_of(target, draft), random.Random(5)
    own = Tables(found.draft.size, frozenset(), seed=2)
    model = TranslatedModel(own, found)
    prompt = Prompt((), tuple(found.target.continuation("the cats")))
    tokens = [*prompt.prefix]
    session = model.start(prompt)
    letters = found.target.continuation(TEXT)
    for _ in range(60):
        fresh = [chance.choice(letters) for _ in range(chance.randint(1, 4))]
        tokens += fresh
        last = session.extend(tokens[session.length :])[-1]
        assert session.length == len(tokens)
        assert torch.equal(last, session_logits(model, prompt, tokens[len(prompt.prefix) :]))
        keep = chance.randint(len(prompt.prefix), len(tokens))
        session.rollback(keep - 1)
        del tokens[keep:]
    session.extend(tokens[session.length :])
    shared = sorted(found.shared)
    others = [token for token in found.from_.bytes_of if token not in found.shared]
    nodes = [shared[5], shared[6], others[0], shared[7]]
    rows = session.extend(nodes, [-1, 0, 0, 2])
    assert torch.equal(
        rows[3], session_logits(model, prompt, [*tokens[len(prompt.prefix) :], nodes[0], nodes[2], nodes[3]])
    )
    session.select([0, 2, 3])
    tokens += [nodes[0], nodes[2], nodes[3], shared[9]]
    assert torch.equal(session.extend(tokens[-1:])[-1], session_logits(model, prompt, tokens[len(prompt.prefix) :]))


LENGTH, SAMPLES = 3, 2000
VOCABULARY = vocabulary_of("unigram").size


def tables(target: str, draft: str, how: str = "tli") -> tuple[Tables, Tables, Translation]:
    """A target and a draft over a few tokens of these vocabularies: some shared, some of one alone."""
    found = translation_of(target, draft)
    ends = [vocabulary.tokenizer.eos_token_id for vocabulary in (found.target, found.draft)]
    spelled = sorted(token for token in found.shared if token in found.from_.bytes_of)[20:23]
    ours = sorted(token for token in found.from_.bytes_of if token not in found.shared)[:2]
    theirs = sorted(set(found.to.bytes_of) - set(found.shared.values()))[:2]
    one = Tables(found.target.size, frozenset(ends[:1]), 1, [*spelled, *ours, ends[0]])
    known = [found.shared[token] for token in spelled]
    alone = [] if how == "slem" else [*theirs, ends[1]]  # a draft of text is to be right now and then
    other = Tables(found.draft.size, frozenset(ends[1:]), 2, [*known, *alone])
    return one, other, found


def sampled_p_value(
    target: Tables, draft: Draft, found: Translation, sampling: Sampling, gamma: int
) -> tuple[float, int]:
    """The p-value of texts that Algorithm 1 writes against the target's own distribution; and the tokens accepted."""
    prompt = Prompt((), tuple(found.target.continuation("the cats")))
    accepted = 0

    def decode(generator: torch.Generator) -> list[int]:
        nonlocal accepted
        trace = speculative(
            target, draft, prompt, gamma=gamma, sampling=sampling, max_new_tokens=LENGTH, generator=generator
        )
        accepted += sum(one.accepted for one in trace.passes)
        return trace.tokens

    return chi.p_value(decode, target.exact(prompt, sampling, LENGTH), SAMPLES), accepted


def drafting_of(how: str, model: Tables, found: Translation) -> Draft:
    translated = TranslatedModel(model, found)
    return TextDraft(translated) if how == "slem" else ModelDraft(translated, found.target.size)


@pytest.mark.full
@pytest.mark.statistical
# Each pair with each way; each way with both samplings, on two pairs each.
@pytest.mark.parametrize(
    ("target", "draft", "sampling", "how"),
    [
        (*pair, Sampling(1.0) if (place + (how == "tli")) % 2 else Sampling(0.7, top_k=3), how)
        for place, pair in enumerate(MIXED) for how in ("tli", "slem")
    ],
)  # fmt: skip
def test_texts_have_the_targets_distribution(target: str, draft: str, sampling: Sampling, how: str) -> None:
    one, other, found = tables(target, draft, how)
    p_value, accepted = sampled_p_value(one, drafting_of(how, other, found), found, sampling, gamma=2)
    assert p_value > ALARM
    assert accepted > 50 or (target, draft, how) == ("byte-level", "unigram", "slem")  # whose texts are cut elsewhere


Fault = Callable[[Proposal, int, torch.Generator], Proposal]


def _replaced(proposal: Proposal, shared: int, generator: torch.Generator) -> Proposal:
    tokens = [shared if torch.rand(1, generator=generator) < 0.3 else token for token in proposal.tokens]
    return proposal._replace(tokens=tokens)


FAULTS: dict[str, Fault] = {
    "q of the whole vocabulary": lambda proposal, *_: proposal._replace(q_GV=0.6 * proposal.q_GV),
    "q of a neighbour": lambda proposal, *_: proposal._replace(q_GV=proposal.q_GV.roll(1, -1)),
    "tokens that are not shared replaced by one that is": _replaced,
}
TEXT_FAULTS: dict[str, Fault] = {  # without q each token is certain; any q that it was not drawn from is wrong
    "half as sure": lambda proposal, *_: proposal._replace(q_GV=0.5 * proposal.q(torch.empty(1, VOCABULARY))),
}


class Faulty(Draft):
    operations = 1.0

    def __init__(self, draft: Draft, shared: int, fault: Fault) -> None:
        self.draft, self.shared, self.fault = draft, shared, fault

    def start(self, prompt: Prompt, sampling: Sampling) -> Any:
        return FaultySession(self.draft.start(prompt, sampling), self)


class FaultySession(Around):
    def __init__(self, inner: Any, draft: Faulty) -> None:
        super().__init__(inner)
        self.draft = draft

    def propose(self, tokens: Sequence[int], gamma: int, generator: torch.Generator) -> Proposal:
        proposal = self.inner.propose(tokens, gamma, generator)
        return self.draft.fault(proposal, self.draft.shared, generator) if proposal.tokens else proposal


@pytest.mark.covering(most=1)
@pytest.mark.statistical
@pytest.mark.parametrize("fault", [*FAULTS, *TEXT_FAULTS])
def test_a_planted_fault_is_caught(fault: str) -> None:
    how = "tli" if fault in FAULTS else "slem"
    one, other, found = tables(*(("byte-level", "unigram") if how == "tli" else ("unigram", "byte-level")), how)
    shared = next(token for token in one.support if token in found.shared)
    faulty = Faulty(drafting_of(how, other, found), shared, (FAULTS | TEXT_FAULTS)[fault])
    p_value, _ = sampled_p_value(one, faulty, found, Sampling(1.0), gamma=2)
    assert p_value < ALARM


@pytest.mark.parametrize("how", ["tli", "slem"])
@pytest.mark.parametrize(("target", "draft"), MIXED)
@pytest.mark.parametrize("gamma", [1, 4])
def test_greedy_texts_are_the_targets_own(target: str, draft: str, gamma: int, how: str) -> None:
    one, other, found = tables(target, draft)
    drafting, greedy = drafting_of(how, other, found), Sampling(0.0)
    for text in ("the cats", "an old tree", ""):
        prompt = found.target.prompt(text, "", 100)
        common = {"sampling": greedy, "max_new_tokens": 40, "generator": torch.Generator()}
        alone = autoregressive(one, prompt, **common)
        assert speculative(one, drafting, prompt, gamma=gamma, **common).tokens == alone.tokens


def test_q_is_that_of_the_shared_tokens_alone() -> None:
    """Renormalised, by hand; zero elsewhere; the same when drafted and when scored."""
    _, other, found = tables("byte-level", "unigram")
    prompt = Prompt((), tuple(found.target.continuation("the cats")))
    session = ModelDraft(TranslatedModel(other, found), found.target.size).start(prompt, Sampling(1.0))
    proposal = session.propose(list(prompt.prefix), 1, torch.Generator())
    before = found.prompt(prompt).prefix[-2:]
    q_V = other.row(*before).softmax(-1)
    mass = sum(float(q_V[theirs]) for theirs in found.shared.values())
    assert 0 < mass < 1
    assert proposal.q_GV is not None and float(proposal.q_GV.sum()) == pytest.approx(1)
    for ours, theirs in found.shared.items():
        assert float(proposal.q_GV[0, ours]) == pytest.approx(float(q_V[theirs]) / mass, abs=1e-6)
    session.rollback(len(prompt.prefix) - 1)
    scored = session.score([*prompt.prefix, proposal.tokens[0]], len(prompt.prefix))
    assert torch.allclose(scored, proposal.q_GV)


@pytest.mark.parametrize(("target", "draft"), [pair for pair in PAIRS if "wordpiece" not in pair])
def test_text_is_cut_where_the_written_tokens_end(target: str, draft: str) -> None:
    """Whatever was written, canonical or not: the tokens of a new text spell that text and nothing else."""
    found, vocabulary = translation_of(target, draft), vocabulary_of(target)
    ids = [
        token for token in vocabulary.continuation("The small dogs run: an old tree") if token in found.from_.bytes_of
    ]
    for cut in range(len(ids)):
        spelled = b"".join(found.from_.bytes_of[token] for token in ids[cut:])
        assert found.back(ids[:cut], spelled) == ids[cut:]
    letters = [vocabulary.tokens[letter] for letter in "ol"]  # the tokenizer has a token of all three letters
    assert found.back(letters, b"d") == [vocabulary.tokens["d"]]
    assert found.back([], "ü".encode()[:1]) == []


@pytest.mark.parametrize(("target", "draft"), MIXED)
def test_a_text_draft_reads_on_as_a_fresh_one(target: str, draft: str) -> None:
    """Boundaries in the draft's tokens move when the text continues, and characters end in the middle of a proposal."""
    found, chance = translation_of(target, draft), random.Random(7)
    drafting = drafting_of("slem", Tables(found.draft.size, frozenset(), 2, sorted(found.to.bytes_of)), found)
    prompt = Prompt((), tuple(found.target.continuation("the cats")))
    single = [
        token
        for token, spelled in found.from_.bytes_of.items()
        if spelled in (b"o", b"l", b"d", b"r", b"u", b"n", b" ")
    ]
    letters = [token for token in found.target.continuation(TEXT) if token in found.from_.bytes_of] + 4 * single
    session, tokens, greedy = drafting.start(prompt, Sampling(0.0)), list(prompt.prefix), Sampling(0.0)
    own_boundaries_moved = False
    for _ in range(60):
        before = found.read(tokens[len(prompt.prefix) :])[0]
        tokens += [chance.choice(letters) for _ in range(chance.randint(1, 3))]
        own_boundaries_moved |= found.read(tokens[len(prompt.prefix) :])[0][: len(before)] != before
        proposal = session.propose(tokens, 4, torch.Generator())
        assert proposal == drafting.start(prompt, greedy).propose(tokens, 4, torch.Generator())
        session.rollback(len(tokens) - 1)
    assert own_boundaries_moved or draft == "unigram"  # most of whose tokens are letters
    row_V = drafting.start(prompt, greedy).score([*tokens, letters[0]], len(tokens))[0]
    first = session.propose(tokens, 6, torch.Generator()).tokens[:1]
    assert row_V.nonzero().flatten().tolist() == first


def test_a_text_draft_ends_with_the_targets_end() -> None:
    found = translation_of("byte-level", "unigram")
    end = found.draft.tokenizer.eos_token_id
    drafting = drafting_of("slem", Tables(found.draft.size, frozenset([end]), 2, [end]), found)
    prompt = Prompt((), tuple(found.target.continuation("the cats")))
    proposal = drafting.start(prompt, Sampling(0.0)).propose(list(prompt.prefix), 3, torch.Generator())
    assert proposal.tokens == [found.target.tokenizer.eos_token_id]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Models with random weights, each with a tokenizer of its own, and rows to decode."""
    root, found = tmp_path_factory.mktemp("pairs"), {}
    kinds = [("llama", "byte-level", "<|end|>"), ("gpt_neox", "unigram", "</s>"), ("qwen2", "byte fallback", "</s>")]
    for seed, (kind, of, end) in enumerate(kinds, 1):
        own, folder = vocabulary_of(of, end=end), root / of.replace(" ", "-")
        made = architectures.network(kind, seed, vocabulary=own.size + 3)
        made.generation_config.eos_token_id = own.tokenizer.eos_token_id
        made.save_pretrained(folder)
        own.tokenizer.save_pretrained(folder)
        found[of] = folder
    found["rows"] = root / "rows.jsonl"
    texts = ["the small dogs run", "an old tree", "The cats: ## über das Haus"]
    found["rows"].write_text("".join(f"{json.dumps({'prompt': text})}\n" for text in texts))
    return found


RUNS = {
    "a chain": [], "three rows": ["batch=3"], "a tree": ["tree=widths", "gamma=tree"],
    "sampled": ["sampling.temperature=1"], "static": ["engine=static"],
}  # fmt: skip


def small(pairs: dict[str, Path], results: Path, target: str, draft: str, *overrides: str, verb: str = "run") -> int:
    return main([
        verb, f"target.path={pairs[target]}", f"draft.path={pairs[draft]}", "task=prompts", f"results={results}",
        f"task.path={pairs['rows']}", "dtype=float32", "device=cpu", "engine=eager", "max_new_tokens=16",
        *overrides,
    ])  # fmt: skip


# Each run with each way that it can have (a text draft makes no trees), on one of the two pairs in turn.
@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "how", "target", "draft"),
    [
        (name, how, *MIXED[(place + (how == "tli")) % 2])
        for place, name in enumerate(RUNS) for how in ("tli", "slem") if (how, name) != ("slem", "a tree")
    ],
)  # fmt: skip
def test_a_run(pairs: dict[str, Path], tmp_path: Path, target: str, draft: str, name: str, how: str) -> None:
    own = RUNS[name] if "tree" in name else ["gamma=3", *RUNS[name]]
    assert small(pairs, tmp_path, target, draft, f"draft.vocabulary={how}", "warmup=1", *own) == 0
    summary = newest(tmp_path)["summary"]
    assert summary["lossless"] and summary["vocabulary"] == how and summary["draft"].endswith(f"-{how}")
    assert 0 < summary["shared_of_target"] < 1 and 0 < summary["shared_of_draft"] < 1
    if name != "sampled":
        assert summary["identical"] == 1


@pytest.mark.full
def test_auto_says_why_and_the_paper_keeps_its_own(
    pairs: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert small(pairs, tmp_path, "unigram", "byte-level", "gamma=2", "warmup=0") == 0
    summary = newest(tmp_path)["summary"]
    assert summary["vocabulary"] == "slem" and "less than 50%" in summary["vocabulary_reason"]
    assert "its vocabulary differs from unigram's; they share" in "".join(capfd.readouterr())
    records = Records(tmp_path)
    assert records.paper_runs.empty and list(records.beyond["vocabulary"]) == ["slem"]


@pytest.mark.full
def test_alpha_says_what_the_mismatch_costs(
    pairs: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for how in ("tli", "slem"):
        assert (
            small(
                pairs,
                tmp_path,
                "byte-level",
                "unigram",
                f"draft.vocabulary={how}",
                "tokens=40",
                "--verbose",
                verb="alpha",
            )
            == 0
        )
        assert "different vocabularies" in capfd.readouterr().out
    found = [row for file in alpha_files(tmp_path) for row in read_document(file)["rows"]]
    assert {(row["vocabulary"], row["temperature"]) for row in found} == {
        (how, t) for how in ("tli", "slem") for t in (0, 1)
    }
    for row in found:
        assert row["alpha"] <= row["shared_mass"] + 1e-6 or row["vocabulary"] == "slem"
        assert 0 <= row["shared_mass"] <= 1 and row["alpha"] <= row["alpha_matched"] + 1e-6


def test_the_cost_of_the_mismatch_by_hand() -> None:
    """By token: the target among shared tokens against q. By text: what it writes that the drafted text begins with."""
    one, other, found = tables("byte-level", "unigram")
    prompt, sampling = Prompt((), tuple(found.target.continuation("the cats"))), Sampling(1.0)
    text = [one.support[0], one.support[1]]
    by_token, by_text = (
        agreements(one, [drafting_of(how, other, found)], prompt, text, sampling)[0] for how in ("tli", "slem")
    )
    p_V = one.row(*prompt.prefix[-2:]).softmax(-1)
    q_V = other.row(*found.prompt(prompt).prefix[-2:]).softmax(-1)
    shared = {ours: theirs for ours, theirs in found.shared.items() if p_V[ours] > 0}
    ours = {token: float(p_V[token]) for token in shared}
    theirs = {token: float(q_V[found.shared[token]]) for token in shared}
    assert by_token.shared[0] == pytest.approx(sum(ours.values())) == by_text.shared[0]
    alone = sum(min(ours[t] / sum(ours.values()), theirs[t] / sum(theirs.values())) for t in shared)
    assert by_token.matched[0] == pytest.approx(alone, abs=1e-6)
    assert by_text.matched[0] >= by_text.beta[0]
    off = ProcessedModel(TranslatedModel(other, found), Processors(one.vocabulary_size, frozenset()))  # no change
    processed = agreements(one, [ModelDraft(off, one.vocabulary_size)], prompt, text, sampling)[0]
    assert (processed.shared, processed.matched) == (by_token.shared, by_token.matched)
    same = agreements(one, [ModelDraft(one, one.vocabulary_size)], prompt, text, sampling)[0]
    assert same.shared == same.matched == []


@pytest.mark.full
def test_what_cannot_be_translated_is_one_line(
    pairs: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert small(pairs, tmp_path, "byte-level", "unigram", "draft.vocabulary=both") == 2
    assert "draft.vocabulary=both: must be auto | same | tli | slem" in capfd.readouterr().err
    assert (
        small(pairs, tmp_path, "byte-level", "unigram", "draft.vocabulary=slem", "draft.confidence=0.5", "gamma=2") == 2
    )
    assert "draft.confidence=0.5: not together with draft.vocabulary=slem" in capfd.readouterr().err
    assert small(pairs, tmp_path, "byte-level", "unigram", "draft.vocabulary=slem", "tree=widths", "gamma=tree") == 2
    assert "vocabulary=slem drafts one text" in capfd.readouterr().err
    odd = Vocabulary(WordNumbers(8), 0, is_encoder_decoder=False)
    with pytest.raises(UserError, match="^draft: its tokenizer has no tokenizer.json"):
        Translation(vocabulary_of("unigram"), odd)


def test_a_draft_with_fewer_positions_says_so() -> None:
    """Its tokens of a text may be more than the target's: positions of the target's length were read elsewhere."""
    found = translation_of("byte-level", "unigram")
    own = Tables(found.draft.size, frozenset(), seed=2)
    own.longest = 8
    prompt = Prompt((), tuple(found.target.continuation("the cats")))
    long = found.target.continuation(" running running running")
    with pytest.raises(UserError, match="tokens of the draft's vocabulary, and the draft has positions for 8"):
        TranslatedModel(own, found).start(prompt).extend([prompt.prefix[-1], *long])
    silent = (
        drafting_of("slem", own, found)
        .start(prompt, Sampling(0.0))
        .propose([*prompt.prefix, *long], 3, torch.Generator())
    )
    assert silent.tokens == []


@pytest.mark.full
@pytest.mark.parametrize("how", ["tli", "slem"])
def test_no_other_engine_is_told_to_draft_across_vocabularies(
    pairs: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str], how: str
) -> None:
    own = [
        f"draft.vocabulary={how}",
        "tokens=30",
        "rounds=2",
        "gammas=[1]",
        "sampling.temperature=0",
        "--for",
        "transformers",
    ]
    assert small(pairs, tmp_path, "byte-level", "unigram", *own, verb="recommend") == 0
    out = "".join(capfd.readouterr())
    assert f"unigram-{how}" in out and f"are known here for vocabulary={how}" in out
