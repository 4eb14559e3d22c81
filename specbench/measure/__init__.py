"""Numbers from decoded prompts: alpha, c, verify cost, walltime, intervals, whether the texts agree, and why a run is
as fast as it is.

Raw measurements come in; means are made here and nowhere else.
"""
