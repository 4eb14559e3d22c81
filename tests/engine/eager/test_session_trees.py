"""Trees in sessions: logits of every node, and of every step after a selection, are those of the path without a cache.

Each walk has several passes, since a cache that was compacted wrongly shows in the second pass only.
"""

import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.engine.buffers import Buffers
from specbench.engine.cache_names import NAMES
from specbench.engine.capture.static import StaticModel
from specbench.engine.cuda.replayed import StepGraph
from specbench.engine.eager.model import EagerModel
from specbench.engine.eager.network_parts import Part, reduced
from specbench.engine.eager.sessions import EagerSession
from specbench.engine.layout import chain, path_to, tree
from specbench.engine.selection import with_engine
from specbench.errors import UserError
from specbench.theory.trees import ROOT
from tests.support.captured import fastest, graphs
from tests.support.networks import network
from tests.support.prompts import SOURCE, prompt

KINDS = ["t5", "t5-v1_1", "gpt2", "llama", "mistral"]
NEAR = 1e-5  # of the largest logit
SIZES = (1, 2, 7, 24, 64)


def eager(network: Any) -> EagerModel:
    return EagerModel(network, 40, frozenset({1}))


def static(network: Any) -> EagerModel:
    return StaticModel(network, 40, frozenset({1}))


def captured(network: Any) -> EagerModel:
    """By the fastest engine on a CPU."""
    return fastest(network, 40, frozenset({1}))


ENGINES = {"eager": eager, "static": static, "native": captured, "cudagraph": graphs}


def calm(kind: str, layers: int = 2) -> Any:
    """Random weights that do not amplify rounding."""
    made = network(kind, seed=5, layers=layers)
    with torch.no_grad():
        for weight in made.get_decoder().parameters():
            if weight.dim() > 1 and weight is not made.get_input_embeddings().weight:
                weight.mul_(0.05 if kind == "t5" else 0.2)
    return made


@cache
def model_of(kind: str, engine: str) -> EagerModel:
    return ENGINES[engine](calm(kind))


@pytest.fixture(params=[(kind, engine) for kind in KINDS for engine in ENGINES], ids="-".join)
def made(request: pytest.FixtureRequest) -> tuple[str, EagerModel]:
    kind, engine = request.param
    return kind, model_of(kind, engine)


def uncached(network: Any, kind: str, texts: list[list[int]]) -> Tensor:
    """Logits [N, T, V] of all texts from one pass without a cache; the shorter are filled up at the end."""
    longest = max(map(len, texts))
    ids = torch.tensor([text + [2] * (longest - len(text)) for text in texts])
    inputs = {"input_ids": ids}
    if kind.startswith("t5"):
        inputs = {"input_ids": torch.tensor([SOURCE]).expand(len(texts), -1), "decoder_input_ids": ids}
    with torch.inference_mode():
        logits: Tensor = network(**inputs, use_cache=False).logits
    return logits


def apart(ours: Tensor, exact: Tensor) -> float:
    return float((ours - exact).abs().max() / exact.abs().max())


def of_nodes(network: Any, kind: str, read: list[int], tokens: list[int], parents: Sequence[int]) -> Tensor:
    """Logits [N, V] of each node, its path read without a cache."""
    paths = [path_to(parents, node) for node in range(len(parents))]
    leaves = [node for node in range(len(parents)) if node not in parents]
    rows = uncached(network, kind, [read + [tokens[node] for node in paths[leaf]] for leaf in leaves])
    found: dict[int, Tensor] = {}
    for row, leaf in enumerate(leaves):
        found |= {node: rows[row, len(read) + depth] for depth, node in enumerate(paths[leaf])}
    return torch.stack([found[node] for node in range(len(parents))])


def random_parents(rng: random.Random, nodes: int) -> list[int]:
    """Bushy or deep, so that depths pass the sliding window's 8 tokens."""
    reach = rng.choice([3, nodes])
    return [rng.randint(max(ROOT, node - reach), node - 1) for node in range(nodes)]


def words(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(2, 40) for _ in range(count)]


def walk(kind: str, model: EagerModel, seed: int, sizes: Sequence[int] = SIZES) -> Iterator[float]:
    """Errors of each reading: of a tree, then of a few tokens after a path of it was selected, and again."""
    rng = random.Random(seed)
    session, own = model.start(prompt(kind)), model.network
    read = list(prompt(kind).prefix[:-1])
    for size in rng.sample(sizes, len(sizes)):
        tokens, parents = words(rng, size), random_parents(rng, size)
        yield apart(session.extend(tokens, parents), of_nodes(own, kind, read, tokens, parents))
        assert session.length == len(read)
        path = path_to(parents, rng.randrange(ROOT, size))
        session.select(path)
        read += [tokens[node] for node in path]
        assert session.length == len(read)
        new = words(rng, rng.randint(1, 3))
        logits = session.extend(new)
        read += new
        yield apart(logits, uncached(own, kind, [read])[0, -len(new) :])
        session.rollback(len(read) - 1)
        read.pop()


