"""Units of what is recorded, and shapes that several records share."""

from typing import Annotated

Seconds = Annotated[float, "seconds"]
Probability = Annotated[float, "probability"]
Times = Annotated[float, "ratio of seconds per token, the target alone over speculative decoding"]
Steps = Annotated[float, "mean steps of the target alone"]
AcceptanceByRank = list[float] | list[list[float]]  # of a node's children; or a list for each level of a tree
