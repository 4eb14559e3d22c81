"""Each reader of a foreign file answers any content in its own words: no traceback, no hang.

`pytest -m full tests/test_hostile_files.py` reads 2,000 files with each reader, the same at every call; SPECBENCH_FILES
sets another number.
"""

import contextlib
import gzip
import json
import lzma
import os
import random
import warnings
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specbench.analysis.acceptance.agreement import Agreement, Chances
from specbench.analysis.acceptance.ranks import Ranks
from specbench.analysis.as_measurement import measurement
from specbench.analysis.findings.checkpoint import Checkpoint, read_checkpoint
from specbench.analysis.findings.configs import differences
from specbench.border import Unreadable
from specbench.choose.kept import KeptAgreements
from specbench.cli import sweep_log
from specbench.cli.read import main as read_main
from specbench.config.model import ModelConfig
from specbench.config.own_choices import read_choice
from specbench.engine.weights import parameters
from specbench.errors import MachineError, UserError
from specbench.experiment import dtype
from specbench.files import json_text
from specbench.interop.certify.outputs import read_outputs
from specbench.interop.readings.document import Document
from specbench.interop.readings.forced import read_golden
from specbench.interop.serving.completions import Completions
from specbench.recorded import to_json
from specbench.records import store
from specbench.records.alpha_document import KeptAlphaDocument
from specbench.records.alphas import betas, find_scored
from specbench.records.catalog import Catalog
from specbench.records.choosing import RecommendDocument
from specbench.records.documents import read_document, saved_document
from specbench.records.journal import Journal
from specbench.records.keeping import compact
from specbench.records.kept_form import shared_file
from specbench.records.measurements import read_measurements
from specbench.sampling import Sampling
from specbench.tasks.row_files import messages_of, read_rows
from specbench.text.vocabulary import Vocabulary
from tests.support.hostile import as_json, damaged, spoilt
from tests.support.made_records import record
from tests.support.networks import tokenizer

FILES = int(os.environ.get("SPECBENCH_FILES", "2000"))
RECORD = to_json(record(prompts=1))
RECORD["pieces"] = dict(list(RECORD["pieces"].items())[:2])
KEPT = compact(record(prompts=2))  # type: ignore[arg-type]
PROMPT = RECORD["prompts"][0]
INTERVAL = {"value": 0.5, "low": 0.4, "high": 0.6}
NAMES = {"target": "t", "draft": "d", "task": "k", "temperature": 0.0, "top_k": None, "top_p": None}
ALPHA_ROW = NAMES | {
    "accept": "exact", "lossy": False, "prompts": 1, "tokens": 2, "alpha": 0.5, "alpha_low": None, "alpha_high": None,
    "lenient": {"0.5": INTERVAL}, "dtype": "float32", "device": "cpu", "hardware": "h", "simulated": False,
    "created": "2026-01-02T03:04:05+00:00", "acceptance_by_rank": {"draw": [INTERVAL]},
}  # fmt: skip
ALPHA = {
    "schema_version": 2, "environment": RECORD["environment"], "alpha_id": "a", "rows": [ALPHA_ROW],
    "settings": [{
        "temperature": 0.0, "sample": "s", "sample_s": 1.0, "texts_reused": 0, "score_s": 1.0, "wall_s": 1.0,
        "drafts": {"d": [{"beta": [0.5, 1.0], "ahead": [{"beta": [0.5]}]}]},
    }],
    "configs": [RECORD["config"]],
}  # fmt: skip
PROMPTS = [
    {"prompt": "the old dog", "text": "sees", "token_ids": [1, 2], "finish_reason": "stop"},
    {"messages": [{"role": "user", "content": "a"}], "text": "a tree", "finish_reason": {"type": "x", "matched": 1}},
    {"prompt_token_ids": [3, 4], "token_ids": [5], "stop_reason": 1},
]  # fmt: skip
ANSWER = {"choices": [{"text": "a"}], "usage": {"completion_tokens": 1}}
CHOICE = {"name": "x", "shipped": "t5-mini", "defaults": [{"/model@via": "y"}], "note": "n"}
VLLM = {"choices": [{"text": "a"}], "metrics": {"num_draft_tokens": 9, "num_accepted_tokens": 3, "num_drafts": 3}}
ALL_READ = [  # a right document of each kind that `specbench read` knows is in tests/interop/readings/test_readings.py
    VLLM, [VLLM], {"spec_verify_ct": 3, "completion_tokens": 9}, {"acceptance_rate": 0.5, "gamma": 3},
    {"meta_info": {"spec_verify_ct": 3, "completion_tokens": 9}}, {"timings": {"draft_n": 9, "draft_n_accepted": 3}},
]  # fmt: skip
LINES = (
    "SpecDecoding metrics: Mean acceptance length: 2.50, Accepted throughput: 1.0 tokens/s, Drafted throughput: "
    "3.0 tokens/s, Accepted: 15 tokens, Drafted: 30 tokens, Per-position acceptance rate: 0.8, 0.5, 0.2, "
    "Avg Draft acceptance rate: 50.0%\n",
    'vllm:spec_decode_num_drafts_total{model="m"} 3\nvllm:spec_decode_num_draft_tokens_total{model="m"} 9\n'
    'vllm:spec_decode_num_accepted_tokens_total{model="m"} 4\n',
    "draft acceptance rate = 0.5 ( 3 accepted / 6 generated)\n",
)