@pytest.mark.covering
@pytest.mark.parametrize("seed", range(2))
def test_nodes_and_what_follows_a_selection_equal_the_uncached_path(made: tuple[str, EagerModel], seed: int) -> None:
    assert max(walk(*made, seed)) < NEAR


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["t5", "llama"])
def test_compiled(kind: str) -> None:
    if shutil.which("g++") is None:
        pytest.skip("needs a C++ compiler")
    model = with_engine("compile", calm(kind), 40, frozenset({1}))
    assert max(walk(kind, model, seed=1, sizes=(2, 7, 24))) < NEAR


def test_a_tree_that_is_read_level_by_level(made: tuple[str, EagerModel]) -> None:
    """As a draft does that grows it: each level needs the tokens drawn from the one before."""
    kind, model = made
    session = model.start(prompt(kind))
    session.extend([7, 8])
    read = [*prompt(kind).prefix[:-1], 7, 8]
    levels = [([3, 4, 5], [ROOT] * 3), ([6, 7, 8], [0, 0, 2]), ([9], [4]), ([10, 11, 12], [6, 6, 1])]
    rows = [session.extend(tokens, parents) for tokens, parents in levels]
    tokens, parents = ([item for level in levels for item in level[part]] for part in (0, 1))
    assert apart(torch.cat(rows), of_nodes(model.network, kind, read, tokens, parents)) < NEAR
    session.select([0, 4, 6, 8])
    text = [*read, 3, 7, 9, 11, 13]
    assert apart(session.extend([13]), uncached(model.network, kind, [text])[0, -1:]) < NEAR


def test_a_chain_is_a_tree(made: tuple[str, EagerModel]) -> None:
    """The very same logits, and the very same cache."""
    kind, model = made
    one, other = model.start(prompt(kind)), model.start(prompt(kind))
    for tokens, kept in (([7, 8, 9, 10], 2), ([11, 12, 13], 3), ([14], 0), ([15, 16], 1)):
        length = one.length
        assert torch.equal(one.extend(tokens), other.extend(tokens, range(ROOT, len(tokens) - 1)))
        one.rollback(length + kept)
        other.select(range(kept))
        assert one.length == other.length == length + kept


def test_a_tree_that_is_given_up_leaves_no_trace(made: tuple[str, EagerModel]) -> None:
    kind, model = made
    one, other = model.start(prompt(kind)), model.start(prompt(kind))
    for session in (one, other):
        session.extend([7, 8, 9])
    one.extend([10, 11, 12], [ROOT, ROOT, 0])
    for session in (one, other):
        session.rollback(session.length - 1)
    assert apart(one.extend([13, 14]), other.extend([13, 14])) < NEAR


@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "engine"),
    [("t5", "eager"), ("t5-v1_1", "static"), ("gpt2", "static"), ("llama", "cudagraph"), ("mistral", "eager")],
)
def test_the_first_layers_read_trees_of_their_own(kind: str, engine: str) -> None:
    model = ENGINES[engine](calm(kind, layers=3))
    early, session = reduced(model.network, Part(2)), model.start(prompt(kind))
    read, shallow = list(prompt(kind).prefix[:-1]), session.shallow(2)
    for size, seed in ((5, 1), (24, 2), (64, 3)):
        rng = random.Random(seed)
        ahead, tokens, parents = words(rng, 2), words(rng, size), random_parents(rng, size)
        shallow.extend(ahead)
        exact_NV = of_nodes(early, kind, read + ahead, tokens, parents)
        assert apart(shallow.extend(tokens, parents), exact_NV) < NEAR
        path = path_to(parents, size - 1)
        shallow.select(path)
        ahead += [tokens[node] for node in path]
        assert shallow.length == session.length + len(ahead)
        text = [*read, *ahead, 9]
        assert apart(shallow.extend([9]), uncached(early, kind, [text])[0, -1:]) < NEAR
        shallow.extend([3, 4, 5], [ROOT, ROOT, 1])  # which is given up
        assert apart(session.extend(tokens, parents), of_nodes(model.network, kind, read, tokens, parents)) < NEAR
        session.select(path[:2])
        read += [tokens[node] for node in path[:2]]


def slots_for_positions(length: int, parents: tuple[int, ...], numbers_1C: Tensor, first: int = 0) -> Any:
    right = tree(length, parents, numbers_1C, first)
    return type(right)(right.slots_BL, numbers_1C, right.visible_BLC)


def siblings_visible(length: int, parents: tuple[int, ...], numbers_1C: Tensor, first: int = 0) -> Any:
    right = tree(length, parents, numbers_1C, first)
    seen = chain(length + first, len(parents) - first, numbers_1C).visible_BLC
    return type(right)(right.slots_BL, right.positions_BC, seen)


def itself_invisible(length: int, parents: tuple[int, ...], numbers_1C: Tensor, first: int = 0) -> Any:
    right = tree(length, parents, numbers_1C, first)
    seen = right.visible_BLC & (numbers_1C != right.slots_BL.unsqueeze(-1))
    return type(right)(right.slots_BL, right.positions_BC, seen)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wrong", [slots_for_positions, siblings_visible, itself_invisible])
