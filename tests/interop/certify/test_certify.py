"""`specbench certify`: texts of the target are certified, texts of others are not, and too little text says so."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.algorithm.acceptance.base import Verification
from specbench.algorithm.acceptance.rules.exact import accept_exact
from specbench.algorithm.decoding import DecodingSpec, autoregressive, speculative
from specbench.algorithm.gamma import Constant
from specbench.analysis.proof import Proof, Statistic
from specbench.analysis.proof.certificate import (
    Certificate,
    greedy_certificate,
    greedy_power,
    sampled_certificate,
    with_copies,
)
from specbench.analysis.proof.departures import departures, difference, first_difference
from specbench.cli import main
from specbench.config.model import ModelConfig
from specbench.engine.eager.model import EagerModel
from specbench.engine.weights.load import load_model
from specbench.interop.certify.outputs import read_outputs
from specbench.methods.model.draft import ModelDraft
from specbench.sampling import Sampling
from specbench.text.tokenizer import load_tokenizer
from specbench.text.vocabulary import Vocabulary
from tests.support.calls import refusal
from tests.support.faults import WIDE, WORDS
from tests.support.toy import ToyModel

Capture = pytest.CaptureFixture[str]
Folders = dict[str, Path]
PROMPTS = ["the old dog", "a small cat", "the man sees", "red tree under", "the house near", "a green man"]


def loaded(folder: Path) -> tuple[Vocabulary, EagerModel]:
    config = ModelConfig(path=str(folder))
    vocabulary = load_tokenizer(config, "target")
    return vocabulary, load_model(config, "target", vocabulary, torch.float32, torch.device("cpu"))


def texts(
    folders: Folders, kind: str = "gpt2", temperature: float = 0.0, most: int = 24, repeat: int = 1, draft: bool = False
) -> list[dict[str, Any]]:
    """Rows that our loops wrote, the baseline's or the speculative one's."""
    vocabulary, target = loaded(folders[kind])
    proposing = ModelDraft(loaded(folders[f"{kind}-draft"])[1], vocabulary.size)
    sampling = Sampling(temperature)
    spec = DecodingSpec(sampling, most, Verification(accept_exact, sampling), Constant(3))
    rows = []
    for number, text in enumerate(PROMPTS * repeat):
        prompt, generator = vocabulary.prompt(text, "", 512), torch.Generator().manual_seed(number)
        if draft:
            tokens = speculative(target, proposing, prompt, spec, generator).tokens
        else:
            tokens = autoregressive(target, prompt, spec, generator).tokens
        rows.append({"prompt": text, "tokens": tokens, "text": vocabulary.text(tokens)})
    return rows


def written(file: Path, rows: Sequence[dict[str, Any]], *fields: str) -> str:
    file.write_text("".join(json.dumps({name: row[name] for name in fields or row}) + "\n" for row in rows))
    return str(file)


def certified(file: str, target: Path, capfd: Capture, *words: str) -> tuple[int, dict[str, Any]]:
    argv = ["certify", file, f"target.path={target}", "dtype=float32", "device=cpu", "--format", "json", *words]
    code = main(argv)
    return code, json.loads(capfd.readouterr().out)


@pytest.mark.covering(most=1)
@pytest.mark.parametrize("kind", ["gpt2", "t5"])
@pytest.mark.parametrize("draft", [False, True])
def test_our_greedy_texts_are_the_targets(
    kind: str, draft: bool, folders: Folders, tmp_path: Path, capfd: Capture
) -> None:
    rows = texts(folders, kind, draft=draft)
    code, found = certified(written(tmp_path / "o.jsonl", rows, "prompt", "tokens"), folders[kind], capfd)
    assert (code, found["verdict"]) == (0, "the target's") and found["rows_from_text"] == 0
    assert found["tokens"] == sum(len(row["tokens"]) for row in rows) and found["power"] < 0.1
    code, found = certified(written(tmp_path / "t.jsonl", rows, "prompt", "text"), folders[kind], capfd)
    assert (code, found["verdict"]) == (0, "the target's") and found["rows_from_text"] == len(rows)


@pytest.mark.full
def test_one_changed_token_is_found_with_its_margin(folders: Folders, tmp_path: Path, capfd: Capture) -> None:
    rows = texts(folders)
    best = rows[2]["tokens"][5]
    rows[2]["tokens"][5] = token = best - 1 if best > 4 else best + 1
    rows[2]["text"] = loaded(folders["gpt2"])[0].text(rows[2]["tokens"])
    code, found = certified(written(tmp_path / "o.jsonl", rows, "prompt", "tokens"), folders["gpt2"], capfd)
    assert (code, found["verdict"]) == (1, "not the target's")
    (one,) = found["departures"]
    assert one["row"].endswith("line 3") and one["position"] == 5 and (one["token"], one["best"]) == (token, best)
    assert one["margin"] > 100 * one["noise"] and not one["is_rounding"]
    code, found = certified(written(tmp_path / "t.jsonl", rows, "prompt", "text"), folders["gpt2"], capfd)
    assert code == 1 and found["departures"][0]["position"] == 5


def rounding_target(noisy: Callable[[int], bool] = lambda _: True) -> ToyModel:
    """Tokens 3 and 5 nearly tie everywhere; in `noisy` rows one pass and a step differ by more than these two do."""
    row = torch.zeros(WORDS).log_softmax(-1)
    row[3], row[5] = row[3] + 2.0, row[3] + 1.999

    class Session:
        def __init__(self) -> None:
            self.length = 0

        def extend(self, tokens: Sequence[int]) -> torch.Tensor:
            rows = row.repeat(len(tokens), 1)
            for index in range(len(tokens)):
                rows[index, 3] += 0.01 * (len(tokens) > 1 and noisy(self.length + index))
            self.length += len(tokens)
            return rows

    class Rounding(ToyModel):
        vocabulary_size, eos_ids = WORDS, frozenset[int]()

        def start(self, prompt: object) -> Session:  # type: ignore[override]
            return Session()

    return Rounding(torch.zeros(1))


def test_a_near_tie_is_put_down_to_rounding() -> None:
    target = rounding_target()
    near, far = [departures(target, WIDE, [3, token, 3, 3]) for token in (5, 7)]
    assert [one.is_rounding for one in near] == [True] and near[0].position == 1
    assert [one.is_rounding for one in far] == [False] and far[0].margin == pytest.approx(2.0, abs=0.01)
    assert [one.is_rounding for one in departures(target, WIDE, [3, 7, 3], noise=1.5)] == [True]


@pytest.mark.parametrize("text", [[3, 7, 3, 3], [3, 5, 7, 3], [3, 5, 3, 9]])
def test_a_near_tie_excuses_no_other_token(text: list[int]) -> None:
    """Where the target's two best tokens nearly tie, only these may win, and what follows is tested too."""
    target, own = rounding_target(), [3] * 4
    tie = first_difference(target, WIDE, own, text)
    assert tie is not None and tie.is_rounding  # so the two best tokens of the first place alone do not decide
    found = difference(target, WIDE, own, text)
    fault = next(index for index, token in enumerate(text) if token not in (3, 5))
    assert found is not None and not found.is_rounding and found.position == fault
    assert found.departures == sum(token != 3 for token in text[: fault + 1])