def head_and_rest(value: Any) -> str:
    """A record as its file has it, also where it is none."""
    if not isinstance(value, dict):
        return as_json(value)
    head = {key: value[key] for key in store.HEAD if key in value} | {"schema_version": 2}
    rest = {key: item for key, item in value.items() if key not in head}
    return f"{as_json(head)[:-1]},\n{as_json(rest | {'complete': True})[1:-1]}\n}}\n"


def of_record(content: bytes, folder: Path, draw: random.Random) -> None:
    ending = draw.choice((".json", ".json.gz", ".json.xz"))
    file = folder / f"r{ending}"
    if ending != ".json" and draw.random() < 0.8:
        content = gzip.compress(content, 1) if ending == ".json.gz" else spoilt(lzma.compress(content, preset=0), draw)
    file.write_bytes(content)
    for read in (store.read_head, store.read):
        with contextlib.suppress(Unreadable):
            read(file)
    file.unlink()


def of_kept(content: bytes, folder: Path, draw: random.Random) -> None:
    """A kept record, or the prompts that kept records share."""
    shared = shared_file(folder, KEPT.digest)
    shared.parent.mkdir(exist_ok=True)
    ours = draw.random() < 0.7
    (folder / "r.json").write_bytes(content if ours else lzma.decompress(KEPT.content))
    shared.write_bytes(KEPT.shared if ours else lzma.compress(content, preset=0))
    for read in (store.read_head, store.read):
        with contextlib.suppress(Unreadable):
            read(folder / "r.json")


def of_catalog(content: bytes, folder: Path, draw: random.Random) -> None:
    runs = store.runs_folder(folder)
    runs.mkdir(exist_ok=True)
    (runs / "bad.json").write_bytes(content)
    (runs / "good.json").write_text(head_and_rest(RECORD))
    assert RECORD["run_id"] in [row["run_id"] for row in Catalog(folder).rows()]


def of_journal(content: bytes, folder: Path, draw: random.Random) -> None:
    (folder / "journals").mkdir(exist_ok=True)
    (folder / "journals" / "run.jsonl").write_bytes(content)
    with Journal(folder, "run") as journal:
        journal.add(PROMPT | {"index": 7})
    with Journal(folder, "run") as journal:
        assert 7 in journal.prompts
        journal.remove()


def of_baseline(content: bytes, folder: Path, draw: random.Random) -> None:
    (folder / "b.jsonl").write_bytes(content)
    read_measurements(folder / "b.jsonl", "--baseline")


def of_document(content: bytes, folder: Path, draw: random.Random) -> None:
    (folder / "d.json").write_bytes(content)
    for kind in (KeptAlphaDocument, RecommendDocument):
        saved_document(folder / "d.json", kind)
    document = find_scored(folder, str(folder / "d.json"))
    if document is not None:
        list(betas(document))
    read_document(folder / "d.json")


def of_sweep(content: bytes, folder: Path, draw: random.Random) -> None:
    (folder / "outcomes.jsonl").write_bytes(content)
    assert all(isinstance(one["code"], int) for one in sweep_log.all_of(folder / "outcomes.jsonl"))


def of_rows(content: bytes, folder: Path, draw: random.Random) -> None:
    file = folder / f"rows{draw.choice(('.jsonl', '.csv', '.tsv', '.txt', '.jsonl.gz'))}"
    file.write_bytes(content)
    try:
        for row in read_rows(file):
            messages_of(row, "prompt")
    finally:
        file.unlink()


VOCABULARY = Vocabulary(tokenizer(False), 0, is_encoder_decoder=False)
VOCABULARY.tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"


