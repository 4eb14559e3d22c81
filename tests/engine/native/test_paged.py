"""Large weights in a file: the same numbers to the bit, and memory that holds them once."""

import gc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.engine import paged
from specbench.engine.native.fits import DoesNotFit, require_fits
from specbench.engine.native.weights import PACKED_ROWS, laid_out
from specbench.engine.selection import with_engine
from specbench.engine.session import Prompt
from specbench.kernels.structures import Op
from tests.support.networks import network

PROMPT, TOKENS = Prompt((), (5, 9, 12, 30)), [4, 7, 22]


pytestmark = pytest.mark.skipif(not paged.IS_SUPPORTED, reason="needs Linux")


@pytest.fixture(autouse=True)
def of_any_size(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(paged, "LEAST_BYTES", 0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def logits(engine: str, own: Any) -> torch.Tensor:
    model = with_engine(engine, own, 40, frozenset({1}))
    session = model.start(PROMPT)
    first = session.extend(TOKENS)
    session.rollback(session.length - 1)
    return torch.cat([first, session.extend([9])])


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("engine", ["eager", "static", "native"])
def test_logits_are_the_same_to_the_bit(engine: str, kind: str) -> None:
    """After its pages are dropped, too, and where weights of one input become one weight."""
    own = network(kind, 4)
    assert paged.move(own) and all(map(paged.is_in_file, own.parameters()))
    assert torch.equal(logits(engine, own), logits(engine, network(kind, 4)))
    paged.release(*own.parameters())
    for one, other in zip(own.parameters(), network(kind, 4).parameters(), strict=True):
        assert torch.equal(one, other)
    assert all(map(paged.is_in_file, own.parameters()))  # maps that became one were neighbours


def tied(kind: str, width: int, dtype: torch.dtype) -> Any:
    """A network whose head is its embeddings."""
    own = network(kind, 1, width=width)
    own.get_output_embeddings().weight = own.get_input_embeddings().weight
    return own.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("kind", "width"), [("qwen2", 40), ("llama", 32), ("gpt2", 36), ("t5", 32)])
def test_embeddings_are_gathered_from_the_head_that_they_are_tied_to(kind: str, width: int, dtype: torch.dtype) -> None:
    """The same logits to the bit as from the table, also after the weights have changed; decoding reads no file."""
    prompt, ids = (Prompt(PROMPT.prefix, (0,)) if kind == "t5" else PROMPT), list(range(36, 64)) * 3

    def read(model: Any) -> torch.Tensor:
        session = model.start(prompt)
        first = session.extend(TOKENS)
        return torch.cat([first, session.extend([31]), session.extend(ids)])

    own, other = tied(kind, width, dtype), tied(kind, width, dtype)
    paged.move(own)
    ours, theirs = (with_engine("native", one, 40, frozenset({1})) for one in (own, other))
    step: Any = ours.program.several.run
    ops = [one.op for one in step.run._program]
    assert Op.GATHER in ops and Op.EMBED not in ops
    paged.release(*own.parameters())
    found = read(ours)
    if kind in ("llama", "qwen2"):  # the others read a table of positions, or embed a source
        assert resident(own.get_input_embeddings().weight) == 0
    assert found.isfinite().all() and torch.equal(found, read(theirs))
    for model in (ours, theirs):
        with torch.no_grad():
            for weight in model.network.parameters():
                weight.mul_(0.75)
        model.weights_changed()
    assert not torch.equal(read(ours), found) and torch.equal(read(ours), read(theirs))


def test_a_token_that_the_head_has_no_row_of_is_none_of_memory() -> None:
    own = tied("qwen2", 32, torch.float32)
    paged.move(own)
    made = with_engine("native", own, 40, frozenset({1}))
    read: Any = made.program.one.run.run
    gather = next(one for one in read._program if one.op == Op.GATHER)
    assert gather.inner == 64
    with pytest.raises(DoesNotFit, match="does not fit"):
        require_fits([replace(gather, inner=gather.inner + 32)], 1, 0)


def test_weights_that_are_changed_stay_changed() -> None:
    own = network("llama", 4)
    paged.move(own)
    with torch.no_grad():
        for weight in own.parameters():
            weight.fill_(3.0)
    paged.release(*own.parameters())
    assert all(bool((weight == 3.0).all()) for weight in own.parameters())


def resident(*weights: torch.Tensor) -> int:
    """The bytes of these that memory holds, as the kernel counts them."""
    places = [(weight.data_ptr(), weight.data_ptr() + weight.nbytes) for weight in weights]
    found, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            first, end = (int(part, 16) for part in line.split()[0].split("-"))
            inside = any(first <= place < end for place, _ in places)
        elif inside and line.startswith("Rss:"):
            found += 1024 * int(line.split()[1])
    return found


def test_what_is_laid_out_is_in_memory_once() -> None:
    """After a model is made, memory holds none of its network's weights but what its last check read."""
    own = network("llama", 4, layers=8, width=256)
    size = sum(weight.nbytes for weight in own.parameters())
    assert size > 2**22
    paged.move(own)
    assert all(bool(weight.isfinite().all()) for weight in own.parameters()) and resident(*own.parameters()) > size / 2
    kept = with_engine("native", own, 40, frozenset({1}))
    assert resident(*own.parameters()) < size / 8
    assert kept.start(PROMPT).extend(TOKENS).isfinite().all()


def test_moving_a_weight_takes_memory_for_a_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest of all is the embedding of a large vocabulary."""
    own = torch.nn.Linear(1024, 1024)
    numbers, most, release = own.weight.detach().clone(), 0, paged.release

    def noted(*parts: torch.Tensor) -> None:
        nonlocal most
        most = max(most, resident(*parts))
        release(*parts)

    monkeypatch.setattr(paged, "PART_BYTES", 2**18, raising=False)
    monkeypatch.setattr(paged, "release", noted)
    assert paged.move(own)
    assert 0 < most < own.weight.nbytes / 8 and torch.equal(own.weight, numbers)


def test_no_room_leaves_weights_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(paged.os, "posix_fallocate", full)
    own = network("llama", 4)
    assert not paged.move(own) and not any(map(paged.is_in_file, own.parameters()))


def test_a_file_is_gone_with_its_network(tmp_path: Path) -> None:
    own = network("llama", 4)
    paged.move(own)
    assert not [one for one in tmp_path.rglob("*") if one.is_file() and one.suffix != ".json"]
    del own
    gc.collect()
    assert not [one for one in paged._MAPPED if one.file() is not None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_weight_packed_in_parts_is_that_packed_at_once(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(1024 * 3 + 40, 96, generator=torch.Generator().manual_seed(1)).to(dtype)
    whole = laid_out(weight)
    monkeypatch.setattr("specbench.engine.native.weights.PACKED_ROWS", 1024)
    assert len(weight) < PACKED_ROWS and torch.equal(laid_out(weight), whole)