def test_the_noise_of_another_row_excuses_nothing() -> None:
    target = rounding_target(noisy=lambda row: row == 1)
    here, elsewhere = [difference(target, WIDE, [3] * 4, text) for text in ([3, 5, 3, 3], [3, 5, 5, 3])]
    assert here is not None and here.is_rounding
    assert elsewhere is not None and not elsewhere.is_rounding and elsewhere.position == 2


def test_a_completion_must_end_where_it_should() -> None:
    target = rounding_target()
    assert difference(target, WIDE, [3, 3, 3], [3, 3, 3], 3) is None
    for text in ([3, 3], [3, 3, 3, 3], [3, 5]):
        found = difference(target, WIDE, [3, 3, 3], text, 3)
        assert found is not None and not found.is_rounding and found.misplaced_end


@pytest.mark.full
@pytest.mark.statistical
@pytest.mark.parametrize("kind", ["gpt2", "t5"])
def test_our_sampled_texts_are_the_targets(kind: str, folders: Folders, tmp_path: Path, capfd: Capture) -> None:
    """False alarm: 3e-4 a run, of four tests."""
    rows = texts(folders, kind, temperature=1.0, repeat=6, most=30, draft=True)
    file = written(tmp_path / "o.jsonl", rows, "prompt", "tokens")
    code, found = certified(file, folders[kind], capfd, "sampling.temperature=1", "within=0.3")
    assert (code, found["verdict"]) == (0, "the target's")
    assert abs(found["tests"]["proof_z"]) < 4 and abs(found["tests"]["proof_z2"]) < 4 and found["power"] < 0.3
    code, found = certified(file, folders[kind], capfd, "sampling.temperature=1", "within=0.01")
    assert (code, found["verdict"]) == (2, "cannot tell") and found["tokens_needed"] > found["tokens"]
    code, found = certified(file, folders[kind], capfd, "sampling.temperature=1.6")
    assert (code, found["verdict"]) == (1, "not the target's") and abs(found["tests"]["proof_z"]) > 4


