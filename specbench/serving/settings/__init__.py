"""A recommendation in another engine's flags or JSON, with the version that the names were checked against, and a link.

To add an engine: a file with a `ServingEngine`, and its line in `ENGINES`.
"""

from specbench.serving.settings import llama_cpp, sglang, tensorrt_llm, transformers, vllm
from specbench.serving.settings.base import NotExpressible, Recommended, ServingEngine, Settings

ENGINES: dict[str, ServingEngine] = {
    engine.name: engine
    for engine in (transformers.ENGINE, vllm.ENGINE, sglang.ENGINE, llama_cpp.ENGINE, tensorrt_llm.ENGINE)
}

__all__ = ["ENGINES", "NotExpressible", "Recommended", "ServingEngine", "Settings"]
