"""Findings from how sharp p and q are, at temperatures above 0: q at another temperature, or cut off."""

import numpy as np
from numpy.typing import NDArray

from specbench.analysis.findings.finding import FEW, LEVEL, Observed
from specbench.records.draft_signs import Finding
from specbench.stats import over_rows

POWERS = ("flatter", "sharper")  # q at twice and at half its temperature (`analysis.acceptance.signs`)
GAIN = 0.08  # of alpha, from which the temperature is a finding
FAR_SHARPER = 1 / 3  # of the entropy of p: a q so sharp is a finding from `SOME` and `LACKING` on, as with a sharp p
SOME = 0.01  # of alpha
LACKING = 0.04  # of what alpha lacks to 1
CUT = 0.1  # of the entropy of p: less is a q that is cut to few tokens
LEAST_ENTROPY = 0.3  # nats of p, below which sharpness says little


def temperature(seen: Observed) -> Finding | None:
    """q would be accepted more often if it were sharper, or flatter."""
    sums, tokens = _sums(seen)
    if not tokens:
        return None
    alpha, entropy_p, entropy_q = (sums[name] / tokens for name in ("beta", "entropy_p", "entropy_q"))
    evidence = {"alpha": alpha, "entropy_p": entropy_p, "entropy_q": entropy_q}
    said = f"the entropy of q is {entropy_q:.2f} nats per token, of p {entropy_p:.2f}"
    if entropy_p >= LEAST_ENTROPY and entropy_q < CUT * entropy_p:
        return Finding(
            "cut",
            f"{said}: q is cut to its likeliest tokens, and p is not",
            "that the draft samples at the target's temperature, top_k, top_p and min_p, and is not greedy",
            evidence,
        )
    for name in POWERS:
        far = name == "flatter" and entropy_p >= LEAST_ENTROPY and entropy_q < FAR_SHARPER * entropy_p
        least = max(SOME, LACKING * (1 - alpha)) if far else GAIN
        if sums[name] / tokens - alpha < least or not _gains(seen, name, least):
            continue
        how = "half" if name == "sharper" else "twice"
        return Finding(
            "temperature",
            f"{said}; with q at {how} its temperature α would be {sums[name] / tokens:.2f}, not {alpha:.2f}: q is "
            f"{'flatter' if name == 'sharper' else 'sharper'} than p",
            "the temperature of the draft's logits, the scale of its head, and its last norm",
            evidence | {name: sums[name] / tokens},
        )
    return None


def _sums(seen: Observed) -> tuple[dict[str, float], int]:
    """The sums over all texts that have them, and over how many tokens."""
    known = [text for text in seen.texts if "entropy_q" in text.sums]
    if seen.temperature == 0 or len(known) < len(seen.texts):
        return {}, 0
    names = ("entropy_p", "entropy_q", *POWERS)
    sums = {name: sum(text.sums[name] for text in known) for name in names}
    return sums | {"beta": sum(sum(text.beta) for text in known)}, sum(len(text.beta) for text in known)


def _gains(seen: Observed, name: str, least: float) -> bool:
    """Whether alpha would be higher beyond chance; a few prompts show it if the gain is twice as large."""
    columns = [(text.sums[name], sum(text.beta), len(text.beta)) for text in seen.texts]
    if len(set(seen.groups)) < FEW:
        more, own, tokens = np.sum(columns, axis=0)
        return bool((more - own) / tokens > 2 * least)
    low = over_rows(columns, _gain, scale="difference", level=LEVEL, groups=list(seen.groups)).low
    return low is not None and low > (least / 2 if least >= GAIN else 0)


def _gain(totals: NDArray[np.float64]) -> NDArray[np.float64]:
    gain: NDArray[np.float64] = (totals[..., 0] - totals[..., 1]) / totals[..., 2]
    return gain
