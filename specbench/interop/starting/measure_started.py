"""The servers that were started, measured: `specbench server start=ENGINE`."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from specbench.analysis.findings.configs import POSITIONS
from specbench.config.drafts import DRAFT_KINDS
from specbench.config.server import BY_TEXT, WITHOUT, ServerConfig, check_server
from specbench.config.verbs import ChooseConfig
from specbench.engine.weights.published_checkpoint import read_config
from specbench.errors import UserError
from specbench.experiment.threads import usable_threads
from specbench.interop.server.asked import require_no_conversations
from specbench.interop.server.measure_server import Progress, measure
from specbench.interop.serving.settings import config_of, draft_weights, recommended, weights_of
from specbench.interop.serving.settings.wanted import Recommended, Weights
from specbench.interop.starting.startable import STARTABLE, settings_of
from specbench.interop.starting.two_servers import Asked, Servers, started
from specbench.recorded import to_json
from specbench.records.store import Result

LONGEST = 4096  # tokens of a prompt with its completion, if the target has more positions
RULE = "exact"  # Algorithm 1, as `--for` sets it in an engine
AUTO = "float32"  # weights as most checkpoints of small models are, and the least rounding


def measure_started(config: ServerConfig, progress: Progress) -> list[Result]:
    """Start the servers of `config`, measure them, and stop them.

    If memory holds one server at a time, each is measured by itself: two records, and no speedup.

    Raises:
        UserError: the engine is not installed, has no setting for the draft, or cannot be asked the prompts.
        MachineError: it ended, or was not ready in time; the message names its log.
    """
    check_server(config)
    if config.start in BY_TEXT:
        require_no_conversations(config)
    asked = asked_of(config)
    if (stored := STARTABLE[asked.engine].stores.get(asked.dtype)) is not None:
        progress.note(
            f"start={config.start}: dtype={asked.dtype}: its files hold weights in {stored}, which rounds otherwise"
        )
    with started(asked, progress.say) as servers, told_of_its_end(servers):
        told = replace(as_it_reads(config), start=None, dtype=asked.dtype, threads=asked.threads)
        drafting = servers.drafting()
        told = replace(told, engine=config.engine or drafting.engine, flags=config.flags or drafting.flags)
        if servers.side_by_side():
            told = replace(told, url=drafting.url, plain=servers.plain().url)
            return measure(told, progress, servers.stop, servers.device, servers.alone)
        progress.note(
            f"start={config.start}: memory holds one server at a time; each is measured alone, without a speedup"
        )
        found = measure(replace(told, url=drafting.url), progress, servers.stop, servers.device)
        plain = servers.plain()
        alone = replace(told, url=plain.url, flags=plain.flags, gamma=None, label=WITHOUT)
        return [*found, *measure(alone, progress, servers.stop, servers.device)]


def as_it_reads(config: ServerConfig) -> ServerConfig:
    """`config` as the engine that it starts can be asked: servers of `BY_TEXT` know no ids, and count whole answers."""
    return replace(config, send="text", stream=False) if config.start in BY_TEXT else config


@contextmanager
def told_of_its_end(servers: Servers) -> Iterator[None]:
    """A failure of a server that has ended is told as that: what its log says is the cause."""
    try:
        yield
    except Exception:
        servers.require_running()
        raise


@dataclass(frozen=True)
class Checked:
    """A candidate in the engine that it is recommended for: its estimated speedup, and the measured record."""

    candidate: str
    gamma: int
    batch: int
    estimated: float
    found: Result


def check_in_engine(
    engine: str, document: Mapping[str, Any], config: ChooseConfig, count: int, progress: Progress
) -> Iterator[Checked]:
    """Measure, one after another, the `count` best candidates of a ranking in the engine.

    Each has the settings that `--for` prints. `config` is one of the ranked configs, which differ only in draft and
    rule. Candidates that the engine cannot express or serve (a batch, where it answers one request at a time) are
    passed over, and so are rules other than Algorithm 1, with which no engine is started here. Raises UserError or
    MachineError as `measure_started` does.
    """
    document = to_json(document)
    checked = 0
    for row in document["rows"]:
        if checked == count:
            break
        try:
            if row.get("tree") or row.get("vocabulary") or row["accept"] != RULE:
                continue
            if engine in BY_TEXT and row.get("batch", 1) > 1:
                continue
            settings_of(engine, recommended(document, row))
        except UserError:
            continue
        options, batch = config_of(document, row)["draft"], row.get("batch", 1)
        asked = ServerConfig(
            start=engine, target=config.target, draft=DRAFT_KINDS[options["kind"]](**options), task=config.task,
            sampling=config.sampling, gamma=row["gamma"], batch=[batch], limit=config.limit or ServerConfig().limit,
            max_new_tokens=config.max_new_tokens,
            dtype=config.dtype, device=config.device, threads=config.threads, seed=config.seed, results=config.results,
        )  # fmt: skip
        progress.say(f"{row['candidate']} with γ={row['gamma']} in {engine}")
        found, *_ = measure_started(asked, progress)
        checked += 1
        yield Checked(row["candidate"], row["gamma"], batch, row["estimated"]["value"], found)


def asked_of(config: ServerConfig) -> Asked:
    """The servers that `config` asks for."""
    assert config.start is not None and config.gamma is not None
    target, draft = asdict(config.target), asdict(config.draft)
    sampling = config.sampling
    drafting = Recommended(
        weights_of(target), draft["kind"], draft_weights(draft), draft, config.gamma, RULE, sampling.temperature,
        sampling.top_k, sampling.top_p,
    )  # fmt: skip
    dtype = AUTO if config.dtype == "auto" else config.dtype
    threads = config.threads or usable_threads().number
    return Asked(
        config.start, drafting.target, drafting, dtype, longest(drafting.target), threads, max(config.batch),
        Path(config.results), device=gpu_of(config.device),
    )  # fmt: skip


def gpu_of(device: str) -> str:
    """The GPU that engines take if a run with `device` takes one; cpu if it takes none."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return device if device.startswith("cuda") else "cpu"


def longest(target: Weights) -> int:
    """Tokens that a server of `target` is to hold: its positions, `LONGEST` at most."""
    try:
        config = read_config(target.place, {"revision": target.revision} if target.revision else {}, "target")
    except UserError:  # the engine says what is wrong with it
        config = {}
    found = next((config[name] for name in POSITIONS if isinstance(config.get(name), int)), 0)
    return min(found, LONGEST) if found > 0 else LONGEST
