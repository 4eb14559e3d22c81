"""What requests set beside temperature: equal to `transformers`' processors and stopping, for every draft and gamma."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.generation.logits_process import (
    ForcedBOSTokenLogitsProcessor,
    LogitsProcessorList,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensLogitsProcessor,
)
from transformers.generation.stopping_criteria import StopStringCriteria

from specbench.algorithm.gamma import Constant
from specbench.cli import main
from specbench.compose.hydra_app import composed_config
from specbench.config.model import ModelConfig
from specbench.config.paths import shipped
from specbench.config.schema import RunConfig, SamplingConfig, TaskConfig
from specbench.errors import UserError
from specbench.experiment.from_model import settings_of, unapplied, with_settings_of_model
from specbench.experiment.identity import identify
from specbench.experiment.measure import prompt_record, speculative_of
from specbench.experiment.run_parts import build_each, resolve
from specbench.kernels import is_available
from specbench.methods.lookup.config import LookupConfig
from specbench.records.frame import Records
from specbench.records.passes_run import IN_C
from specbench.text.processors import Processors
from specbench.text.stops import Stops
from specbench.text.tokenizer import load_tokenizer

WIDE, ENDS = 50, frozenset({7, 9})
PROMPTS = ["One day a little girl", "The cat and the dog", "Tom had a red ball. He"]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("ngram", [1, 2, 3])
def test_rows_are_those_of_transformers_in_its_order(seed: int, ngram: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    sequence, prompt = torch.randint(8, (24,), generator=generator).tolist(), 10
    logits_1V = torch.randn(1, WIDE, generator=generator)
    own = Processors(WIDE, ENDS, repetition=1.3, bad_words=((3,), (sequence[-1], 11)), ngram=ngram,
                     bias=((4, 2.0), (20, -3.0)), suppressed=(9, 30))  # fmt: skip
    theirs = LogitsProcessorList([
        SequenceBiasLogitsProcessor([[[4], 2.0], [[20], -3.0]]), RepetitionPenaltyLogitsProcessor(1.3),
        NoRepeatNGramLogitsProcessor(ngram), NoBadWordsLogitsProcessor([[3], [sequence[-1], 11]]),
        SuppressTokensLogitsProcessor([9, 30]),
    ])  # fmt: skip
    wanted = theirs(torch.tensor([sequence]), logits_1V.clone())
    found = own.processed(logits_1V, [sequence], prompt)
    assert torch.allclose(found, wanted) and (found.isneginf()).equal(wanted.isneginf())


def test_forced_tokens_come_first_whatever_forbids_them() -> None:
    own = Processors(WIDE, ENDS, forced=(5, 6), suppressed=(5,), bad_words=((6,),), min_new_tokens=3)
    rows = own.processed(torch.randn(3, WIDE), [[1], [1, 5], [1, 5, 6]], 1)
    forced = ForcedBOSTokenLogitsProcessor(5)(torch.tensor([[1]]), torch.randn(1, WIDE))
    assert rows[0].equal(forced[0]) and rows[1].softmax(-1)[6] == 1 and bool(rows[2].isfinite().sum() > 40)
    with_fault = own.processed(torch.full((1, WIDE), torch.nan), [[1]], 1)
    assert not bool(with_fault.isfinite().sum() > 1)


@pytest.fixture(scope="module")
def tokenizer():  # type: ignore[no-untyped-def]
    return load_tokenizer(ModelConfig(name="gpt-mini", shipped="gpt-mini"), "target")


STOPS = [["."], [" the"], ["he ", "zz"], ["girl"], ["y a", "\n"], ["</s>"]]


@pytest.mark.parametrize("strings", STOPS)
def test_a_text_stops_where_that_of_transformers_stops(strings: list[str], tokenizer) -> None:  # type: ignore[no-untyped-def]
    criteria, own = StopStringCriteria(tokenizer.tokenizer, strings), Stops(strings, tokenizer)
    generator = torch.Generator().manual_seed(0)
    texts = [tokenizer.ids(one) for one in PROMPTS]
    texts += [torch.randint(tokenizer.size, (30,), generator=generator).tolist() for _ in range(10)]
    stopped = 0
    for tokens in texts:
        ends = (count for count in range(1, len(tokens) + 1) if bool(criteria(torch.tensor([tokens[:count]]), None)))
        wanted = next(ends, None)
        stopped += wanted is not None
        for block in (1, 4, 100):  # by one token, and within a block
            found, written = None, list[int]()
            while found is None and len(written) < len(tokens):
                given = tokens[len(written) : len(written) + block]
                found = own.place(written, given)
                written += given if found is None else given[:found]
            assert (len(written) if found is not None else None) == wanted
    assert stopped or strings == ["</s>"]


def generated(model: Path, **keywords: object) -> list[list[int]]:
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    theirs = AutoTokenizer.from_pretrained(model)
    found = []
    for text in PROMPTS:
        ids = torch.tensor([theirs(text).input_ids])
        made = network.generate(ids, max_new_tokens=24, do_sample=False, tokenizer=theirs, **keywords)
        found.append(made[0, ids.shape[1] :].tolist())
    return found


def completions(tmp_path: Path, *words: str, target: str = "gpt-mini") -> tuple[list[list[int]], dict[str, object]]:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"prompt": one}) + "\n" for one in PROMPTS))
    results = tmp_path / f"r{len(list(tmp_path.iterdir()))}"
    common = [f"task={file}", "max_new_tokens=24", "dtype=float32", "warmup=0", f"results={results}"]
    assert main(["run", f"target={target}", *common, *words]) == 0
    (run,) = Records(results).all_runs.to_dict("records")
    prompts = Records(results).whole(run["run_id"])["prompts"]
    assert [one["baseline"].tokens for one in prompts] == [one["speculative"].tokens for one in prompts]
    return [one["speculative"].tokens for one in prompts], run


@pytest.mark.skipif(not is_available(), reason="no C compiler")
def test_stop_strings_end_passes_that_run_in_one_call(tmp_path: Path) -> None:
    """With the draft and of the target alone: the same completions as step by step."""
    words = ["sampling.stop=[' and',' th']", "draft=gpt-nano", "gamma=4"]
    in_calls, run = completions(tmp_path, *words, "engine=native")
    step_by_step, _ = completions(tmp_path, *words, "engine=eager")
    assert run["passes_run"] == IN_C
    assert in_calls == step_by_step and min(map(len, in_calls)) < 24


ALL = ["sampling.no_repeat_ngram_size=3", "sampling.suppress_tokens=[17,30]", "sampling.stop=[' and',' th']",
       "sampling.logit_bias=[5:1.5,11:-2]"]  # fmt: skip


@pytest.mark.parametrize(
    "draft",
    [
        "draft=lookup gamma=5",
        "draft=gpt-nano gamma=4 engine=native",
        pytest.param("draft=gpt-nano gamma=4 engine=eager", marks=pytest.mark.full),
        pytest.param("draft=gpt-nano tree=dynamic gamma=tree", marks=pytest.mark.full),
        pytest.param("draft=early-exit gamma=3", marks=pytest.mark.full),
        pytest.param("draft=suffix gamma=8", marks=pytest.mark.full),
    ],
)
def test_completions_are_those_of_generate(draft: str, tmp_path: Path) -> None:
    bias = [[[5], 1.5], [[11], -2.0]]
    wanted = generated(shipped("models", "gpt-mini"), no_repeat_ngram_size=3, suppress_tokens=[17, 30],
                       sequence_bias=bias, stop_strings=[" and", " th"])  # fmt: skip
    assert any(len(one) < 24 for one in wanted)  # some are stopped
    assert completions(tmp_path, *draft.split(), *ALL)[0] == wanted


@pytest.mark.parametrize("draft", ["draft=lookup gamma=8", "draft=gpt-nano gamma=6"])
def test_a_stop_string_alone_leaves_the_rest_to_the_kernels(draft: str, tmp_path: Path) -> None:
    wanted = generated(shipped("models", "gpt-mini"), stop_strings=[" a", "e"])
    assert completions(tmp_path, *draft.split(), "sampling.stop=[' a',e]")[0] == wanted


def test_a_completion_that_a_string_ends_after_a_near_tie_is_no_fault(tmp_path: Path) -> None:
    """Where the target alone took the other token, the record says so, and not that the completion ends too early."""
    config = RunConfig(
        target=ModelConfig(name="gpt-mini", shipped="gpt-mini"), draft=LookupConfig(),
        task=TaskConfig(name="own", path=str(tmp_path / "rows.jsonl"), source_field="prompt"),
        sampling=SamplingConfig(stop=["e"]), max_new_tokens=24, dtype="float32", device="cpu", engine="eager",
    )  # fmt: skip
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": PROMPTS[0]}) + "\n")
    (parts,) = build_each([resolve(config)], lambda line: None)
    ours = speculative_of(parts, replace(parts.spec, gamma=Constant(2)), 0)()
    assert len(ours.tokens) < 24
    other = replace(ours, tokens=[(ours.tokens[0] + 1) % 40, *ours.tokens[1:], 5])
    difference = prompt_record(parts, 0, other, ours, None)["difference"]
    assert difference is not None and difference.position == 0 and not difference.misplaced_end


def test_ends_are_ignored(tmp_path: Path) -> None:
    """A copy of the target whose every 'the' ends a text; with ignore_eos it goes on as `generate` without an end."""
    folder = tmp_path / "ending"
    shutil.copytree(shipped("models", "gpt-mini"), folder)
    vocabulary = load_tokenizer(ModelConfig(name="gpt-mini", shipped="gpt-mini"), "target")
    own = generated(folder, eos_token_id=None)
    ends = sorted({one[3] for one in own} | {vocabulary.tokenizer.eos_token_id})
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    short, _ = completions(tmp_path, "draft=gpt-nano", target=str(folder))
    assert all(len(one) <= 4 for one in short)
    assert completions(tmp_path, "draft=gpt-nano", "sampling.ignore_eos=true", target=str(folder))[0] == own


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("sampling.logit_bias=[a]", "must be a list of ID:NUMBER, as in [17:-100,5:2.5]"),
        ("sampling.logit_bias=[99999999:1]", "sampling.logit_bias: there is no token 99999999; the tokenizer has 0 to"),
        ("sampling.suppress_tokens=[99999999]", "sampling.suppress_tokens: there is no token 99999999"),
        ("sampling.forced_tokens=[99999999]", "sampling.forced_tokens: there is no token 99999999"),
        ("sampling.stop=['']", "sampling.stop=['']: must be strings of at least one character"),
        ("sampling.ignore_eos=true sampling.min_new_tokens=2", "not together with sampling.min_new_tokens"),
        ("sampling.no_repeat_ngram_size=2 batch=2", "batch=2: not together with sampling.no_repeat_ngram_size"),
    ],
)
def test_a_wrong_key_is_one_line(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "target=gpt-mini", "draft=lookup", "task=lm-mini", "limit=2", *words.split()]) == 2
    error = capsys.readouterr().err
    assert said in error and "Traceback" not in error


# generation_config.json

QWEN = {"do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.05}
BART = {"no_repeat_ngram_size": 3, "forced_bos_token_id": 0, "forced_eos_token_id": 2, "min_length": 56, "num_beams": 4}


def test_what_checkpoints_ask_for_as_options() -> None:
    assert settings_of(QWEN, False) == (
        {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.05}, []
    )  # fmt: skip
    options, others = settings_of(BART, True)
    assert options == {"no_repeat_ngram_size": 3, "min_new_tokens": 55, "forced_tokens": [0]}
    assert others == ["forced_eos_token_id=2", "num_beams=4"]
    assert settings_of(BART, False)[0] == {"no_repeat_ngram_size": 3}
    assert settings_of({"temperature": 0.6, "top_p": 0.9}, False) == ({}, [])  # greedy without do_sample
    assert settings_of({"bad_words_ids": [[3]], "sequence_bias": [[[4], 1.5]]}, False)[0] == {
        "bad_words_ids": [[3]], "logit_bias": ["4:1.5"]
    }  # fmt: skip


def test_a_run_says_what_it_leaves_out_and_applies_it_when_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "asking"
    shutil.copytree(shipped("models", "gpt-mini"), folder)
    end = json.loads((folder / "generation_config.json").read_text())["eos_token_id"]
    asked = {"eos_token_id": end, "no_repeat_ngram_size": 2, "repetition_penalty": 1.1, "typical_p": 0.9}
    (folder / "generation_config.json").write_text(json.dumps(asked))
    plain, _ = completions(tmp_path, "draft=lookup", target=str(folder))
    said = capsys.readouterr().err
    assert "generation_config.json of asking asks for what is not applied: sampling.repetition_penalty=1.1 " in said
    assert "typical_p=0.9 (no option applies it)" in said
    taken, run = completions(tmp_path, "draft=lookup", "sampling.from_model=true", target=str(folder))
    assert "sampling.from_model=true: sampling.repetition_penalty=1.1 sampling.no_repeat_ngram_size=2" in (
        capsys.readouterr().err
    )
    assert run["processing"] == "repetition_penalty=1.1 no_repeat_ngram_size=2" and taken != plain
    assert taken == generated(folder, typical_p=None)
    given = RunConfig(
        target=ModelConfig(path=str(folder)), sampling=SamplingConfig(repetition_penalty=1.3, no_repeat_ngram_size=2)
    )
    assert unapplied(given) is not None and "repetition_penalty" not in (unapplied(given) or "")


@pytest.mark.parametrize(
    "asked", [{"suppress_tokens": [1, "x"]}, {"bad_words_ids": [3]}, {"stop_strings": [3]}, {"repetition_penalty": []}]
)
def test_settings_of_another_form_are_one_line(asked: dict[str, object], tmp_path: Path) -> None:
    """Before anything is loaded, and not where logits are processed."""
    folder = tmp_path / "odd"
    shutil.copytree(shipped("models", "gpt-mini"), folder)
    (folder / "generation_config.json").write_text(json.dumps(asked))
    config = RunConfig(
        target=ModelConfig(path=str(folder)), draft=LookupConfig(), task=TaskConfig(name="own", path=str(folder)),
        sampling=SamplingConfig(from_model=True),
    )  # fmt: skip
    with pytest.raises(UserError, match=r"generation_config\.json of odd cannot be applied: it"):
        with_settings_of_model(config, lambda line: None)


@pytest.mark.parametrize(
    "written", ['{"eos_token_id": ', "[1]", '{"sequence_bias": 5}', '{"do_sample": true, "temperature": "hot"}']
)
def test_settings_that_nobody_asked_for_end_no_run(
    written: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "odd"
    shutil.copytree(shipped("models", "gpt-mini"), folder)
    (folder / "generation_config.json").write_text(written)
    completions(tmp_path, "draft=lookup", target=str(folder))
    said = capsys.readouterr().err
    assert "generation_config.json of" in said and "Traceback" not in said


def test_an_option_that_is_set_by_hand_to_its_default_wins_over_the_model(tmp_path: Path) -> None:
    folder = tmp_path / "asking"
    shutil.copytree(shipped("models", "gpt-mini"), folder)
    (folder / "generation_config.json").write_text(json.dumps(QWEN))
    words = [f"target={folder}", "draft=lookup", "task=lm-mini", "sampling.from_model=true"]
    said: list[str] = []
    by_hand = composed_config(RunConfig, [*words, "sampling.repetition_penalty=1", "sampling.top_k=null"], "run")
    found = with_settings_of_model(by_hand, said.append).sampling
    assert (found.repetition_penalty, found.top_k, found.top_p, found.temperature) == (1.0, None, 0.8, 0.7), said
    assert with_settings_of_model(composed_config(RunConfig, words, "run"), said.append).sampling.top_k == 20
    plain = composed_config(RunConfig, [*words[:3], "sampling.repetition_penalty=1", "sampling.top_k=null"], "run")
    assert "repetition_penalty" not in (unapplied(plain) or "") and "top_p=0.8" in (unapplied(plain) or "")
    assert identify(plain) == identify(composed_config(RunConfig, words[:3], "run"))
