"""The types of the documents of `bench` and `bench beam`."""

from typing import Annotated, NotRequired, TypedDict

from specbench.records.schema import Document
from specbench.records.units import Seconds


class TimedDocument(Document):
    """The common fields of `bench` and `beam`."""

    command: str
    hardware: str
    dtype: str
    max_new_tokens: int


class BenchRecord(TypedDict):
    """One comparison: ours and theirs in `unit`."""

    part: str
    what: str
    ours: float | None
    theirs: float | None
    unit: str
    ratio: Annotated[float | None, "how many times faster ours is"]
    low: float | None
    high: float | None
    note: str
    disturbed_by: NotRequired[Annotated[str | None, "the signs, in words, that other work disturbed the times"]]
    more: dict[str, float]


class BenchDocument(TimedDocument):
    """The document of `specbench bench`."""

    engine: str
    rollout_fell_back: NotRequired[Annotated[str | None, "as in the summary of a run"]]
    prompts: int
    rows: list[BenchRecord]


class BeamRecord(TypedDict):
    """One u and gamma over all prompts; gamma 0 is the search without a draft."""

    u: int
    gamma: int
    passes_per_text: float
    steps_per_pass: float
    scored_per_pass: float
    passes_saved: float
    identical: int
    texts: int
    score_gap: float
    s_per_text: Seconds


class BeamDocument(TimedDocument):
    """The document of `specbench bench beam`."""

    target: str
    draft: str
    task: str
    width: int
    length_penalty: float
    early_stopping: bool | str
    texts: int
    disturbed_by: NotRequired[Annotated[str | None, "the signs, in words, that other work disturbed the times"]]
    transformers_s_per_text: Seconds
    rows: list[BeamRecord]
