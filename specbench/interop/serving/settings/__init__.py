"""A recommendation in another engine's flags or JSON, with the version that the names were checked against, and a link.

To add an engine: a file with a `ServingEngine`, and its line in `ENGINES`.
"""

from specbench.interop.serving.settings import llama_cpp, sglang, tensorrt_llm, transformers, vllm
from specbench.interop.serving.settings.base import ServingEngine

ENGINES: dict[str, ServingEngine] = {
    engine.name: engine
    for engine in (transformers.ENGINE, vllm.ENGINE, sglang.ENGINE, llama_cpp.ENGINE, tensorrt_llm.ENGINE)
}