@pytest.mark.full
@pytest.mark.statistical
def test_faults_of_the_loop_show_earlier_with_the_servers_draft(
    folders: Folders, tmp_path: Path, capfd: Capture
) -> None:
    """Texts of another model: q itself for p."""
    rows = texts(folders, "gpt2", temperature=1.0, repeat=2, most=20)
    words = ["sampling.temperature=1", f"draft.path={folders['gpt2']}", "draft=gpt-nano"]
    file = written(tmp_path / "o.jsonl", rows, "prompt", "tokens")
    code, found = certified(file, folders["gpt2-draft"], capfd, *words)
    assert code == 1 and found["tests"]["proof_z_draft"] > abs(found["tests"]["proof_z2"])


@pytest.mark.full
@pytest.mark.statistical
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_texts_of_assisted_generation_are_the_targets(
    temperature: float, folders: Folders, tmp_path: Path, capfd: Capture
) -> None:
    """`generate(assistant_model=...)` of transformers; false alarm at T=1: 3e-4."""
    vocabulary, target = loaded(folders["gpt2"])
    draft = loaded(folders["gpt2-draft"])[1].network
    draft.generation_config.update(num_assistant_tokens=3, num_assistant_tokens_schedule="constant")
    sampled = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature else {}
    padding = list(range(vocabulary.size, target.network.config.vocab_size))  # rows of the head without a token
    rows = []
    torch.manual_seed(3)
    for text in PROMPTS * (3 if temperature else 1):
        ids = torch.tensor([vocabulary.prompt(text, "", 512).prefix])
        made = target.network.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            assistant_model=draft,
            max_new_tokens=24,
            pad_token_id=0,
            suppress_tokens=padding,
            **sampled,
        )
        rows.append({"prompt": ids[0].tolist(), "tokens": made[0, ids.shape[1] :].tolist()})
    words = [f"sampling.temperature={temperature}", "within=0.5"]
    code, found = certified(written(tmp_path / "o.jsonl", rows), folders["gpt2"], capfd, *words)
    assert (code, found["verdict"]) == (0, "the target's")


@pytest.mark.full
def test_ends_of_texts(folders: Folders, tmp_path: Path, capfd: Capture) -> None:
    """A server drops the end of sequence from what it returns, or continues after it."""
    vocabulary, target = loaded(folders["t5"])
    (end,) = target.eos_ids
    rows = [row for row in texts(folders, "t5", temperature=3.0, most=60) if row["tokens"][-1] == end]
    assert rows
    words = ("sampling.temperature=3",)
    dropped = [{**row, "tokens": row["tokens"][:-1], "finish_reason": "stop"} for row in rows]
    file = written(tmp_path / "o.jsonl", dropped, "prompt", "tokens", "finish_reason")
    code, found = certified(file, folders["t5"], capfd, *words)
    assert code != 1 and found["tokens"] == sum(len(row["tokens"]) for row in rows)
    longer = [{**row, "tokens": [vocabulary.start, *row["tokens"], 5, 6]} for row in rows]
    code, found = certified(written(tmp_path / "l.jsonl", longer, "prompt", "tokens"), folders["t5"], capfd, *words)
    assert code != 1 and found["tokens_after_ends"] == 2 * len(rows)
    assert found["tokens"] == sum(len(row["tokens"]) for row in rows)


