"""The keys of `draft=router`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from specbench.config.draft import DraftConfig, SeveralConfig
from specbench.config.keys import between, key, one_of, require_allowed
from specbench.errors import UserError

MATCH, ACCEPTANCE = "match", "acceptance"


@dataclass
class RouterConfig(SeveralConfig):
    """Copies if enough tokens match, else drafts with a model."""

    kind: str = "router"
    builder: ClassVar[str | None] = "specbench.methods.router.draft:RouterBuilder"
    by: str = key(
        MATCH,
        "what chooses the draft of a pass: match (`first` if enough tokens match), or acceptance (the draft with more "
        "expected tokens, by the tokens accepted in this completion)",
        one_of((MATCH, ACCEPTANCE)),
    )
    least_match: int = key(2, "by=match: the fewest matched tokens with which `first` proposes", between(1, 64))
    price: float = key(
        0.0, "by=acceptance: c of `second`, as `specbench recommend` prints it; 0 compares only tokens", between(0, 10)
    )
    falls_with_position: ClassVar[bool] = True

    def parts(self) -> Mapping[str, DraftConfig | None]:
        return {"first": self.first, "second": self.second}

    def label(self) -> str:
        by = [] if self.by == MATCH else [self.by]
        return "-".join([self.kind, *by, *(part.label() for part in self.drafts.values())])

    def check(self, key: str) -> None:
        require_allowed(self, f"{key}.")
        made_of = "a router chooses between two drafts"
        if self.third is not None:
            raise UserError(f"{key}.third={self.third.label()}: {made_of}; leave the third out")
        self.check_drafts(key, made_of, "give its drafts here", lambda part: part.objection_to_part(), "a router")
        first = self.drafts["first"]
        if self.by == MATCH and not first.matches:
            raise UserError(
                f"{key}.first={first.label()}: by={MATCH} requires a draft that copies, such as lookup, suffix or "
                f"retrieval; or give {key}.by={ACCEPTANCE}"
            )
