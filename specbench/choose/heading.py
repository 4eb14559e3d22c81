"""The heading of a document that chooses for one target: what was measured, where, and by which engine."""

from specbench.config.model import name_of
from specbench.config.schema import task_label
from specbench.config.verbs import ChooseConfig
from specbench.environment import Environment, hardware
from specbench.records.choosing import Heading


def heading(config: ChooseConfig, surroundings: Environment, engine: str) -> Heading:
    """The heading of the documents of `recommend`, `recommend --load` and `recommend --validate`."""
    return {
        "target": name_of(config.target),
        "task": task_label(config.task.name, config.task.path),
        "temperature": config.sampling.temperature,
        "dtype": config.dtype,
        "hardware": hardware(surroundings, config.device),
        "engine": engine,
    }
