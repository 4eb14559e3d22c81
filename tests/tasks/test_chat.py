"""Prompts of one's own: rows without references, conversations, chat templates, and which end of a long one is cut."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specbench.cli import main
from specbench.config.model import ModelConfig
from specbench.config.schema import TaskConfig
from specbench.errors import UserError
from specbench.tasks import Task
from specbench.text.tokenizer import load_tokenizer
from specbench.text.vocabulary import Vocabulary
from tests.support.calls import newest
from tests.support.networks import tokenizer

Folders = dict[str, Path]
CHAT = [
    {"role": "user", "content": "the old dog"},
    {"role": "assistant", "content": "sees a tree"},
    {"role": "user", "content": "the small cat"},
]


@pytest.fixture
def vocabulary(chat_model: Path) -> Vocabulary:
    return load_tokenizer(ModelConfig(path=str(chat_model)), "target")


def rows(folder: Path, *made: Any, name: str = "own.jsonl") -> Path:
    file = folder / name
    file.write_text("".join(f"{json.dumps(row) if isinstance(row, dict) else row}\n" for row in made))
    return file


def prompts(file: Path, **keys: Any) -> Task:
    return Task(TaskConfig(**({"name": "prompts", "source_field": "prompt", "path": str(file)} | keys)))


def test_rows_without_references(tmp_path: Path) -> None:
    for made in (
        rows(tmp_path, {"prompt": "the old dog"}, {"prompt": "a cat"}),
        rows(tmp_path, "the old dog", "a cat", name="own.txt"),
        rows(tmp_path, "prompt", "the old dog", "a cat", name="own.csv"),
    ):
        examples = prompts(made).examples(None)
        assert [(e.prompt, e.reference) for e in examples] == [("the old dog", None), ("a cat", None)]
        assert not any(e.messages for e in examples)
    with pytest.raises(UserError, match=r"line 1: no field 'prompt' \(it has question\); .*task\.source_field="):
        prompts(rows(tmp_path, {"question": "the old dog"})).examples(None)
    with pytest.raises(UserError, match=r"line 1: no reference for task\.metric=bleu; name its field"):
        prompts(rows(tmp_path, {"prompt": "the old dog"}), metric="bleu").examples(None)


def test_training_text_without_references_is_plain(tmp_path: Path) -> None:
    own = rows(tmp_path, {"prompt": "the old dog"})
    lines = rows(tmp_path, "a cat runs", name="train.txt")
    assert list(prompts(own, train_path=str(lines)).training_text()) == ["a cat runs"]
    with pytest.raises(UserError, match=r"own\.jsonl, line 1: no field 'text' .*training text is the field 'text'"):
        list(prompts(own, train_path=str(own)).training_text())


def test_conversations(tmp_path: Path) -> None:
    answered = [*CHAT, {"role": "assistant", "content": "runs"}]
    own = rows(tmp_path, {"messages": CHAT}, {"messages": answered}, {"prompt": CHAT[:1]})
    first, second, third = prompts(own).examples(None)
    assert first.messages == second.messages == CHAT
    assert (first.reference, second.reference) == (None, "runs")
    assert first.prompt.splitlines()[0] == "user: the old dog"
    assert third.messages == CHAT[:1]


@pytest.mark.parametrize(
    ("row", "keys", "said"),
    [
        ({"messages": []}, {}, "line 1: the conversation is empty"),
        ({"messages": CHAT[1:2]}, {}, "line 1: the conversation holds nothing to answer"),
        ({"messages": [CHAT[0], {"role": "user"}]}, {}, 'line 1: message 2 is not {"role": "…", "content": "…"}'),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, {}, "line 1: message 1 is not"),
        ({"messages": CHAT}, {"chat_template": False}, "line 1: messages need a chat template; set task.chat_template"),
        ({"messages": "the old dog"}, {}, "line 1: no field 'prompt'"),
    ],
)
def test_conversations_that_cannot_be_prompts(
    row: dict[str, Any], keys: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as error:
        prompts(rows(tmp_path, row), **keys).examples(None)
    assert said in str(error.value)
    with pytest.raises(UserError, match=r"task\.rows_per_prompt=2: must be 1 for conversations"):
        prompts(rows(tmp_path, {"messages": CHAT}, {"messages": CHAT}), rows_per_prompt=2).examples(None)


def test_a_prompt_in_its_template(vocabulary: Vocabulary) -> None:
    prompt = vocabulary.chat(CHAT, 100)
    assert not prompt.truncated and not prompt.source
    written = (
        "<|user|> the old dog <|end|> <|assistant|> sees a tree <|end|> <|user|> the small cat <|end|> <|assistant|>"
    )
    assert " ".join(vocabulary.tokenizer.convert_ids_to_tokens(prompt.prefix)) == written
    cut = vocabulary.chat(CHAT, 6)
    assert cut.truncated and cut.prefix == prompt.prefix[-6:], "the end of the template stays"


def test_a_long_prompt_keeps_the_end_that_is_continued(folders: Folders) -> None:
    vocabulary = load_tokenizer(ModelConfig(path=str(folders["llama"])), "target")
    text = "the old dog sees a small cat"
    whole = vocabulary.prompt(text, "", 100).prefix
    assert vocabulary.prompt(text, "", 3).prefix == whole[-3:]
    # Where a suffix says what to do with the text, the text's beginning is what is read.
    end = vocabulary.prompt("x", "German :", 100).prefix[-2:]
    assert vocabulary.prompt(text, "German :", 5).prefix == (*whole[:3], *end)
    encoder = load_tokenizer(ModelConfig(path=str(folders["t5"])), "target")
    assert encoder.prompt(text, "", 4).source == (*encoder.prompt(text, "", 100).source[:3], 1)


def test_the_token_that_begins_every_text_is_not_cut() -> None:
    from tokenizers import processors

    made = tokenizer(with_end=False)
    made.add_special_tokens({"bos_token": "<s>"})
    made.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", made.bos_token_id)]
    )
    vocabulary = Vocabulary(made, made.bos_token_id, is_encoder_decoder=False)
    whole = vocabulary.prompt("the old dog sees a cat", "", 100).prefix
    assert whole[0] == made.bos_token_id and len(whole) == 7
    assert vocabulary.prompt("the old dog sees a cat", "", 3).prefix == (whole[0], *whole[-2:])


@pytest.fixture
def run(chat_model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, Any]]:
    def call(*more: str, verb: str = "run") -> tuple[int, str, Any]:
        argv = [verb, f"target.path={chat_model}", "draft=lookup", f"results={tmp_path / 'results'}", "dtype=float32",
                "device=cpu", "engine=eager", "max_new_tokens=6"]  # fmt: skip
        code = main([*argv, *(("warmup=0", "gamma=2") if verb == "run" else ()), *more])
        return code, capfd.readouterr().err, newest(tmp_path / "results")

    return call


def test_a_run_in_the_chat_template(run: Callable[..., tuple[int, str, Any]], tmp_path: Path) -> None:
    own = f"task.path={rows(tmp_path, {'prompt': 'the old dog'}, {'messages': CHAT})}"
    code, err, record = run("task=prompts", own, "task.chat_template=true")
    assert code == 0, err
    assert ": task prompts, 2 prompts, in the chat template of the target\n" in err and "is plain text" not in err
    assert [p["reference"] for p in record["prompts"]] == [None, None]
    assert record["prompts"][0]["prompt"] == "the old dog" and record["prompts"][0]["prompt_tokens"] == 6
    assert record["summary"]["quality_metric"] is None and record["summary"]["lossless"]
    assert main(["show", record["run_id"], "--prompt", "2", f"--results={tmp_path / 'results'}"]) == 0


@pytest.mark.full
def test_plain_prompts_for_a_chat_model_warn_once(run: Callable[..., tuple[int, str, Any]], tmp_path: Path) -> None:
    said = (
        "target=chat has a chat template, and these prompts are plain text: task.chat_template=true puts them into it"
    )
    own = ("task=prompts", f"task.path={rows(tmp_path, {'prompt': 'the old dog'}, {'prompt': 'a cat'})}")
    code, err, _ = run(*own)
    assert code == 0 and err.count(said) == 1
    code, err, _ = run(*own, "draft=[lookup,random]", "sampling.temperature=[0,1]", "tokens=8", verb="alpha")
    assert code == 0 and err.count(said) == 1, err
    code, err, _ = run(*own, "task.chat_template=false")
    assert code == 0 and said not in err


@pytest.mark.full
def test_a_template_is_refused_where_there_is_none(
    run: Callable[..., tuple[int, str, Any]], folders: Folders, tmp_path: Path
) -> None:
    plain = f"task.path={rows(tmp_path, {'prompt': 'the old dog'})}"
    chat = f"task.path={rows(tmp_path, {'messages': CHAT}, name='chat.jsonl')}"
    without = f"target.path={folders['llama']}"
    code, err, _ = run("task=prompts", plain, without, "task.chat_template=true")
    assert code == 2 and "target=llama: its tokenizer has no chat template, which task.chat_template=true needs" in err
    code, err, _ = run("task=prompts", chat, without)
    assert code == 2 and "which the messages of task=prompts, row 1 need" in err
    code, err, _ = run("task=lm-mini", "task.chat_template=true")
    assert code == 2 and "task.chat_template=true: task=lm-mini gives the beginning of a text" in err
    odd = rows(tmp_path, {"messages": [{"role": "king", "content": "the old dog"}]}, name="odd.jsonl")
    code, err, _ = run("task=prompts", f"task.path={odd}")
    assert code == 2 and "row 1: the chat template of chat rejects it: no role king" in err
    code, err, _ = run("task=prompts")
    assert code == 2 and "task=prompts: set task.path=FILE" in err


@pytest.mark.full
def test_own_rows_of_which_few_words_are_given(run: Callable[..., tuple[int, str, Any]], tmp_path: Path) -> None:
    own = f"task.path={rows(tmp_path, 'the old dog sees a small cat', name='own.txt')}"
    said = "own.txt only that many words are the prompt; task=prompts gives whole rows"
    code, err, record = run("task=lm1b", own)
    assert code == 0 and f"task.prompt_words=4: of each row of {tmp_path}" in err and said in err
    assert record["prompts"][0]["prompt"] == "the old dog sees"
    code, err, _ = run("task=lm1b", own, "sampling.temperature=1")
    assert code == 0 and "task.prompt_words=0: " in err
    code, err, _ = run("task=lm1b", own, "task.prompt_words=9")
    assert code == 0 and said not in err
    code, err, record = run("task=prompts", own)
    assert code == 0 and said not in err and record["prompts"][0]["prompt"] == "the old dog sees a small cat"


def test_which_end_was_cut_is_said(run: Callable[..., tuple[int, str, Any]], tmp_path: Path) -> None:
    own = f"task.path={rows(tmp_path, {'prompt': 'the old dog sees a small cat'})}"
    code, err, record = run("task=prompts", own, "task.max_source_tokens=4", "task.chat_template=true")
    assert code == 0 and record["summary"]["prompts_cut"] == 1
    assert "1 of 1 prompts were cut to 4 tokens (task.max_source_tokens), which are their end" in err


def test_a_real_chat_model(shared: Path, tmp_path: Path) -> None:
    folder = shared / "models" / "smollm2"
    if not folder.is_dir():
        pytest.skip("needs shared/models/smollm2 (SmolLM2-135M-Instruct)")
    vocabulary = load_tokenizer(ModelConfig(path=str(folder)), "target")
    prompt = vocabulary.chat(CHAT, 512)
    text = vocabulary.tokenizer.decode(prompt.prefix)
    assert text.endswith("<|im_start|>user\nthe small cat<|im_end|>\n<|im_start|>assistant\n")
    ids = vocabulary.ids("## The small dogs run.")
    assert "".join(vocabulary.pieces(ids)[token] for token in ids) == "## The small dogs run.<|im_end|>"
