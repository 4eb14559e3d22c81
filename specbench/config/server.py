"""The keys of `specbench server`: two servers of one target, the prompts, and how they are asked."""

import math
from dataclasses import dataclass
from typing import ClassVar
from urllib.parse import urlsplit

from specbench.config.draft import DraftConfig
from specbench.config.draft_keys import DraftKeys
from specbench.config.keys import MAX_BATCH, MAX_GAMMA, Allowed, at_least, between, fresh, key, list_between, one_of
from specbench.config.keys import require_allowed as require_each
from specbench.config.model import ModelConfig, check_model
from specbench.config.schema import DEVICE, DEVICES, THREADS, SamplingConfig, TaskConfig
from specbench.errors import UserError

UNKNOWN = "random"  # the kind of draft of which nothing is known, as in certify
SENT = ("auto", "ids", "text", "chat")
WITHOUT = "none"  # the label of a server that has no draft
STARTED = ("vllm", "llama.cpp", "openvino", "transformers", "llama-cpp-python")  # engines that are started here
BY_TEXT = ("transformers", "llama-cpp-python")  # of them: read prompts as text, and count tokens in whole answers only
CARRIED = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")


@dataclass
class ServerConfig:
    """A server with a draft, the same target without one, and what they are asked."""

    conf_file: ClassVar[str] = "server"

    start: str | None = key(
        None,
        "start target= and draft= at gamma= in this engine here, with and without the draft, instead of url= and "
        "plain=: vllm | llama.cpp | openvino | transformers | llama-cpp-python",
        one_of(STARTED),
    )
    url: str = key("", "the server with a draft, up to and with /v1")
    plain: str | None = key(None, "the same target without a draft; unset: no speedup, and no comparison at T=0")
    model: str | None = key(None, "its name at the server; unset: the first that the server lists")
    target: ModelConfig = fresh(
        ModelConfig, "the weights that both claim to run: prompts as token ids, and the verdict; unset: unknown"
    )
    draft: DraftConfig = fresh(
        DraftKeys, "what the server drafts with, if it is known: its name in tables, and faults show earlier at T>0"
    )
    task: TaskConfig = fresh(TaskConfig, "the prompts")
    sampling: SamplingConfig = fresh(SamplingConfig, "sent with each request")
    gamma: int | None = key(
        None, "tokens that it drafts a pass, as it was started; unset: what it counts", between(1, MAX_GAMMA)
    )
    batch: list[int] = fresh(
        lambda: [1], "requests at once: 1,4,16 measures each; 1 alternates the servers prompt by prompt",
        list_between(1, MAX_BATCH),
    )  # fmt: skip
    rates: list[float] = fresh(
        list, "requests per second that arrive whether or not earlier ones are done (Poisson), each measured",
        Allowed(lambda rates: all(0 < one < math.inf for one in rates), "a list of numbers above 0"),
    )  # fmt: skip
    max_new_tokens: int = key(128, "maximum number of new tokens per prompt", at_least(1))
    limit: int | None = key(20, "prompts; null: all of the task", at_least(1, ", or null for all"))
    warmup: int = key(2, "requests to each server before timing starts", at_least(0))
    send: str = key(
        "auto",
        "ids | text | chat: how prompts are sent; auto: ids where target= is named, else chat for conversations and "
        "text for others",
        one_of(SENT),
    )
    stream: bool = key(True, "read tokens as they come, for the time to the first; false: whole answers")
    label: str | None = key(None, "the draft's name in tables, as ngram; unset: the name of draft=, or server")
    engine: str | None = key(None, "engine and version for the record; unset: as the server says")
    flags: str | None = key(
        None, "what it was started with, for the record; the address is then no part of the run's id"
    )
    timeout: float = key(
        600, "seconds until a request without a whole answer is given up",
        Allowed(lambda s: 0 < s <= 1e6, "above 0 and at most 1e6"),
    )  # fmt: skip
    token_env: str | None = key(None, "the environment variable with the key that the server asks for")
    within: float = key(
        0.1, "size of the fault that a positive verdict excludes, as in certify",
        Allowed(lambda share: 0 < share < 1, "between 0 and 1"),
    )  # fmt: skip
    dtype: str = key("auto", "of the target's weights in the verdict: bfloat16 | float32 | float16 | auto")
    device: str = key("auto", DEVICE, DEVICES)
    threads: int | None = key(None, THREADS, at_least(1, ", or null"))
    seed: int = key(0, "sent with each request, plus its number; and of the arrivals", at_least(0))
    results: str = key("results", "the folder of the records")
    force: bool = key(False, "measure even if a record of this config exists")

    @property
    def draft_name(self) -> str:
        """The draft's name in tables."""
        return self.label or ("server" if self.draft.kind == UNKNOWN else self.draft.label())

    @property
    def names_target(self) -> bool:
        """Whether the target's weights are at hand."""
        return any((self.target.path, self.target.hub, self.target.shipped))


def check_server(config: ServerConfig) -> None:
    """Raise UserError at the first value out of range, before anything is asked or loaded."""
    require_each(config)
    if config.start is not None:
        check_start(config)
    elif not config.url:
        raise UserError("server: name the address: specbench server URL plain=URL, or start=ENGINE")
    if config.names_target:
        check_model("target", config.target)
    elif config.send == "ids":
        raise UserError("send=ids: needs the target's tokenizer; name it with target=")
    for name in config.sampling.set_keys():
        if name not in CARRIED:
            raise UserError(f"sampling.{name}: specbench server sends {', '.join(CARRIED)}; leave it out")
    if config.plain is not None and address(config.plain) == address(config.url):
        raise UserError(f"plain={config.plain}: is the address of the server with a draft; give another server's")


def check_start(config: ServerConfig) -> None:
    """Raise UserError if what is to be started is not named."""
    key = f"start={config.start}"
    if config.url or config.plain:
        raise UserError(f"{key}: starts both servers; leave url= and plain= out")
    if not config.names_target:
        raise UserError(f"{key}: name the weights that it serves, target=NAME or target.path=FOLDER")
    of_runs = {name: getattr(config.target, name) for name in ("gguf", "base", "device_map", "tp_plan", "architecture")}
    of_runs |= {"weights": config.target.weights} if config.target.weights == "random" else {}
    for name, value in of_runs.items():
        if value:
            raise UserError(f"target.{name}={value}: {key} serves a whole checkpoint as it is; leave it out")
    if config.draft.kind == UNKNOWN:
        raise UserError(f"{key}: name its draft, draft=lookup or draft.kind=model draft.path=FOLDER")
    if config.gamma is None:
        raise UserError(f"{key}: gamma is not set; give gamma=N, the number of tokens that it drafts in each pass")
    config.draft.check("draft")
    if config.start in BY_TEXT:
        _check_by_text(config, key)


def _check_by_text(config: ServerConfig, key: str) -> None:
    if config.send not in ("auto", "text"):
        raise UserError(f"send={config.send}: {key} is asked by text; leave it out")
    if config.task.chat_template:
        raise UserError(f"task.chat_template=true: {key} is asked by text, without a chat template; leave it out")
    if config.batch != [1] or config.rates:
        given = f"rates={config.rates}" if config.rates else f"batch={config.batch}"
        raise UserError(f"{given}: {key} answers one request at a time; leave it out")


def address(url: str) -> str:
    """An address with `/v1` at its end and no slash after it."""
    parts = urlsplit(url)
    whole = url.rstrip("/")
    return f"{whole}/v1" if not parts.path.strip("/") else whole
