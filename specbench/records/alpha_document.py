"""The types of the document of `specbench alpha`."""

from typing import Annotated, NotRequired, TypedDict

from specbench.records.draft_signs import Finding, Signs
from specbench.records.numbers import Vocabularies
from specbench.records.run_record import Config, Document, FrozenConfig
from specbench.records.units import Probability, Seconds
from specbench.stats import Interval


class AlphaRow(Vocabularies):
    """alpha of one draft along one sample of the target's completion, and what one rule makes of it."""

    target: str
    draft: str
    task: str
    own_weights: NotRequired[Annotated[str, "of 'target' and 'draft' those with a folder instead of what they name"]]
    temperature: float
    top_k: int | None
    top_p: float | None
    processing: NotRequired[Annotated[str, "what else is done to logits, as keys; absent: nothing"]]
    context: NotRequired[Annotated[int, "tokens of a prompt with the rows before it, at most; absent: unset"]]
    accept: Annotated[str, "the acceptance rule"]
    lossy: bool
    prompts: int
    distinct_prompts: NotRequired[Annotated[int, "different ones, where some are equal: those count in intervals"]]
    prompt_groups: NotRequired[Annotated[list[int], "where some are equal, a number for each, the same for equal ones"]]
    tokens: int
    alpha: Annotated[float, "probability: the mean of beta (Corollary 3.6)"]
    alpha_low: Probability | None
    alpha_high: Probability | None
    lenient: Annotated[dict[str, Interval], "by lenience: alpha(l) of appendix A.5"]
    dtype: str
    device: str
    hardware: str
    simulated: bool
    created: Annotated[str, "ISO 8601, UTC"]
    alpha_match: NotRequired[Annotated[float, "probability that a draw from p and one from q agree: accept=match"]]
    alpha_match_low: NotRequired[Probability | None]
    alpha_match_high: NotRequired[Probability | None]
    alpha_onehot: NotRequired[Annotated[float, "probability of the draft's likeliest token under p: accept=onehot"]]
    alpha_onehot_low: NotRequired[Probability | None]
    alpha_onehot_high: NotRequired[Probability | None]
    alpha_rule: NotRequired[Annotated[float, "probability that match, onehot or a lossy rule accepts a drafted token"]]
    alpha_rule_low: NotRequired[Probability | None]
    alpha_rule_high: NotRequired[Probability | None]
    total_variation: NotRequired[
        Annotated[float, "of the next token from the target's own under a lossy rule, mean over the tokens"]
    ]
    silent: NotRequired[Annotated[float, "share of the tokens at which the draft proposes nothing; alpha counts them"]]
    alpha_by_position: NotRequired[
        Annotated[
            list[Interval],
            "probability under Algorithm 1 that token 1, 2, ... of a proposal is accepted where those before it were; "
            "a proposal begins at each token where the draft has something to propose",
        ]
    ]
    acceptance_by_level: NotRequired[
        Annotated[
            dict[str, list[list[float]]],
            "of a draft that agrees less the further ahead it drafts, by tree.children: `acceptance_by_rank` at each "
            "level of a tree",
        ]
    ]
    acceptance_by_rank: NotRequired[
        Annotated[
            dict[str, list[Interval]],
            "of a draft that grows trees, by tree.children: the probability that child 1, 2, ... is the accepted one",
        ]
    ]
    acceptance_of_children: NotRequired[
        Annotated[
            dict[str, list[Interval]],
            "by rule, and by the bound on all rules: the probability that one of 1, 2, ... children is accepted",
        ]
    ]
    shared_mass: NotRequired[Annotated[float, "the target's probability of the shared tokens, mean over the tokens"]]
    alpha_matched: NotRequired[
        Annotated[
            float, "alpha without the mismatch: among shared tokens (tli); by string, however it is tokenised (slem)"
        ]
    ]
    alpha_matched_low: NotRequired[Probability | None]
    alpha_matched_high: NotRequired[Probability | None]


class RouterBound(TypedDict):
    """What a router of two drafts could reach at most: the better of them at each token, in hindsight."""

    drafts: list[str]
    alpha: Annotated[
        float, "the mean over tokens of the higher beta: no choice by the tokens so far has a higher alpha"
    ]
    gamma: NotRequired[int]
    tokens_per_pass: NotRequired[Annotated[float, "with gamma tokens of the better draft of each pass, in hindsight"]]
    alone: NotRequired[Annotated[list[float], "tokens per pass of each draft by itself, counted alike"]]


class ScoredAhead(TypedDict):
    """The agreement of a draft with a completion, some tokens ahead."""

    beta: list[float]


class ScoredText(ScoredAhead):
    """The agreement of a draft with a completion: the fields of `analysis.acceptance.agreement.Agreement`."""

    ahead: NotRequired[list[ScoredAhead]]
    signs: NotRequired[Signs]


class ScoredSetting(TypedDict):
    """One sample of the target's completion with the agreement of every draft along it."""

    temperature: float
    sample: Annotated[str, "the file with the text, in the folder samples"]
    sample_s: Seconds
    texts_reused: int
    score_s: Seconds
    wall_s: Seconds
    disturbed_by: NotRequired[Annotated[str | None, "the signs, in words, that other work disturbed the times"]]
    of_top_tokens: NotRequired[
        Annotated[
            dict[str, float],
            "by N: the share of the sample's tokens that are among the N likeliest of the training text, "
            "which alpha of a draft with draft.top_tokens=N cannot exceed",
        ]
    ]
    of_routers: NotRequired[Annotated[list[RouterBound], "for each pair of drafts, the highest alpha first"]]
    drafts: Annotated[dict[str, list[ScoredText]], "by draft, for each completion"]
    findings: NotRequired[Annotated[dict[str, list[Finding]], "by draft, the likeliest cause first"]]


class AlphaDocument(Document):
    """The document of `specbench alpha`."""

    alpha_id: str
    rows: list[AlphaRow]
    settings: list[ScoredSetting]
    configs: list[Config]


class KeptAlphaRow(TypedDict):
    """What tables read of an `AlphaRow`; a document that is older than another of its keys lacks it."""

    target: str
    draft: str
    task: str
    temperature: float
    top_k: NotRequired[int | None]
    top_p: NotRequired[float | None]
    processing: NotRequired[str]
    context: NotRequired[int]
    prompts: int
    tokens: int
    alpha: float
    alpha_low: Probability | None
    alpha_high: Probability | None
    lenient: NotRequired[dict[str, Interval]]
    dtype: NotRequired[str]
    hardware: str
    simulated: NotRequired[bool]
    created: str


class KeptAlphaDocument(TypedDict):
    """What each document of `specbench alpha` holds, and its kept copy: the table."""

    alpha_id: str
    rows: list[KeptAlphaRow]
    settings: NotRequired[list[ScoredSetting]]
    configs: NotRequired[list[FrozenConfig]]
