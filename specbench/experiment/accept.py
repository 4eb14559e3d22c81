"""From `accept=` of a config to a rule, its p, its label, and the whole `DecodingSpec`."""

from dataclasses import asdict

from specbench.algorithm.acceptance.block import accept_block
from specbench.algorithm.acceptance.chance import AcceptByChance
from specbench.algorithm.acceptance.exact import accept_exact
from specbench.algorithm.acceptance.lenient import lenient
from specbench.algorithm.acceptance.match import accept_match
from specbench.algorithm.acceptance.top_beta import TopBeta
from specbench.algorithm.acceptance.typical import Typical
from specbench.algorithm.acceptance.verify import Verification
from specbench.algorithm.decoding.spec import DecodingSpec
from specbench.config.extensions import extensions, loaded
from specbench.config.schema import AcceptConfig, RunConfig
from specbench.sampling import Sampling, before_argmax


def build_spec(config: RunConfig) -> DecodingSpec:
    """The `DecodingSpec` of a checked config; its gamma is chosen when the models are loaded (`experiment.gamma`)."""
    sampling = Sampling(**asdict(config.sampling))
    return DecodingSpec(sampling, config.max_new_tokens, build_verification(config, sampling))


def build_verification(config: RunConfig, sampling: Sampling) -> Verification:
    """The rule of a checked config. At T = 0 `typical` accepts the argmax alone, which is Algorithm 1."""
    accept = config.accept
    if config.simulate.alpha is not None:
        return Verification(AcceptByChance(config.simulate.alpha), sampling)
    if accept.rule in extensions("rules"):
        return Verification(loaded("rules", accept.rule), sampling)
    if accept.rule in ("block", "traversal"):  # which is block verification where the tree is a chain
        return Verification(accept_block, sampling)
    if accept.rule == "lenient":
        assert accept.lenience is not None
        return Verification(lenient(accept.lenience, sampling), before_argmax(sampling))
    if accept.rule == "typical" and sampling.temperature > 0:
        assert accept.epsilon is not None and accept.delta is not None
        return Verification(Typical(accept.epsilon, accept.delta), sampling)
    if accept.rule == "top-beta":
        assert accept.beta is not None and accept.tau is not None
        return Verification(TopBeta(accept.beta, accept.tau), before_argmax(sampling))
    if accept.rule == "match":
        return Verification(accept_match, sampling)
    return Verification(
        accept_exact, sampling, k_sequential=accept.rule == "k-seq", greedy_draft=accept.rule == "onehot"
    )


def canonicalise(accept: AcceptConfig) -> AcceptConfig:
    """The config with a rule at its limit replaced by Algorithm 1, so that both are one run.

    Lenience 1 is Algorithm 1, and at T = 0 so is top-beta with beta 1.
    """
    exact = accept.lenience == 1 if accept.rule == "lenient" else accept.rule == "top-beta" and accept.beta == 1
    return AcceptConfig() if exact else accept


def rule_label(accept: AcceptConfig) -> str:
    """A rule as tables call it: 'exact', 'lenient l=0.3'."""
    if accept.rule == "lenient":
        return f"lenient l={accept.lenience:g}"
    if accept.rule == "typical":
        return f"typical ε={accept.epsilon:g} δ={accept.delta:g}"
    if accept.rule == "top-beta":
        return f"top-beta β={accept.beta:g} τ={accept.tau:g}"
    return accept.rule


def slug(accept: AcceptConfig) -> str:
    """The same for a file's name; nothing for Algorithm 1."""
    own = (accept.lenience, accept.epsilon, accept.delta, accept.beta, accept.tau)
    numbers = [value for value in own if value is not None]
    return "" if accept.rule == "exact" else "-" + "-".join([accept.rule, *(f"{value:g}" for value in numbers)])
