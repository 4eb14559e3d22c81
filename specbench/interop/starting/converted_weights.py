"""Weights in the forms that llama.cpp and OpenVINO read, converted once and cached."""

import os
import shutil
from pathlib import Path

from specbench.bench.gguf import convert
from specbench.errors import MachineError, UserError, first_line
from specbench.files import digest, json_digest, own_cache
from specbench.interop.serving.settings.wanted import Weights
from specbench.interop.starting.process import Process, Say

CONVERTED_S = 1800.0  # the most seconds of a conversion


def gguf_of(weights: Weights, dtype: str, say: Say) -> str:
    """The path of these weights as a GGUF file, made if it is not there.

    Raises UserError for weights that cannot be converted.
    """
    if weights.place.endswith(".gguf"):
        return weights.place
    folder = folder_of(weights)
    file = own_cache() / "engines" / f"{_content(folder)}-{dtype}.gguf"
    if not file.exists():
        say(f"{weights.place}: converting to GGUF in {dtype} ({file})")
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(f".{os.getpid()}.part")
        try:
            convert(str(folder), str(part), dtype, with_vocabulary=True)
            part.replace(file)
        except (ValueError, KeyError, ImportError, OSError) as error:
            raise UserError(f"{weights.place}: cannot be converted to GGUF: {first_line(error)}") from error
        finally:
            part.unlink(missing_ok=True)
    return str(file)


def ir_of(weights: Weights, precision: str, program: str, say: Say) -> str:
    """The folder of these weights in OpenVINO's form, made if it is not there.

    Raises UserError if `optimum-cli` is not found or fails, MachineError if it takes too long.
    """
    folder = folder_of(weights)
    if (folder / "openvino_model.xml").exists():
        return str(folder)
    made = own_cache() / "engines" / f"{_content(folder)}-{precision}.openvino"
    if (made / "openvino_tokenizer.xml").exists():
        return str(made)
    beside = Path(program).parent / "optimum-cli"
    tool = os.environ.get("SPECBENCH_OPTIMUM") or (str(beside) if beside.exists() else shutil.which("optimum-cli"))
    if tool is None:
        raise UserError(
            f"start=openvino: {weights.place} is to be converted, and optimum-cli is not found; pip install "
            "'optimum-intel[openvino]', or name it in SPECBENCH_OPTIMUM"
        )
    say(f"{weights.place}: converting to OpenVINO's form in {precision} ({made})")
    part = made.with_name(f"{made.name}.{os.getpid()}.part")
    part.mkdir(parents=True, exist_ok=True)
    command = [
        tool, "export", "openvino", "--model", str(folder), "--task", "text-generation-with-past",
        "--weight-format", precision, str(part),
    ]  # fmt: skip
    converting = Process("optimum-cli", command, log := made.with_suffix(f".{os.getpid()}.log"))
    try:
        code = converting.wait_until_done(CONVERTED_S)
        if code is None:
            raise MachineError(
                f"start=openvino: {tool} has not converted {weights.place} in {CONVERTED_S:g} s "
                f"('{converting.last_line()}'); convert it yourself and give that folder"
            )
        if code != 0:
            raise UserError(f"start=openvino: {tool} cannot convert {weights.place}: {converting.last_line()}")
        shutil.rmtree(made, ignore_errors=True)  # without a tokenizer: it cannot be served
        part.replace(made)
    finally:
        converting.stop()
        shutil.rmtree(part, ignore_errors=True)
        log.unlink(missing_ok=True)
    return str(made)


def folder_of(weights: Weights) -> Path:
    """The weights on this machine."""
    if Path(weights.place).is_dir():
        return Path(weights.place)
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(weights.place, revision=weights.revision))
    except Exception as error:  # whatever the hub's client raises
        raise UserError(
            f"{weights.place}: is no folder, and not to be had from the hub: {first_line(error)}"
        ) from error


def _content(folder: Path) -> str:
    """A digest of the files from which weights and vocabulary are made."""
    names = [file for file in sorted(folder.iterdir()) if file.suffix in (".json", ".safetensors")]
    return f"{folder.name}-{json_digest([[file.name, digest(file)] for file in names])}"
