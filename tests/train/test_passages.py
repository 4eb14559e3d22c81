"""Passages to summarise, made of running text."""

import gzip
import json
from pathlib import Path

import pytest

from specbench.errors import UserError
from specbench.train.passages import lead, lead_3, made_passages, sentences, without_sentences
from specbench.train.recipe import train
from specbench.train.recipe_schema import DataPlan, PassagePlan, Recipe
from specbench.train.sets import pairs


def text_file(path: Path, texts: list[str]) -> str:
    with gzip.open(path, "wt", encoding="utf-8") as out:
        out.writelines(json.dumps({"text": text}) + "\n" for text in texts)
    return str(path)


NUMBERS = [f"Sentence number {n} has seven words here." for n in range(40)]


def test_sentences_end_after_their_marks() -> None:
    assert sentences("One. Two!  Three?\nFour 3.5 five") == ["One.", "Two!", "Three?", "Four 3.5 five"]
    assert lead_3("A b. C d. E f. G h.") == "A b. C d. E f."


def test_a_lead_is_never_empty_and_ends_before_it_is_too_long() -> None:
    assert lead(["a b c", "d e", "f"], words=5) == ["a b c", "d e"]
    assert lead(["a b c d e f", "g"], words=5) == ["a b c d e f"]


def test_passages_begin_with_their_summary_and_go_on(tmp_path: Path) -> None:
    plan = PassagePlan(path=[text_file(tmp_path / "a.jsonl.gz", NUMBERS)], words=[50, 80], rows=100)
    rows = made_passages(plan, "en", "de", seed=1)
    assert rows
    for row in rows:
        assert row["prefix"] == "summarize: "
        assert row["en"].startswith(row["de"]) and len(row["de"].split()) <= 45 < len(row["en"].split())
        assert 50 <= len(row["en"].split()) <= 80
    assert rows == made_passages(plan, "en", "de", seed=1)


def test_scrambled_passages_keep_their_sentences_and_none_of_their_order(tmp_path: Path) -> None:
    texts = [f"Alpha{n} beta{n} gamma{n} delta{n} epsilon{n} zeta{n} eta{n}." for n in range(60)]
    path = text_file(tmp_path / "a.jsonl.gz", texts)
    rows = made_passages(PassagePlan(path=[path], words=[50, 60], rows=100, scrambled=1.0), "en", "de", seed=1)
    known = {word.rstrip(".") for text in texts for word in text.split()}
    for row in rows:
        assert row["en"].startswith(row["de"]) and 50 <= len(row["en"].split()) <= 60
        assert all(len(sentence.split()) == 7 for sentence in sentences(row["en"]))
        assert not set(sentences(row["en"])) & set(texts)
        assert {word.rstrip(".") for word in row["en"].split()} <= known
    some = made_passages(PassagePlan(path=[path], words=[50, 60], rows=100, scrambled=0.5), "en", "de", seed=1)
    whole = sum(set(sentences(row["en"])) <= set(texts) for row in some)
    assert 0 < whole < len(some)


def test_a_held_out_sentence_is_in_no_passage(tmp_path: Path) -> None:
    held = text_file(tmp_path / "held.jsonl.gz", [NUMBERS[20]])
    path = text_file(tmp_path / "a.jsonl.gz", NUMBERS)
    rows = made_passages(PassagePlan(path=[path], words=[30, 60], exclude=[held]), "en", "de", seed=1)
    assert rows and all(NUMBERS[20] not in row["en"] for row in rows)
    assert all("number 19 has seven words here. Sentence number 21" not in row["en"] for row in rows)


def test_running_text_is_cut_at_held_out_sentences(tmp_path: Path) -> None:
    plan = DataPlan(exclude=[text_file(tmp_path / "held.jsonl.gz", ["B is out. E too."])])
    rows = [{"text": "A stays. B is out. C stays. D stays."}, {"text": "E too."}]
    assert without_sentences(rows, plan, ("text",)) == [{"text": "A stays."}, {"text": "C stays. D stays."}]
    assert without_sentences(rows, DataPlan(), ("text",)) == rows


def test_a_row_may_have_its_own_prefix() -> None:
    read: list[str] = []

    def tokenizer(texts: list[str], **told: object) -> dict[str, list[list[int]]]:
        read.extend(texts)
        return {"input_ids": [[1] for _ in texts]}

    rows = [{"en": "a", "de": "b"}, {"prefix": "summarize: ", "en": "c", "de": "d"}]
    pairs(rows, DataPlan(prefix="translate: "), tokenizer)  # type: ignore[arg-type]
    assert read == ["translate: a", "summarize: c", "b", "d"]


def test_texts_too_short_for_a_passage_are_refused_by_name(tmp_path: Path) -> None:
    path = text_file(tmp_path / "short.jsonl.gz", ["Too short."])
    with pytest.raises(UserError, match=r"data\.passages\.path: no passage of 30 words or more in .*short"):
        made_passages(PassagePlan(path=[path]), "en", "de", seed=1)


@pytest.mark.full
def test_a_recipe_with_passages_scores_both_tasks(t5_recipe: Recipe, pairs: str, tmp_path: Path) -> None:
    articles = tmp_path / "articles.jsonl.gz"
    with gzip.open(articles, "wt", encoding="utf-8") as out:
        out.writelines(json.dumps({"article": " ".join(NUMBERS[:9]), "highlights": NUMBERS[0]}) + "\n" for _ in "abc")
    plan = PassagePlan(path=[text_file(tmp_path / "a.jsonl.gz", NUMBERS)], words=[50, 80], test={"toy": str(articles)})
    t5_recipe.data.passages, t5_recipe.data.test, t5_recipe.data.test_rows = plan, {"toy": pairs}, 3
    card = (train(t5_recipe) / "README.md").read_text()
    assert (
        "| BLEU, toy (3 rows) " in card and "| ROUGE-L, toy (3 rows) " in card and "| ROUGE-L of lead-3, toy |" in card
    )
    assert "passages of a.jsonl.gz" in card
