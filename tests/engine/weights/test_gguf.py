"""GGUF files as target and as draft: logits of `transformers`' unpacked module, and greedy identity on their levels."""

import json
from pathlib import Path

import gguf
import pytest
import torch
from transformers import AutoModelForCausalLM, GgufConfig

from specbench.cli import main
from specbench.config.model import ModelConfig, check_model
from specbench.config.places import place_in
from specbench.engine.session import Prompt
from specbench.engine.weights.load import load_model
from specbench.errors import UserError
from specbench.kernels import is_available
from specbench.kernels.check import HALF_SCALES
from specbench.kernels.found_levels import bits_found, in_8_bits, packed_as_found
from specbench.records.frame import Records
from specbench.text.tokenizer import load_tokenizer
from tests.support.gguf_made import TEXT, tiny_llama, write

ROUNDING = 2e-5  # of a logit in fp32
KINDS = {"Q8_0": {8}, "Q4_0": {4}, "Q5_0": {8}}  # whose blocks are levels times a scale of fp16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made, network = tmp_path_factory.mktemp("gguf"), tiny_llama()
    for kind in (*KINDS, "Q4_1", "F16"):
        write(network, made / f"{kind}.gguf", kind)
    write(network, made / "mixed.gguf", "Q4_0", "Q6_K")
    return made


def theirs(file: Path) -> torch.nn.Module:
    unpacked = GgufConfig(dequantize=True)
    return AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, quantization_config=unpacked, dtype=torch.float32
    )


def both(file: Path, engine: str) -> tuple[torch.Tensor, torch.Tensor, object]:
    config = ModelConfig(path=str(file))
    vocabulary = load_tokenizer(config, "target")
    ids = vocabulary.prompt(TEXT, "", 99).prefix
    numerics = "invariant" if engine == "native" else "fast"
    model = load_model(config, "target", vocabulary, torch.float32, torch.device("cpu"), engine, numerics=numerics)
    session = model.start(Prompt((), ids[:4]))
    found = torch.cat([session.extend(ids[session.length : stop]).clone() for stop in (4, 5, 9, len(ids))])
    wanted = theirs(file)(torch.tensor([ids])).logits[0, -len(found) :, : vocabulary.size]
    return found, wanted, model


@pytest.mark.skipif(not is_available(), reason="no C compiler")
@pytest.mark.parametrize("kind", KINDS)
def test_native_kernels_read_blocks_as_they_are(kind: str, folder: Path) -> None:
    found, wanted, model = both(folder / f"{kind}.gguf", "native")
    assert (found - wanted).abs().max() < ROUNDING * wanted.abs().max()
    assert {bits - HALF_SCALES for bits in model.packed._bits.values()} == KINDS[kind]  # type: ignore[attr-defined]
    assert model.report.weights == f"{kind} weights as they are" and model.invariant  # type: ignore[attr-defined]


@pytest.mark.skipif(not is_available(), reason="no C compiler")
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("Q4_1", "Q4_1 weights rounded to 8 bits: p belongs to the rounded weights"),
        ("mixed", "Q4_0 weights as they are; Q6_K weights rounded to 8 bits: p belongs to the rounded weights"),
    ],
)
def test_what_is_no_level_is_rounded_to_8_bits_and_said(kind: str, said: str, folder: Path) -> None:
    found, wanted, model = both(folder / f"{kind}.gguf", "native")
    assert model.report.weights == said  # type: ignore[attr-defined]
    assert ROUNDING < (found - wanted).abs().max() / wanted.abs().max() < 0.05
    session = model.start(Prompt((), (1,)))  # type: ignore[attr-defined]
    own = model.network(torch.tensor([[1]])).logits[0, -1, : model.vocabulary_size]  # type: ignore[attr-defined]
    assert torch.allclose(session.extend([1] if session.length == 0 else [])[-1], own, atol=1e-4)


@pytest.mark.parametrize("kind", ["Q4_0", "mixed", "F16"])
def test_eagerly_weights_are_unpacked(kind: str, folder: Path) -> None:
    found, wanted, model = both(folder / f"{kind}.gguf", "eager")
    assert (found - wanted).abs().max() < ROUNDING * wanted.abs().max()
    assert model.report.weights == "its weights are unpacked to float32"  # type: ignore[attr-defined]


def generated(file: Path, prompts: list[str]) -> list[list[int]]:
    vocabulary, network = load_tokenizer(ModelConfig(path=str(file)), "target"), theirs(file)
    found = []
    for text in prompts:
        ids = torch.tensor([vocabulary.prompt(text, "", 99).prefix])
        made = network.generate(ids, max_new_tokens=24, do_sample=False, attention_mask=torch.ones_like(ids))
        found.append(made[0, ids.shape[1] :].tolist())
    return found


