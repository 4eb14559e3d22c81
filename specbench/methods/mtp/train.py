"""Training a depth of multi-token prediction on a frozen target.

DeepSeek-AI 2024 (2412.19437), section 2.2, trains depths with the model. Here the model is frozen, and the depth learns
towards its distribution. It is applied again to its own states for `eagle.steps` steps, as it drafts.
"""

from datasets import Dataset
from transformers import PreTrainedModel

from specbench.methods.eagle.train import EagleLearner
from specbench.methods.mtp.network import Mtp
from specbench.train.recipe_schema import Recipe


class MtpLearner(EagleLearner):
    """The depth, and the frozen target that it learns from. Only the depth's weights are its parameters."""

    trained: Mtp
    learns_features = False

    def new(self, target: PreTrainedModel, recipe: Recipe, train_set: Dataset) -> Mtp:
        return Mtp.start_from(target, "distill.target")
