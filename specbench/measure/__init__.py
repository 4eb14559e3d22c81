"""Numbers from decoded prompts: alpha, c, verification cost, walltime, intervals, losslessness, where time goes.

Input: raw measurements. All means are computed here.
"""
