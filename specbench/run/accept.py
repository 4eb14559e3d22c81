"""What `accept=` of a config comes to: a rule, how p is adjusted for it, and what it is called."""

from dataclasses import dataclass

from specbench.acceptance import (
    AcceptanceRule,
    TokenRule,
    Typical,
    accept_block,
    accept_by_chance,
    accept_exact,
    lenient,
)
from specbench.config import AcceptConfig, RunConfig
from specbench.sampling import Sampling, before_argmax


@dataclass(frozen=True)
class BuiltRule:
    """A rule ready for one sampling setting."""

    accept: AcceptanceRule
    compared: Sampling  # how p is adjusted for it
    lossy: TokenRule | None = None  # the rule itself, where what comes out is not the target's own distribution


def build_rule(config: RunConfig, sampling: Sampling) -> BuiltRule:
    """The rule of a config that was checked. At T = 0 `typical` keeps the argmax alone, which is Algorithm 1."""
    accept = config.accept
    if config.simulate.alpha is not None:
        return BuiltRule(accept_by_chance(config.simulate.alpha), sampling)
    if accept.rule == "block":
        return BuiltRule(accept_block, sampling)
    if accept.rule == "lenient":
        assert accept.lenience is not None
        rule = lenient(accept.lenience, sampling)
        return BuiltRule(rule, before_argmax(sampling), rule)
    if accept.rule == "typical" and sampling.temperature > 0:
        assert accept.epsilon is not None and accept.delta is not None
        typical = Typical(accept.epsilon, accept.delta)
        return BuiltRule(typical, sampling, typical)
    return BuiltRule(accept_exact, sampling)


def canonicalise(accept: AcceptConfig) -> AcceptConfig:
    """Lenience 1 is Algorithm 1, so that its run is the very one of accept=exact."""
    return AcceptConfig() if accept.rule == "lenient" and accept.lenience == 1 else accept


def rule_label(accept: AcceptConfig) -> str:
    """A rule as tables call it: 'exact', 'lenient l=0.3'."""
    if accept.rule == "lenient":
        return f"lenient l={accept.lenience:g}"
    if accept.rule == "typical":
        return f"typical ε={accept.epsilon:g} δ={accept.delta:g}"
    return accept.rule


def slug(accept: AcceptConfig) -> str:
    """The same for a file's name; nothing for Algorithm 1."""
    numbers = [value for value in (accept.lenience, accept.epsilon, accept.delta) if value is not None]
    return "" if accept.rule == "exact" else "-" + "-".join([accept.rule, *(f"{value:g}" for value in numbers)])
