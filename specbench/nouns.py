"""A count with its noun, in the same form in every message: '1 prompt', '2 prompts', '10,000 prompts'."""

IRREGULAR = {"is": "are", "was": "were", "has": "have", "process": "processes", "pass": "passes"}


def with_noun(count: int, noun: str) -> str:
    """`count` with `noun`, which is given in the singular; its last word becomes the plural.

    A verb may follow after a comma: `with_noun(2, 'record, is')` is '2 records are'.
    """
    noun, _, verb = noun.partition(", ")
    if count != 1:
        *before, last = noun.split(" ")
        noun = " ".join([*before, IRREGULAR.get(last, f"{last}s")])
        verb = IRREGULAR.get(verb, verb)
    return f"{count:,} {noun}{verb and f' {verb}'}"
