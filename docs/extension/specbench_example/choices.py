"""A task and a target, as the files of `conf/task/` and `conf/target/` write them."""

from pathlib import Path

GREETINGS = {
    "name": "greetings",
    "path": str(Path(__file__).with_name("greetings.jsonl")),
    "source_field": "en",
    "reference_field": "de",
    "prefix": "translate English to German: ",
    "metric": "bleu",
}
MY_T5 = {"name": "my-t5", "shipped": "t5-mini", "note": "the model that ships with specbench, under a name of our own"}