def test_a_wrong_layout_is_caught(
    kind: str, engine: str, wrong: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specbench.engine.layout.tree", wrong)
    errors = list(walk(kind, model_of(kind, engine), seed=1, sizes=(7, 24)))
    assert max(errors[::2]) > 10 * NEAR


def uncompacted(self: Any, length: int, open_tree: Any, path: Sequence[int], part: Any = None) -> None:
    open_tree.select(path)


def cropped_alone(self: Any, length: int, open_tree: Any, path: Sequence[int], part: Any = None) -> None:
    surplus = len(open_tree) - len(path)
    open_tree.select(path)
    for layer in self._caches(part):
        layer.crop(-surplus)


def keys_alone(self: Buffers, slots: list[int], start: int) -> None:
    for keys in self.layers[::2]:
        keys[..., start : start + len(slots), :] = keys[..., slots, :].clone()


def first_layout_alone(self: StepGraph, ids_1L: Tensor, layout: Any, sources: int) -> Tensor:
    """A graph that reuses the layout of its first replay."""
    if not hasattr(self, "first"):
        self.first = layout  # type: ignore[attr-defined]
    run: Tensor = RUN(self, ids_1L, self.first, sources)  # type: ignore[attr-defined]
    return run


RUN = StepGraph.run


@pytest.mark.covering
@pytest.mark.parametrize(
    ("engine", "place", "wrong"),
    [
        ("eager", (EagerSession, "_keep_nodes"), cropped_alone),
        ("static", ("specbench.engine.capture.static_sessions.StaticSession", "_keep_nodes"), uncompacted),
        ("static", (Buffers, "move_slots"), keys_alone),
        ("cudagraph", (Buffers, "move_slots"), keys_alone),
        ("cudagraph", (StepGraph, "run"), first_layout_alone),
    ],
)
@pytest.mark.parametrize("kind", ["t5", "gpt2", "llama"])
def test_right_in_the_first_pass_and_wrong_in_the_second_is_caught(
    kind: str, engine: str, place: tuple[Any, str], wrong: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, name = place
    monkeypatch.setattr(*((f"{where}.{name}", wrong) if isinstance(where, str) else (where, name, wrong)))
    errors = list(walk(kind, model_of(kind, engine), seed=2, sizes=(24, 24, 24)))
    assert errors[0] < NEAR
    assert max(errors[1:]) > 10 * NEAR


def test_what_cannot_be_read_is_refused() -> None:
    session = eager(calm("gpt2")).start(prompt("gpt2"))
    for tokens, parents in (([3, 4], [ROOT, 1]), ([3, 4], [0, 0]), ([3], [-2]), ([3, 4], [ROOT])):
        with pytest.raises(ValueError, match="parent"):
            session.extend(tokens, parents)
        session.rollback(session.length)
    session.extend([3, 4, 5], [ROOT, 0, ROOT])
    with pytest.raises(ValueError, match="select a path"):
        session.extend([6])
    for path in ([1], [0, 2], [2, 1], [0, 0]):
        with pytest.raises(ValueError, match="does not lead"):
            session.select(path)
    session.select([0, 1])


def one_line(model: EagerModel) -> str:
    with pytest.raises(UserError) as caught:
        model.start(prompt("gpt2")).extend([3, 4], [ROOT, ROOT])
    message = str(caught.value)
    assert message.startswith("tree: ") and message.endswith("; use tree=none") and "\n" not in message
    return message


def test_models_that_carry_no_tree_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import BloomConfig, BloomForCausalLM

    bloom = BloomForCausalLM(BloomConfig(vocab_size=64, hidden_size=16, n_layer=1, n_head=2)).eval()
    assert "BloomForCausalLM takes no position ids" in one_line(eager(bloom))
    split = eager(calm("gpt2"))
    split.no_trees = "with target.tp_plan has caches in several processes, which are not compacted"
    assert "target.tp_plan" in one_line(split)
    with pytest.raises(UserError, match=r"^draft=pass: .* target\.tp_plan .*; use another draft$"):
        split.require_trees("draft=pass", "use another draft")
    flash = eager(calm("gpt2"))
    monkeypatch.setattr("specbench.engine.placement.MASKED_ATTENTION", ("eager",))
    assert "takes no mask with attn_implementation=sdpa" in one_line(flash)
    monkeypatch.undo()
    unasked = eager(calm("gpt2"))
    unasked.network.transformer.forward = without_its_mask(unasked.network.transformer.forward)
    assert "makes its attention mask itself" in one_line(unasked)


def without_its_mask(forward: Callable[..., Any]) -> Callable[..., Any]:
    """A network that is given a mask by itself, as models do that know no others."""

    def own(input_ids: Tensor, **options: Any) -> Any:
        count = next(options[name] for name in NAMES if name in options).get_seq_length() + input_ids.shape[1]
        return forward(input_ids, **options | {"attention_mask": torch.ones(1, 1, input_ids.shape[1], count) > 0})

    return own
