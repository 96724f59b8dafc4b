"""Check of a model's weights against digests that the user gives: one SHA-256, or a file as sha256sum writes it."""

import hashlib
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ridgeline.errors import ConfigError, ModelNotFoundError
from ridgeline.facts.files.values import open_file
from ridgeline.facts.hub.packaged import Progress
from ridgeline.facts.hub.source import resolve_model

if TYPE_CHECKING:
    from ridgeline.config.env import ModelStores

CHUNK_BYTES: Final = 4 << 20
MAX_SUMS_BYTES: Final = 1 << 20
THREADS: Final = 4
_SUM = re.compile(r"([0-9a-fA-F]{64}) [ *](.{1,1000})")
_PART = re.compile(r"(?P<stem>.+)-00001-of-(?P<count>\d{5})\.gguf", re.DOTALL)
FLAG: Final = "--expect-sha256"


def resolve_checked(name: str, stores: "ModelStores", expected: str | None, progress: Progress) -> Path:
    """Path of the model `name` as `resolve_model` finds it, whose weights are those of `expected`; None: not checked."""
    path = resolve_model(name, stores, progress)
    if expected is not None:
        check_digests(path, expected, progress)
    return path


def check_digests(model: Path, expected: str, progress: Progress) -> None:
    """Checks the weights of the model at `model` (a GGUF file, the first of a split one, or a directory).

    expected  64 hexadecimal digits for a model of one file; else the path of a file with a line per file, as sha256sum writes it
    Raises ConfigError where a digest differs, or where `expected` does not fit the model; it names no fix, which would be to look away.
    """
    files = weight_files(model)
    digests = _parse_expected(expected, files)
    total, done, lock = sum(file.stat().st_size for file in files) or 1, dict.fromkeys(files, 0), threading.Lock()

    def check(file: Path) -> None:
        digest = hashlib.sha256()
        with file.open("rb") as data:
            while chunk := data.read(CHUNK_BYTES):
                digest.update(chunk)
                with lock:
                    done[file] += len(chunk)
                    progress("checking SHA-256", sum(done.values()) / total)
        if digest.hexdigest() != digests[file.name]:
            raise ConfigError(
                f"{file} has SHA-256 {digest.hexdigest()}, {FLAG} expects {digests[file.name]}; it is damaged or another file: "
                "download it again, or correct the digest"
            )

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(check, files))


def weight_files(model: Path) -> list[Path]:
    """Files with the weights of the model at `model`."""
    if model.is_dir():
        return sorted(model.glob("*.safetensors"))
    split = _PART.fullmatch(model.name)
    if split is None:
        return [model]
    count = int(split["count"])
    return [model.with_name(f"{split['stem']}-{number:05d}-of-{count:05d}.gguf") for number in range(1, min(count, 1_024) + 1)]


def _parse_expected(expected: str, files: list[Path]) -> dict[str, str]:
    """Digest in lower case by file name."""
    if re.fullmatch(r"[0-9a-fA-F]{64}", expected):
        if len(files) != 1:
            raise ConfigError(
                f"{FLAG} gives one digest, and the model has {len(files)} files of weights; give a file as `sha256sum` writes it"
            )
        return {files[0].name: expected.lower()}
    try:
        with open_file(Path(expected).expanduser()) as sums:
            lines = sums.read(MAX_SUMS_BYTES).decode("utf-8").splitlines()
    except (ModelNotFoundError, OSError, ValueError, RuntimeError):
        raise ConfigError(f"{FLAG} {expected[:100]!r} is neither 64 hexadecimal digits nor a file as `sha256sum` writes it") from None
    found = {line[2].rpartition("/")[2]: line[1].lower() for line in map(_SUM.fullmatch, lines) if line is not None}
    missing = [file.name for file in files if file.name not in found]
    if missing or not files:
        raise ConfigError(f"{FLAG}: {expected[:100]!r} has no line for {(missing or ['the weights'])[0]}")
    return found
