"""Writing what is not text."""

from pathlib import Path

from specbench.errors import MachineError


def write_bytes(file: Path, content: bytes) -> Path:
    """Write `content`, making the folder where there is none; returns the file."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    except OSError as error:
        raise MachineError(f"{file}: cannot be written ({error.strerror}); set --output to another folder") from error
    return file
