"""The suffix draft proposes what counting by hand proposes, whatever was appended, removed and added before."""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from specbench.algorithm.draft import Stores
from specbench.choose.prediction_error import BASELINE, Decode, Name, _turns, interleave
from specbench.engine.session import Prompt
from specbench.methods.suffix.config import SuffixConfig
from specbench.methods.suffix.draft import SuffixDraft, SuffixSession
from specbench.methods.suffix.trie import Node, SuffixTrie
from specbench.records.decoded import Trace
from specbench.sampling import Sampling

V, START, DEPTH = 6, 0, 4
CPU = torch.device("cpu")
NONE = torch.Generator()
Texts = Sequence[Sequence[int]]


def followers(texts: Texts, run: Sequence[int]) -> Counter[int]:
    """How often each token follows `run` in `texts`, by looking at every place."""
    long = len(run)
    return Counter(
        text[at + long] for text in texts for at in range(len(text) - long) if list(text[at : at + long]) == list(run)
    )


def occurrences(texts: Texts, run: Sequence[int]) -> int:
    return sum(followers([[*text, V]], run).total() for text in texts)


def by_counting(
    config: SuffixConfig, stores: Sequence[Texts], context: Sequence[int], most: int
) -> tuple[list[int], float]:
    """The proposal with the highest sum of probabilities, and that sum; ties between tokens raise."""
    best: tuple[list[int], float] = ([], 0.0)
    for texts in stores:
        for length in range(1, min(config.depth - 1, len(context)) + 1):
            tokens, score, chance = list[int](), 0.0, 1.0
            while len(tokens) < min(most, int(length * config.factor + 1e-6)):
                run = [*context[-length:], *tokens]
                found = followers(texts, run)
                deepest = run[: config.depth]
                if not found or (len(deepest) == config.depth and occurrences(texts, deepest) > 1):
                    break
                (token, count), *others = found.most_common(2)
                if others and others[0][1] == count:
                    raise LookupError
                chance *= count / sum(found.values())
                if chance < config.min_probability:
                    break
                tokens.append(token)
                score += chance
            if tokens and score >= best[1] - 1e-12:
                best = tokens, score
    return best


def texts_of(seed: int, count: int, size: int = V) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(1, size, (12,), generator=generator).tolist() for _ in range(count)]


def found(trie: SuffixTrie, run: Sequence[int]) -> Node | None:
    nodes = list(trie.find(run))
    return nodes[-1] if len(nodes) == len(run) else None


def test_the_trie_counts_every_run_after_any_appending_and_removing() -> None:
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        trie, texts = SuffixTrie(DEPTH), list[list[int]]([[]])
        for step in range(60):
            kind = int(torch.randint(0, 8, (1,), generator=generator))
            if kind == 0:
                trie.finish()
                texts.append([])
            elif kind <= 2 and texts[-1]:
                trie.remove_last()
                texts[-1].pop()
            else:
                token = int(torch.randint(1, 4, (1,), generator=generator))
                trie.append(token)
                texts[-1].append(token)
            if step % 6:
                continue
            for text in texts:
                for at in range(len(text)):
                    for long in range(1, DEPTH):
                        run = text[at : at + long]
                        node = found(trie, run)
                        assert node is not None
                        ranked = {token: share for token, share, _ in trie.ranked(node)}
                        counted = followers(texts, run)
                        assert ranked == pytest.approx({t: n / counted.total() for t, n in counted.items()})


def test_a_longest_run_that_repeats_has_no_followers_and_a_unique_run_continues() -> None:
    trie = SuffixTrie(2)
    for token in (1, 2, 3, 1, 2, 4, 5, 6):
        trie.append(token)
    once, twice = found(trie, [4, 5]), found(trie, [1, 2])
    assert once is not None and twice is not None
    assert trie.likeliest(twice) is None
    one = trie.likeliest(once)
    assert one is not None and one[:2] == (6, 1.0)


@pytest.mark.parametrize("most", [1, 5])
@pytest.mark.parametrize(
    "keys",
    [{}, {"factor": 2.5}, {"factor": 0.5}, {"min_probability": 0.6}, {"grow": True}, {"grow": True, "factor": 2.5}],
    ids=str,
)
def test_proposals_are_those_of_counting(keys: dict[str, float], most: int) -> None:
    config, compared = SuffixConfig(depth=DEPTH, **keys), 0  # type: ignore[arg-type]
    for seed in range(40):
        source, prompt, *earlier = texts_of(seed, 6, 4)
        draft = SuffixDraft(config, V, CPU)
        draft.add_texts([(Prompt((), (START,)), text) for text in earlier])
        store = [[START, *text] for text in earlier] if config.grow else []
        session = draft.start(Prompt(source, (START,)), Sampling(0.0))  # type: ignore[arg-type]
        for end in range(1, len(prompt) + 1):
            text = [START, *prompt[:end]]
            try:
                tokens, _ = by_counting(config, (store, [source, text]), text, most)
            except LookupError:
                continue
            assert session.propose(text, most, NONE).tokens == tokens
            compared += bool(tokens)
    assert compared > 20