@pytest.mark.full
def test_a_text_that_claims_to_have_ended_where_the_target_goes_on(
    folders: Folders, tmp_path: Path, capfd: Capture
) -> None:
    (end,) = loaded(folders["gpt2"])[1].eos_ids
    early = [{**row, "tokens": row["tokens"][:3], "finish_reason": "stop"} for row in texts(folders, most=8)]
    file = written(tmp_path / "o.jsonl", early, "prompt", "tokens", "finish_reason")
    code, found = certified(file, folders["gpt2"], capfd)
    assert code == 1 and {(one["token"], one["position"]) for one in found["departures"]} == {(end, 3)}
    file = written(tmp_path / "c.jsonl", early, "prompt", "tokens")  # cut by length, for all that it says
    assert certified(file, folders["gpt2"], capfd, "within=0.2")[0] == 0


def _outputs(tmp_path: Path, folder: Path, eos_ids: set[int], **fields: Any) -> Any:
    vocabulary = load_tokenizer(ModelConfig(path=str(folder)), "target")
    file = tmp_path / "one.jsonl"
    file.write_text(json.dumps({"prompt": "the", "tokens": [5, 6], **fields}) + "\n")
    (row,) = read_outputs(file, vocabulary, frozenset(eos_ids), None, None, "t").rows
    return row.tokens, row.ends


def test_any_end_of_the_target_ends_a_completion(folders: Folders, tmp_path: Path) -> None:
    """A stop string or another stop token is no end; a server that names its end is believed."""
    ends, stop = {3, 4}, "stop"
    assert _outputs(tmp_path, folders["gpt2"], ends, finish_reason=stop) == ([5, 6], (3, 4))
    assert _outputs(tmp_path, folders["gpt2"], {4}, finish_reason=stop) == ([5, 6, 4], ())
    assert _outputs(tmp_path, folders["gpt2"], ends, finish_reason=stop, stop_reason=3) == ([5, 6, 3], ())
    assert _outputs(tmp_path, folders["gpt2"], ends, finish_reason={"type": stop, "matched": 4}) == ([5, 6, 4], ())
    assert _outputs(tmp_path, folders["gpt2"], ends, finish_reason=stop, matched_stop=3) == ([5, 6, 3], ())
    for stopped in ("###", 9):
        for name in ("stop_reason", "matched_stop"):
            assert _outputs(tmp_path, folders["gpt2"], ends, finish_reason=stop, **{name: stopped}) == ([5, 6], ())


