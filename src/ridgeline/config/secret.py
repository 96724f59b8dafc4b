"""Secrets in private files that replicas share: of tenants' prefixes, of KV blocks that outlive an engine, of a router."""

import hashlib
import os
import secrets
import shlex
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from ridgeline.config.file import check_private, read_bounded
from ridgeline.config.groups import EngineConfig
from ridgeline.errors import ConfigError

SECRET_NAME: Final = "secret"
FOLDER_FLAG: Final = "--kv-cache-dir"
SECRET_FLAG: Final = "--cache-secret-file"
ROUTER_FLAG: Final = "--router-key-file"
TIER_FLAG: Final = "--kv-cache-secret-file"
MIN_SECRET_CHARACTERS: Final = 16


def read_cache_secret(path: str | None) -> bytes:
    """Secret of prefix domains, 32 bytes: from a private file that replicas share, which is made where there is none; random without one.
    Who has another secret finds nothing in the cache, and no more than that. Raises ConfigError."""
    return secrets.token_bytes(32) if path is None else read_secret(path, SECRET_FLAG)


def read_router_key(path: str | None) -> bytes | None:
    """The key that a router and its replicas share, 32 bytes, of a private file that is made where there is none; None without a file.
    Raises ConfigError."""
    return None if path is None else read_secret(path, ROUTER_FLAG)


def read_secret(path: str, flag: str) -> bytes:
    """A secret of 32 bytes from a private file, which is made where there is none. Raises ConfigError."""
    file = Path(path).expanduser()
    if not file.exists():
        _create_secret(file, path, flag)
    check_private(path, flag)
    text = read_bounded(path, flag).strip()
    if len(text) < MIN_SECRET_CHARACTERS:
        raise ConfigError(
            f"{flag} {path!r:.200} has {len(text)} characters; at least {MIN_SECRET_CHARACTERS} are needed. Remove the file, and a "
            "new one is made", fix={flag: None}
        )  # fmt: skip
    return hashlib.sha256(text.encode()).digest()


def _create_secret(file: Path, path: str, flag: str) -> None:
    """Makes the file whole or not at all: of replicas that start at once, all read the first one's."""
    draft = file.with_name(f"{file.name}.{secrets.token_hex(8)}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "w") as opened:
                opened.write(secrets.token_hex(32) + "\n")
            os.link(draft, file)
        finally:
            draft.unlink()
    except FileExistsError:
        return
    except OSError as error:
        raise ConfigError(f"{flag} {path!r:.200} cannot be made: {error.strerror}", fix={flag: None}) from None


def tier_secret_file(config: EngineConfig) -> str | None:
    """The file with the secret that signs blocks; None without tiers. Makes the folder that it lies in where that is the tier's own."""
    if config.kv_cache_secret_file is not None or config.kv_cache_dir is None:
        return config.kv_cache_secret_file
    with private_folder(config.kv_cache_dir):
        return str(Path(config.kv_cache_dir).expanduser() / SECRET_NAME)


@contextmanager
def private_folder(path: str) -> Iterator[int]:
    """A descriptor of the folder, which is made where there is none. Raises ConfigError for a link, and where others than its owner, who
    must be this process's user, may enter."""
    try:
        folder = Path(path).expanduser()
        with suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (OSError, RuntimeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{FOLDER_FLAG} {path!r:.200} is no folder that can be used: {reason}", fix={FOLDER_FLAG: None}) from None
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid():
            raise ConfigError(
                f"{FOLDER_FLAG} {path!r:.200} belongs to user {found.st_uid}, this process to {os.geteuid()}", fix={FOLDER_FLAG: None}
            )
        if found.st_mode & 0o077:
            mode = stat.S_IMODE(found.st_mode)
            how = f"run: chmod 700 {shlex.quote(path)}"
            raise ConfigError(f"{FOLDER_FLAG} {path!r:.200} has mode {mode:04o}, and others may enter; {how}", fix={FOLDER_FLAG: None})
        yield descriptor
    finally:
        os.close(descriptor)
