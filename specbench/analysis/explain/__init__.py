"""Factors of a run's speedup, from the ideal gamma + 1 to the measured speedup.

Ideally every draft token is accepted and a pass costs one target step. The losses, in order:

- rejections: Eq. 1 from alpha
- rule: the alpha of the rule instead, if it has its own: match, onehot, or a lossy rule
- shape: the acceptance at each position instead of one alpha, where a draft agrees less the further ahead it
  drafts; of a tree, the acceptance at each of its levels
- ends: completions end inside passes (`analysis.acceptance.by_position`)
- positions: easy and hard stretches, by a walk along the completions with the beta of each token (of Algorithm 1 alone:
  no record holds what another rule, or a tree, would do at each token)
- drafting, verification, overhead: the cost of a pass, in mean steps of the target alone
- rest: unexplained; the product up to here is exactly the measured speedup
- start: encoder and prefill of both models; with it the product is the speedup end to end

A walltime is a sum, so costs are means over passes. A run's c and v are medians, of full passes, and differ a little.
Pure arithmetic over what a record holds; no torch.
"""