@pytest.mark.full
def test_the_end_that_the_target_prefers_is_tested(
    folders: Folders, tmp_path: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A target with several ends: the second was taken for the first, and a right server for a wrong one."""
    rows = texts(folders, most=4)
    last = rows[0]["tokens"][-1]
    assert last not in rows[0]["tokens"][:-1]
    row = {"prompt": rows[0]["prompt"], "tokens": rows[0]["tokens"][:-1], "finish_reason": "stop"}
    (end,) = loaded(folders["gpt2"])[1].eos_ids
    made = EagerModel.__init__
    monkeypatch.setattr(
        EagerModel, "__init__", lambda self, net, size, _, *more: made(self, net, size, frozenset({end, last}), *more)
    )
    file = written(tmp_path / "o.jsonl", [row])
    code, found = certified(file, folders["gpt2"], capfd, "within=0.6")
    assert code == 0 and found["tokens"] == len(rows[0]["tokens"])


@pytest.mark.full
def test_copies_of_a_row_count_once(folders: Folders, tmp_path: Path, capfd: Capture) -> None:
    for temperature in (0.0, 1.0):
        rows = texts(folders, temperature=temperature, most=30)[:2]
        file = written(tmp_path / "o.jsonl", rows * 16, "prompt", "tokens")
        code, found = certified(file, folders["gpt2"], capfd, f"sampling.temperature={temperature}")
        assert code != 1 and found["rows"] == 2 and sum(found["rows_left_out"].values()) == 30
        assert found["tokens"] == sum(len(row["tokens"]) for row in rows)


@pytest.mark.full
def test_rows_that_cannot_be_judged_are_counted(folders: Folders, tmp_path: Path, capfd: Capture) -> None:
    rows = texts(folders, temperature=1.0)
    rows = [{"prompt": row["prompt"], "text": row["text"]} for row in rows]
    rows += [
        {"prompt": "the dog", "text": ""},
        {"prompt": "the", "text": "dog  <odd>"},
        {"prompt": "the", "text": "cat " * 200},
    ]
    file = written(tmp_path / "o.jsonl", rows)
    code, found = certified(file, folders["gpt2"], capfd, "sampling.temperature=1")
    left = found["rows_left_out"]
    assert left["nothing was written"] == 1 and left["longer than the 128 positions of the target"] == 1
    assert any("round-trip" in reason for reason in left) and sum(left.values()) + found["rows"] == len(rows)
    code, found = certified(written(tmp_path / "e.jsonl", rows[-3:-2]), folders["gpt2"], capfd)
    assert (code, found["verdict"], found["tokens"]) == (2, "cannot tell", 0)


def test_a_text_that_tokens_do_not_give_back_names_the_way_out(
    folders: Folders, tmp_path: Path, capfd: Capture
) -> None:
    """It said '1 rows to test, 0 left out', then that none was read, and not what to give instead."""
    file = written(tmp_path / "o.jsonl", [{"prompt": "the", "text": "dog  <odd>"}])
    argv = [file, f"target.path={folders['gpt2']}", "dtype=float32", "device=cpu", "sampling.temperature=1"]
    assert main(["certify", *argv]) == 2
    out, err = capfd.readouterr()
    assert "1 row to test\n" in err and "1 row left out: " in out and "as 'tokens'" in out and "cannot tell" in out


def test_verdicts() -> None:
    assert greedy_power(0) is None and greedy_power(59) == pytest.approx(0.0495, abs=1e-3)
    assert greedy_certificate(20, [], 0.1).exit_code == 2 and greedy_certificate(29, [], 0.1).exit_code == 0
    fine, wrong = Statistic(1.0, 0.3), Statistic(9.0, 1e-12)
    right = Proof(500, fine, fine, fine, fine, 0.05, 0)
    assert sampled_certificate(right, 0.1).verdict == "the target's"
    assert "draft=" in sampled_certificate(right, 0.1).not_covered
    assert "but for model" in sampled_certificate(right, 0.1, suspect="model").not_covered
    assert not sampled_certificate(right, 0.01).not_covered and greedy_certificate(29, [], 0.1).not_covered
    assert sampled_certificate(right, 0.01).needed == 500 * 25
    assert sampled_certificate(Proof(500, fine, fine, fine, fine, 0.05, 2), 0.1).verdict == "not the target's"
    failed = sampled_certificate(Proof(500, wrong, fine, fine, fine, 0.05, 0), 0.1)
    assert failed.exit_code == 1 and "likelihood" in failed.reason
    assert sampled_certificate(Proof(500, wrong, fine, fine, fine, 0.05, 0), 0.1, "strings").exit_code == 2
    assert sampled_certificate(Proof(500, None, None, None, None, None, 0), 0.1).exit_code == 2


MISTAKES: dict[str, Callable[[Path], str]] = {
    "neither 'tokens' (ids) nor 'text'": lambda file: written(file, [{"prompt": "the dog"}]),
    "no field 'prompt'": lambda file: written(file, [{"tokens": [3, 4]}]),
    "completions are of another vocabulary": lambda file: written(file, [{"prompt": "the", "tokens": [3, 49_000]}]),
    "not a token id": lambda file: written(file, [{"prompt": "the", "tokens": ["dog"]}]),
    "has no chat template": lambda file: written(
        file, [{"messages": [{"role": "user", "content": "the"}], "tokens": [3]}]
    ),
    "it has no rows": lambda file: written(file, []),
    "not a JSON object on one line": lambda file: str(file.write_text('{"prompt": "the", "tok') and file),
}  # fmt: skip


@pytest.mark.parametrize("said", MISTAKES)
def test_what_does_not_fit_gets_one_line(said: str, folders: Folders, tmp_path: Path, capfd: Capture) -> None:
    file = MISTAKES[said](tmp_path / "o.jsonl")
    assert main(["certify", file, f"target.path={folders['gpt2']}", "dtype=float32", "device=cpu"]) == 2
    out, err = capfd.readouterr()
    assert out == "" and said in err.splitlines()[-1] and "Traceback" not in err and file in err.splitlines()[-1]


@pytest.mark.full
def test_command_lines_that_are_refused(folders: Folders, tmp_path: Path, capfd: Capture) -> None:
    assert "name the file of outputs" in refusal(["certify", "target=gpt-mini"], capfd)
    assert "one file of outputs, not 2" in refusal(["certify", "a.jsonl", "b.jsonl"], capfd)
    assert "nowhere.jsonl: there is no file" in refusal(["certify", "nowhere.jsonl"], capfd)
    (rows := tmp_path / "o.jsonl").write_text("")
    assert f"target: name the model that the server claims to run: certify {rows} target=NAME" in refusal(
        ["certify", str(rows)], capfd
    )
    assert "within=2" in refusal(["certify", "o.jsonl", "within=2"], capfd)
    assert "gamma: no such option" in refusal(["certify", "o.jsonl", "gamma=3"], capfd)


@pytest.mark.full
def test_copies_at_temperature_are_a_finding(folders: Folders, tmp_path: Path, capfd: Capture) -> None:
    """Requests that share random numbers write copies of each other: the tokens are the target's, the draws are not."""
    rows = texts(folders, temperature=1.0, most=30)
    file = written(tmp_path / "o.jsonl", [*rows, *rows[:3]], "prompt", "tokens")
    code, found = certified(file, folders["gpt2"], capfd, "sampling.temperature=1")
    assert (code, found["verdict"]) == (2, "not independent")
    assert f"3 of {len(rows) + 3} completions are copies" in found["reason"]


def test_copies_do_not_hide_tokens_that_are_not_the_targets() -> None:
    right = Certificate("the target's", "no test finds a difference", 9000, 0.1)
    wrong = Certificate("not the target's", "tokens do not follow the target's distribution", 9000, 0.1)
    assert with_copies(right, 0, 20) == right
    assert with_copies(right, 4, 20).verdict == "not independent" and with_copies(right, 4, 20).exit_code == 2
    assert with_copies(wrong, 4, 20).verdict == "not the target's" and "copies" in with_copies(wrong, 4, 20).reason


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["draft=lookup"], "draft=lookup: specbench certify does not use draft at T=0"),
        (["task=lm-mini"], "task=lm-mini: specbench certify does not use task at T=0"),
        (["seed=1"], "seed=1: specbench certify does not use seed at T=0"),
        (["sampling.temperature=1", "noise=.1"], "noise=0.1: specbench certify does not use noise at T>0"),
        (
            ["sampling.temperature=1", "draft=gpt-nano", "task=lm-mini"],
            "task=lm-mini: specbench certify does not use task",
        ),
    ],
)
def test_a_key_that_the_test_ignores_is_refused(words: list[str], said: str, capfd: Capture) -> None:
    """At T=0 a draft was loaded, and nothing was done with it."""
    assert refusal(["certify", "o.jsonl", "target=gpt-mini", *words], capfd).startswith(f"specbench: {said}")