def of_certify(content: bytes, folder: Path, draw: random.Random) -> None:
    (folder / "c.jsonl").write_bytes(content)
    read_outputs(folder / "c.jsonl", VOCABULARY, frozenset({1}), 64, None, "t")


def of_log(content: bytes, folder: Path, draw: random.Random) -> None:
    file = folder / f"log{draw.choice(('', '.json', '.txt'))}"
    file.write_bytes(content)
    try:
        read_main([str(file), "--format", "json"])
    finally:
        file.unlink()


def of_answer(content: bytes, folder: Path, draw: random.Random) -> None:
    client = Completions("http://127.0.0.1:1/v1", "m")
    client._request = lambda *given: content  # type: ignore[method-assign]
    try:
        client.complete((5,), 4, Sampling(), 0)
    finally:
        client.counts()


def of_choice(content: bytes, folder: Path, draw: random.Random) -> None:
    (folder / "x.yaml").write_bytes(content)
    read_choice(folder / "x.yaml", draw.choice(("target", "experiment")))


def of_probe(content: bytes, folder: Path, draw: random.Random) -> None:
    (folder / "p.json").write_bytes(content)
    assert dtype._read(folder / "p.json") is None or True


CHECKPOINT = {  # the keys of config.json, tokenizer.json and tokenizer_config.json in one
    "model_type": "llama", "vocab_size": 9, "hidden_size": 8, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0}, "sliding_window": 8,
    "layer_types": ["full_attention", "sliding_attention"], "text_config": {"num_hidden_layers": 2}, "target": "t",
    "eagle": {"width": 8, "taps": [1, 2]}, "num_target_layers": 2, "tie_word_embeddings": True, "dtype": "bfloat16",
    "model": {"vocab": {"a": 0, "b": 1}}, "added_tokens": [{"id": 2, "content": "<s>"}], "chat_template": "{{ x }}",
    "bos_token": {"content": "<s>"}, "eos_token": "</s>", "add_bos_token": True, "eos_token_id": [1, 2],
}  # fmt: skip


def of_checkpoint(content: bytes, folder: Path, draw: random.Random) -> None:
    (folder / "config.json").write_text(json.dumps(CHECKPOINT))
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        if draw.random() < 0.5:
            (folder / name).write_bytes(content)
    read = read_checkpoint(ModelConfig(path=str(folder)), "draft")
    known = Checkpoint("t", "t", CHECKPOINT, {"a": 0, "b": 1}, tokenizer=CHECKPOINT, generation=CHECKPOINT)
    for pair in ((read, known), (known, read)):
        assert all(one.matters for one in differences(*pair))


def of_agreements(content: bytes, folder: Path, draw: random.Random) -> None:
    """A file of `alpha` that has not ended: what is no agreement is cut off, and the rest is taken."""
    file = folder / "unfinished.jsonl"
    file.write_bytes(content)
    KeptAgreements(["d"], {"d": file})
    assert file.stat().st_size == sum(len(line) for line in file.read_bytes().splitlines(keepends=True))


def of_header(content: bytes, folder: Path, draw: random.Random) -> None:
    size = draw.choice((len(content), 2**63, draw.randrange(2 * len(content) + 1)))
    (folder / "model.safetensors").write_bytes(size.to_bytes(8, "little") + content)
    count = parameters(ModelConfig(path=str(folder)))
    assert count is None or isinstance(count, int)


def of_golden(content: bytes, folder: Path, draw: random.Random) -> None:
    (folder / "g.yaml").write_bytes(content)
    read_golden(Document.read(folder / "g.yaml"))


def lines(*values: Any) -> Callable[[random.Random], str]:
    """Some lines of JSON, one of which is damaged."""

    def write(draw: random.Random) -> str:
        some = [as_json(value) for value in values]
        place = draw.randrange(len(some))
        some[place] = as_json(damaged(values[place], draw))
        return "\n".join(some) + "\n"

    return write


def one(*values: Any) -> Callable[[random.Random], str]:
    return lambda draw: as_json(damaged(draw.choice(values), draw))