def test_the_length_follows_the_match() -> None:
    draft = SuffixDraft(SuffixConfig(), V, CPU)
    session = draft.start(Prompt((1, 2, 3, 4, 5, 1, 2), (START,)), Sampling(0.0))
    assert session.propose([START, 3], 5, NONE).tokens == [4]
    assert session.propose([START, 3, 4], 5, NONE).tokens == [5, 1]
    assert session.propose([START, 3, 4, 5], 5, NONE).tokens == [1, 2]  # the source ends there
    assert session.propose([START, 3, 4, 5], 1, NONE).tokens == [1]
    assert session.propose([START, 3, 4, 5], 0, NONE).tokens == []
    assert session.propose([START, 3, 4, 5, 5], 5, NONE).tokens == [5]  # of 1 and 5 the newest


def test_it_forgets_what_is_rolled_back_and_scores_what_it_proposes() -> None:
    draft, prompt = SuffixDraft(SuffixConfig(grow=True), V, CPU), Prompt((2, 3, 4), (START,))
    draft.add_texts([(prompt, [3, 4, 5, 3, 1]), (prompt, [5, 3, 2])])
    session, kept = draft.start(prompt, Sampling(0.0)), [START, 3, 4, 3]
    for rejected in ([4, 3, 4], [2], [5, 5, 5]):
        session.propose([*kept, *rejected], 4, NONE)
        session.rollback(len(kept))
        for more in ([], [4], [2, 3]):
            fresh = draft.start(prompt, Sampling(0.0)).propose([*kept, *more], 4, NONE)
            assert session.propose([*kept, *more], 4, NONE) == fresh, (rejected, more)
            session.rollback(len(kept))
    text = [START, 3, 4, 5, 3, 2, 3, 4]
    ahead = list(draft.start(prompt, Sampling(1.0)).score_ahead(text, 1, 3))
    for at in range(1, len(text)):
        proposal = draft.start(prompt, Sampling(1.0)).propose(text[:at], 3, NONE)
        for place in range(at, min(at + 3, len(text))):
            tokens = proposal.tokens[place - at : place - at + 1]
            assert ahead[place - at][place - 1].nonzero().flatten().tolist() == tokens


def test_the_store_grows_between_prompts_and_only_if_asked() -> None:
    prompt = Prompt((), (START, 5))
    for grow in (False, True):
        draft = SuffixDraft(SuffixConfig(grow=grow), V, CPU)
        during = draft.start(prompt, Sampling(0.0))
        draft.add_texts([(prompt, [1, 2, 3])])
        assert draft.grown == (3 if grow else None)
        assert draft.start(prompt, Sampling(0.0)).propose([START, 5], 4, NONE).tokens == ([1, 2] if grow else [])
        assert isinstance(during, SuffixSession)
        draft.forget_texts()
        assert draft.grown == (0 if grow else None)
        assert draft.start(prompt, Sampling(0.0)).propose([START, 5], 4, NONE).tokens == []


def test_drafts_are_compared_with_earlier_completions_in_their_stores_as_in_a_run() -> None:
    """At each prompt, in each repeat; a comparison whose stores stayed empty promised what it did not measure."""
    draft = SuffixDraft(SuffixConfig(grow=True), V, CPU)
    texts = [(Prompt((), (START, place)), [1] * length) for place, length in enumerate((2, 1, 3))]
    scored, seen = SimpleNamespace(stores=Stores([draft, draft], texts)), list[int | None]()
    scored.config, scored.sample = SimpleNamespace(repeats=2, rounds=0, seed=0), SimpleNamespace(texts=texts)

    def decode(index: int) -> Callable[[], Trace]:
        def decoded() -> Trace:
            seen.append(draft.grown)
            return Trace([], 0.0, 0.0)

        return decoded

    decoders: dict[Name, Decode] = {BASELINE: lambda _: lambda: Trace([], 0.0, 0.0), ("suffix", 1): decode}
    interleave(scored, decoders, SimpleNamespace(advance=lambda *_: None))  # type: ignore[arg-type]
    assert seen == [0, 0, *[0, 2, 3] * 2] and draft.grown == 0  # two prompts are decoded untimed at first


def test_the_target_alone_has_a_turn_for_each_candidate_and_never_two_in_a_row() -> None:
    names: list[Name] = [(candidate, gamma) for candidate in "abc" for gamma in (1, 3, "auto")]
    for seed in range(50):
        turns = _turns(names, np.random.default_rng(seed))
        assert sorted(map(str, turns)) == sorted(map(str, [*names, *[BASELINE] * 3])) and turns[-1] != BASELINE
        assert all(BASELINE not in (one, other) or one != other for one, other in pairwise(turns))
    assert _turns(names[:1], np.random.default_rng(0)) == [BASELINE, names[0]]


def test_a_tree_has_the_followers_by_share() -> None:
    draft = SuffixDraft(SuffixConfig(), V, CPU)
    session = draft.start(Prompt((1, 2, 3, 1, 2, 4, 1, 2, 4, 1, 3), (START,)), Sampling(0.0))
    root = session.after_text([START, 1], 3)
    assert root.ranked(3) == [[(2, 0.75), (3, 0.25)]]
    below = session.after_nodes([2, 3], [-1, -1])
    assert below.ranked(2) == [[(4, pytest.approx(2 / 3)), (3, pytest.approx(1 / 3))], []]
    assert session.after_nodes([4], [0]).ranked(2) == [[(1, 1.0)]]


def test_time_and_memory_grow_with_what_repeats() -> None:
    """Nodes of a text without repetition: one for each token, whatever the depth."""
    trie = SuffixTrie(64)
    for token in range(1000):
        trie.append(token)
    assert trie._root.followers is not None
    assert len(trie._root.followers) == 1000
    assert all(node.followers is None for node in trie._root.followers.values())