@pytest.mark.parametrize(
    ("target", "draft"),
    [("Q4_0", "lookup"), ("Q8_0", "Q4_0"), pytest.param("F16", "Q4_0", marks=pytest.mark.full)],
)
def test_runs_are_lossless_and_those_of_the_unpacked_module(
    target: str, draft: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = [TEXT, "the old tree", "small cats and the old dog"]
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": one}) + "\n" for one in prompts))
    named = draft if draft == "lookup" else folder / f"{draft}.gguf"
    words = [f"target={folder / target}.gguf", f"draft={named}", f"task={rows}", "max_new_tokens=24", "warmup=0"]
    assert main(["run", *words, "gamma=4", f"results={tmp_path}/r"]) == 0
    (run,) = Records(tmp_path / "r").all_runs.to_dict("records")
    found = Records(tmp_path / "r").whole(run["run_id"])["prompts"]
    assert run["lossless"] and run["identical"] == 1 and run["dtype"] == "float32"
    assert [one["speculative"].tokens for one in found] == generated(folder / f"{target}.gguf", prompts)
    said = capsys.readouterr().err
    assert "dtype=auto: float32, in which the kernels add up" in said
    assert (f"target: {target}.gguf: {target} weights as they are" in said) == (target != "F16")


def test_levels_are_found_wherever_weights_were_moved() -> None:
    weight = 0.02 * torch.randn(70, 160, generator=torch.Generator().manual_seed(0))
    weight[3], weight[4, :32] = 0.0, 1e-6  # no scale, and a scale that is subnormal in fp16
    for kind, bits in (("Q8_0", 8), ("Q4_0", 4)):
        stored = getattr(gguf.GGMLQuantizationType, kind)
        unpacked = torch.from_numpy(gguf.dequantize(gguf.quantize(weight.numpy(), stored), stored).copy())
        order = torch.randperm(70, generator=torch.Generator().manual_seed(1))
        for moved in (unpacked, unpacked[order], torch.cat([unpacked, 2 * unpacked])):
            assert bits_found(moved) == bits | HALF_SCALES
            if is_available():
                packed_as_found(moved, bits | HALF_SCALES)
        assert not bits_found(unpacked.bfloat16().float() * 1.001)
    assert not bits_found(weight) and not bits_found(weight.half().float())
    assert bits_found(in_8_bits(weight)) == 8 | HALF_SCALES


def test_places_of_files() -> None:
    assert place_in("a/b:c-Q4_0.gguf") == {"hub": "a/b", "gguf": "c-Q4_0.gguf"}
    assert place_in("a/b@main:sub/c.gguf") == {"hub": "a/b", "revision": "main", "gguf": "sub/c.gguf"}
    assert place_in("./c.gguf") == {"path": "c.gguf"}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("none.gguf", "must be a file; there is none of that name"),
        ("damaged.gguf", "cannot be loaded"),
        ("m-00001-of-00002.gguf", "is a part of a split file; join them (llama-gguf-split --merge)"),
        ("folder", "holds GGUF files; give one of them: "),
    ],
)
def test_what_is_no_file_is_one_line(
    name: str, said: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "damaged.gguf").write_bytes((folder / "Q4_0.gguf").read_bytes()[:200])
    (tmp_path / "m-00001-of-00002.gguf").write_bytes(b"GGUF")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.gguf").write_bytes(b"GGUF")
    for key in ("target", "draft"):
        others = ["target=gpt-mini"] if key == "draft" else []
        words = ["run", *others, f"{key}={tmp_path / name}", "task=lm-mini", "limit=1", f"results={tmp_path}/r"]
        assert main([*words, *(["draft=lookup"] if key == "target" else [])]) in (1, 2)
        error = capsys.readouterr().err
        assert said in error and "Traceback" not in error, error


def test_without_the_package_one_line_names_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specbench.engine.weights.gguf_files.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"GGUF files are read by the package gguf: pip install"):
        load_tokenizer(ModelConfig(path=str(folder / "Q4_0.gguf")), "target")


def test_a_file_of_a_folder_is_named_by_a_key_of_its_own(tmp_path: Path) -> None:
    """Also where the folder holds GGUF files alone, of which one has to be named."""
    (tmp_path / "a.gguf").write_bytes(b"")
    check_model("target", ModelConfig(path=str(tmp_path), gguf="a.gguf"))
    with pytest.raises(UserError, match="holds GGUF files; give one of them"):
        check_model("target", ModelConfig(path=str(tmp_path)))
    with pytest.raises(UserError, match=r"target\.gguf=b\.gguf: there is no such file in"):
        check_model("target", ModelConfig(path=str(tmp_path), gguf="b.gguf"))