STEP = {"schema_version": 2}
AGREEMENT = asdict(
    Agreement(
        [0.5], [1.0], [False], {"lenient": [0.5]}, {"lenient": [0.1]}, [Agreement([0.5])], True,
        {"block": Chances([0.5], [1.0])}, Ranks({"fixed": [0.5]}, {"fixed": [[0.5]]}, {"exact": [0.5]}, 1, [Ranks()]),
    )
)  # fmt: skip
SCORED = {"index": 0, "seconds": 1.0, "agreement": AGREEMENT}
HEADER = {"__metadata__": {"format": "pt"}, "w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}
GOLDEN = {"_metadata": {"a": 1}, "model": {"thinking": {"1": 1.5, "3": 2.5}}}
READERS: dict[str, tuple[Callable[[bytes, Path, random.Random], None], Callable[[random.Random], str]]] = {
    "record": (of_record, lambda draw: head_and_rest(damaged(RECORD, draw))),
    "kept": (of_kept, lambda draw: head_and_rest(damaged(json.loads(lzma.decompress(KEPT.content)), draw))),
    "catalog": (of_catalog, lambda draw: head_and_rest(damaged({**RECORD, "run_id": "bad"}, draw))),
    "journal": (of_journal, lines(STEP | {"part": RECORD["processes"][0]}, STEP | {"prompt": PROMPT})),
    "baseline": (of_baseline, lines(measurement(record(prompts=1)), measurement(record(prompts=1)))),
    "document": (of_document, one(ALPHA)),
    "sweep": (of_sweep, lines({"code": 0, "keys": ["a=1"], "run_id": "r"}, {"code": 1, "keys": [], "error": "x"})),
    "rows": (of_rows, lines(*PROMPTS)),
    "certify": (of_certify, lines(*PROMPTS)),
    "log": (of_log, lambda draw: draw.choice(LINES) if draw.random() < 0.3 else one(*ALL_READ)(draw)),
    "answer": (of_answer, one(ANSWER)),
    "choice": (of_choice, one(CHOICE)),
    "checkpoint": (of_checkpoint, one(CHECKPOINT)),
    "agreements": (of_agreements, lines(SCORED, SCORED)),
    "header": (of_header, one(HEADER)),
    "golden": (of_golden, one(GOLDEN)),
    "probe": (of_probe, one({"dtype": "float32", "bfloat16_ms": 1.0, "float32_ms": 2.0})),
}  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("reader", READERS)
def test_any_file_is_read_or_refused_in_one_line(
    reader: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    read, write = READERS[reader]

    @settings(
        max_examples=FILES, derandomize=True, deadline=5_000, database=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )  # fmt: skip
    @given(st.integers(0, 2**62))
    def each(number: int) -> None:
        draw = random.Random(number)
        content = spoilt(write(draw).encode(errors="surrogatepass"), draw)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with contextlib.suppress(UserError, MachineError, Unreadable):
                read(content, tmp_path, draw)

    each()
    capfd.readouterr()


def test_right_files_are_read(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Each reader takes the file that the others are made of, so that the faults are found where they are."""
    draw = random.Random(1)
    of_journal((json_text(STEP | {"prompt": PROMPT}) + "\n").encode(), tmp_path, draw)
    (tmp_path / "r.json").write_text(head_and_rest(RECORD))
    assert store.read(tmp_path / "r.json")["run_id"] == store.read_head(tmp_path / "r.json").run_id
    of_baseline(json.dumps(measurement(record(prompts=1))).encode(), tmp_path, draw)
    (tmp_path / "a.json").write_text(json_text(ALPHA))
    assert len(list(betas(find_scored(tmp_path, str(tmp_path / "a.json"))))) == 1  # type: ignore[arg-type]
    (tmp_path / "c.jsonl").write_text("\n".join(map(json.dumps, PROMPTS)))
    assert len(read_outputs(tmp_path / "c.jsonl", VOCABULARY, frozenset({1}), 64, None, "t").rows) == len(PROMPTS)
    of_choice(json.dumps(CHOICE).encode(), tmp_path, draw)
    of_checkpoint(json.dumps(CHECKPOINT).encode(), tmp_path, draw)
    (tmp_path / "u.jsonl").write_text(json.dumps(SCORED) + "\n" + json.dumps(SCORED | {"seconds": "1"}) + "\n")
    kept = KeptAgreements(["d"], {"d": tmp_path / "u.jsonl"})
    assert asdict(kept.found["d"][0]) == AGREEMENT and kept.seconds == 1.0
    assert (tmp_path / "u.jsonl").read_text() == json.dumps(SCORED) + "\n"
    header = json.dumps(HEADER).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    assert parameters(ModelConfig(path=str(tmp_path))) == 6
    (tmp_path / "g.yaml").write_text(json.dumps(GOLDEN))
    assert len(read_golden(Document.read(tmp_path / "g.yaml")).printed) == 4
    of_answer(json.dumps(ANSWER).encode(), tmp_path, draw)
