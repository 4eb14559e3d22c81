"""Captures cached on disk: the same logits to the bit, never another network's graph, no harm from a damaged file."""

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import MethodType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.engine.beside import captured as beside_captured
from specbench.engine.capture import program, saved_captures, stored
from specbench.engine.capture.nodes import capture
from specbench.engine.capture.program import rows_agree
from specbench.engine.capture.saved_captures import NotDigestible, cached_capture
from specbench.engine.capture.static import StaticModel
from specbench.engine.eager.model import EagerModel
from specbench.engine.eager.network_parts import return_states
from specbench.engine.saved_heads import extend
from specbench.engine.selection import with_engine
from specbench.engine.session import Prompt
from specbench.errors import UserError
from specbench.methods.specdec.beside import probe
from specbench.methods.specdec.draft import SpecDecDraft
from tests.support.captured import fastest_on_a_cpu
from tests.support.networks import network
from tests.support.parallel_decoder import decoder_on


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the cache, empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(saved_captures, "cached_capture", cached_capture)
    return tmp_path / "specbench"


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Has an item for each capture."""
    made: list[int] = []

    def watched(*args: Any) -> Any:
        made.append(1)
        return capture(*args)

    for module in (program, beside_captured):
        monkeypatch.setattr(module, "capture", watched)
    return made


def start(kind: str = "gpt2", engine: str = "static", seed: int = 1, **options: Any) -> StaticModel:
    model = with_engine(engine, network(kind, seed=seed, layers=1), 40, frozenset({1}), **options)
    assert isinstance(model, StaticModel)
    return model


def logits(model: EagerModel) -> Tensor:
    session = model.start(Prompt((5, 9, 1), (0,)) if model.is_encoder_decoder else Prompt((), (5, 9)))
    first = session.extend([3, 4, 5, 6])
    session.rollback(session.length - 2)
    return torch.cat([first, session.extend([7]), session.extend([8, 9])])


@pytest.mark.full
@pytest.mark.parametrize("kind", ["t5", "t5-v1_1", "gpt2", "llama", "mistral"])
def test_a_second_start_captures_nothing_and_gives_the_same_to_the_bit(
    kind: str, cache: Path, captures: list[int]
) -> None:
    once = start(kind)
    assert once.program.cached is None and len(captures) == 1
    again = start(kind)
    assert again.program.cached is not None and len(captures) == 1
    assert torch.equal(logits(again), logits(once))
    assert again.placement.no_trees is once.placement.no_trees is None
    assert len(list(cache.glob("capture-*.json"))) == 1


@pytest.mark.full
@pytest.mark.parametrize("options", [{"engine": fastest_on_a_cpu()}, {"numerics": "invariant"}])
def test_every_engine_is_made_ready_from_the_same_capture(options: dict[str, Any], captures: list[int]) -> None:
    start("t5")
    made = start("t5", **options)
    assert made.program.cached is not None and len(captures) == 1
    assert torch.allclose(logits(made), logits(start("t5")), atol=1e-4)


@pytest.mark.full
def test_rows_of_a_batch_have_a_capture_of_their_own(cache: Path, captures: list[int]) -> None:
    for _ in range(2):
        start().steps_of_rows(3).shapes  # noqa: B018
        start()._program_of_rows  # noqa: B018
    assert len(captures) == len(list(cache.glob("capture-*.json"))) == 2


def looking_ahead(made: Any) -> list[int]:
    return [*extend(made, torch.arange(64.0).view(2, 32) / 32)]


def handing_over(made: Any) -> list[int]:
    return_states(made, "target")
    return [7]


def with_taps(made: Any) -> list[int]:
    return_states(made, "target", (0, 1))
    return [7]


@pytest.mark.full
@pytest.mark.parametrize(("change", "is_stored"), [(looking_ahead, True), (handing_over, True), (with_taps, False)])
@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_a_network_that_was_extended_is_captured_as_it_is(
    kind: str, change: Callable[[Any], list[int]], is_stored: bool, captures: list[int]
) -> None:
    """Look-ahead inputs and states after the logits: as eager computes them, from a capture of its own. Taps are hooks,
    whose captures are not stored."""
    start(kind)
    found, prompt = [], Prompt((5, 9, 1), (0,)) if kind == "t5" else Prompt((), (5, 9))
    for engine in (StaticModel, StaticModel, EagerModel):
        made = network(kind, seed=1, layers=1)
        tokens = change(made)
        model = engine(made, 40, frozenset({1}))
        model.tap_width = 2 * 32 * (change is with_taps)
        model.state_width = 32 * (change is not looking_ahead) + model.tap_width
        session = model.start(prompt)
        rows = [session.extend([3, 4, 5]), session.extend([6, *tokens])]
        if model.state_width:
            rows.append(session.states(session.length - 2, session.length))
        if model.tap_width:
            rows.append(session.tapped(session.length - 2, session.length))
        found.append(rows)
    assert len(captures) == (2 if is_stored else 3)
    for first, second, eager in zip(*found, strict=True):
        assert torch.equal(first, second) and torch.allclose(first, eager, atol=1e-4)


def queries(draft: SpecDecDraft) -> Tensor:
    """Logits of what its captured decoder drafts."""
    assert draft.captured is not None
    with torch.inference_mode():
        return torch.cat(probe(draft.decoder, draft.captured.start(draft.target.start(Prompt((5, 9, 1), (0,))))))


@pytest.mark.full
def test_specdecs_decoder_is_captured_once_and_compared(cache: Path, captures: list[int]) -> None:
    found = []
    for _ in range(2):
        target = with_engine("static", network("t5", 4), 40, frozenset({1}))
        found.append(queries(SpecDecDraft(target, decoder_on(target.network))))
    assert len(captures) == 2 and torch.equal(*found)
    spoil(
        next(iter({*cache.glob("capture-*.json")} - {target.program.cached})),
        "blocks.0.cross_layernorm.weight",
        "norm.weight",
    )
    again = queries(SpecDecDraft(target, decoder_on(target.network)))
    assert len(captures) == 3 and torch.equal(again, found[0])


def scale(made: Any) -> None:
    made.transformer.h[0].mlp.c_fc.weight.data.view(-1)[0] += 1


def another_epsilon(made: Any) -> None:
    made.transformer.ln_f.eps = 0.5


def another_config(made: Any) -> None:
    made.config.scale_attn_weights = False


def untied(made: Any) -> None:
    made.lm_head.weight = torch.nn.Parameter(made.lm_head.weight.detach().clone())


def shorter(made: Any) -> None:
    made.transformer.h = made.transformer.h[:0]


def without_a_layer_norm(made: Any) -> None:
    made.transformer.ln_f = torch.nn.Identity()


CHANGES: list[Callable[[Any], None]] = [scale, another_epsilon, another_config, untied, shorter, without_a_layer_norm]


def test_what_a_capture_depends_on_is_in_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def digest(change: Callable[[Any], None] = lambda _: None, settings: object = 1) -> str:
        made = network("gpt2", seed=1, layers=1)
        change(made)
        return saved_captures._digest(made, settings)

    assert digest() == digest()
    found = [digest(), digest(settings=2), *(digest(change) for change in CHANGES)]
    for device in ("cuda:0", "cuda:1"):  # a graph names its GPU by number
        with monkeypatch.context() as patch:
            patch.setattr(type(network("gpt2", seed=1, layers=1)), "device", torch.device(device))
            found.append(digest())
    monkeypatch.setattr(torch, "__version__", "9.9")
    found.append(digest())
    monkeypatch.setattr("specbench.engine.capture.saved_captures._own_code", lambda: "other")
    found.append(digest())
    assert len(set(found)) == len(found)


def hooked(made: Any) -> None:
    made.transformer.ln_f.register_forward_hook(lambda *_: None)


def with_a_method_of_its_own(made: Any) -> None:
    made.transformer.ln_f.forward = MethodType(lambda self, x: x * 2, made.transformer.ln_f)


class Setting:
    """Something that no digest covers."""


def with_an_object(made: Any) -> None:
    made.transformer.ln_f.setting = Setting()


def with_a_builtin(made: Any) -> None:
    made.transformer.ln_f.function = math.sqrt


@pytest.mark.full
@pytest.mark.parametrize("change", [hooked, with_a_method_of_its_own, with_an_object, with_a_builtin])
def test_a_network_that_a_digest_cannot_tell_is_captured_every_time(
    change: Callable[[Any], None], cache: Path, captures: list[int]
) -> None:
    for _ in range(2):
        made = network("gpt2", seed=1, layers=1)
        change(made)
        with pytest.raises(NotDigestible):
            saved_captures._digest(made, 1)
        with_engine("static", made, 40, frozenset())
    assert len(captures) == 2 and not list(cache.glob("capture-*"))


def signed(document: Any) -> str:
    content = document if isinstance(document, str) else json.dumps(document)
    return f"{hashlib.sha256(content.encode()).hexdigest()}\n{content}"


def spoil(file: Path, name: str, other: str) -> None:
    """Have the graph in `file` read the weight `other` wherever it reads one with `name` in its name."""
    document, found = json.loads(file.read_text().partition("\n")[2]), 0
    for node in document["graph"]["nodes"]:
        if node["op"] == "get_attr" and name in str(node["source"]):
            node["source"], found = {"weight": other}, found + 1
    assert found
    file.write_text(signed(document))


def called(document: Any, target: list[str]) -> str:
    node = next(one for one in document["graph"]["nodes"] if one["op"] == "call_function")
    node["target"], node["args"] = target, ["touch nothing"]
    return signed(document)


DAMAGES: dict[str, Callable[[str], str]] = {
    "cut off": lambda text: text[: len(text) // 2],
    "a flipped character": lambda text: text.replace("aten", "atem", 1),
    "empty": lambda text: "",
    "not JSON": lambda text: signed("{"),
    "another document": lambda text: signed([1, 2]),
    "a weight that the network lacks": lambda text: signed(text.partition("\n")[2].replace("wte", "wtf")),
    "a module that is not torch's": lambda text: called(json.loads(text.partition("\n")[2]), ["os", "system"]),
    "a function of torch that reads files": lambda text: called(json.loads(text.partition("\n")[2]), ["torch", "load"]),
    "a namespace that is not torch's": lambda text: called(
        json.loads(text.partition("\n")[2]), ["torch.ops", "profiler", "_record_function_enter", "default"]
    ),
    "a size that is a call": lambda text: signed(
        text.partition("\n")[2].replace('"shape": [1, "', '"shape": [1, "print()+', 1)
    ),
}


@pytest.mark.full
def test_a_damaged_file_is_written_anew(cache: Path, captures: list[int], recwarn: pytest.WarningsRecorder) -> None:
    want = logits(start())
    (file,) = cache.glob("capture-*.json")
    right = file.read_text()
    for name, damage in DAMAGES.items():
        file.write_text(damage(right))
        captures.clear()
        assert torch.equal(logits(start()), want), name
        assert len(captures) == 1 and file.read_text() == right, name
    assert not [one for one in recwarn if "capture" in str(one.message)]


@pytest.mark.full
def test_a_capture_that_disagrees_with_the_network_is_made_again(cache: Path, captures: list[int]) -> None:
    """Whoever signed it: what a step computes is compared with the network at every start."""
    want = logits(start())
    (file,) = cache.glob("capture-*.json")
    spoil(file, "ln_1.weight", "transformer.ln_f.bias")
    captures.clear()
    assert torch.equal(logits(start()), want)
    assert len(captures) == 1


@pytest.mark.full
def test_a_capture_of_several_rows_that_disagrees_with_one_row_is_made_again(
    cache: Path, captures: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = start()
    right = model._program_of_rows
    assert right.cached is None
    (file,) = {*cache.glob("capture-*.json")} - {start().program.cached}
    spoil(file, "ln_1.weight", "transformer.ln_f.bias")
    captures.clear()
    assert start()._program_of_rows.cached is None and len(captures) == 1
    assert start()._program_of_rows.cached == file and len(captures) == 1
    monkeypatch.setattr("specbench.engine.capture.static.rows_agree", lambda *_: False)
    with pytest.raises(UserError, match="the compiled step of several prompts differs"):
        start().steps_of_rows(3)


@pytest.mark.full
@pytest.mark.parametrize("step", ["one", "several", "prompt"])
def test_rows_that_are_all_read_as_the_first_row_are_found(cache: Path, step: str) -> None:
    """Row 2 has read more tokens than row 1: the slots, positions and mask of row 1 are wrong for it."""
    model = start()
    right, placed = model._program_of_rows, 3  # tensors of a layout
    whole = getattr(right, step)

    def after_sizes(of_sizes: Any, ids_BL: torch.Tensor, *inputs: torch.Tensor) -> torch.Tensor:
        of_row_1 = [one[:1].expand_as(one).clone() for one in inputs[:placed]]
        logits_BLV: torch.Tensor = whole.after_sizes(of_sizes, ids_BL, *of_row_1, *inputs[placed:])
        return logits_BLV

    wrong = replace(right, **{step: SimpleNamespace(of_sizes=whole.of_sizes, after_sizes=after_sizes)})
    tried = model.vocabulary_size, model.network.dtype, model.device
    assert rows_agree(model.program, right, *tried) and not rows_agree(model.program, wrong, *tried)


@pytest.mark.full
def test_without_a_folder_to_write_to_it_captures(cache: Path, captures: list[int]) -> None:
    """Once a process: what it captured is then in a folder of its own, which is removed at its end."""
    cache.parent.joinpath("specbench").write_text("a file")
    want = logits(start())
    assert torch.equal(logits(start()), want) and len(captures) == 1


@pytest.mark.full
def test_the_oldest_files_make_room(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_captures, "MOST_FILES", 2)
    for seed in (1, 2, 3):
        start(seed=seed)
    assert len(list(cache.glob("capture-*.json"))) == 2
    assert start(seed=3).program.cached is not None


def test_constants_and_open_sizes_return_as_they_were() -> None:
    added = torch.arange(6.0).view(2, 3)

    def function(x: Tensor, rows: Tensor) -> Tensor:
        return torch.cat([x, x]).view(-1, 3).sum(0) + added.to(x.dtype) * rows.shape[0] + float("-inf") * (x.sum() < 0)

    inputs = [torch.ones(7, 3), torch.ones(9)]
    document = json.loads(json.dumps(stored.stored(capture(function, inputs), {})))
    again = stored.restored(document, {}, torch.device("cpu"))
    for count in (4, 5):
        x, rows = torch.rand(count, 3), torch.ones(count + 3)
        assert torch.equal(again(x, rows).nan_to_num(), function(x, rows).nan_to_num())
