"""The types of the documents of `bench` and `bench beam`."""

from dataclasses import dataclass, field
from typing import Annotated, NotRequired

from specbench.records.run_record import Document
from specbench.records.units import Seconds


class TimedDocument(Document):
    """The common fields of `bench` and `beam`."""

    command: str
    hardware: str
    dtype: str
    max_new_tokens: int


@dataclass
class BenchRow:
    """One line of the table: ours and theirs in `unit`, and how many times faster ours is, with its interval."""

    part: str
    what: str
    ours: float | None = None
    theirs: float | None = None
    unit: str = "ms"
    ratio: Annotated[float | None, "how many times faster ours is"] = None
    low: float | None = None
    high: float | None = None
    note: str = ""
    disturbed_by: Annotated[str | None, "the signs, in words, that other work disturbed the times"] = None
    more: dict[str, float] = field(default_factory=dict)


class BenchDocument(TimedDocument):
    """The document of `specbench bench`."""

    engine: str
    rollout_fell_back: NotRequired[Annotated[str | None, "as in the summary of a run"]]
    gpu_kernels: NotRequired[Annotated[str, "as in the summary of a run"]]
    prompts: int
    rows: list[BenchRow]


@dataclass
class BeamRow:
    """One u and gamma over all prompts; gamma 0 is the search without a draft. A pass is a run of the target."""

    u: int
    gamma: int
    passes_per_text: float
    steps_per_pass: float
    scored_per_pass: Annotated[float, "completions whose next token a pass scores: what the target's batch has to hold"]
    passes_saved: Annotated[float, "of those that the search without a draft needs"]
    identical: Annotated[int, "completions whose beams are all transformers', in order"]
    texts: int
    score_gap: Annotated[
        float, "the largest difference of a score from transformers', where the completion is the same"
    ]
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
    rows: list[BeamRow]
