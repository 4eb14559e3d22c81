"""Records of sampled completions without a proof: made before records held one."""

from specbench.records.schema import Row

UNPROVED = "unproved: sampled before records held a proof; only two greedy completions were compared (docs/proof.md)"


def is_unproved(row: Row) -> bool:
    """Whether completions were sampled losslessly, and nothing shows that they are the target's own."""
    sampled = (row.get("temperature") or 0) > 0 and not row.get("lossy") and not row.get("simulated")
    tokens = row.get("proof_tokens")
    return sampled and (tokens is None or tokens != tokens)  # NaN where a frame has no value
