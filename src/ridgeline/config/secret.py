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

from ridgeline.config.file import read_private
from ridgeline.config.groups import EngineConfig
from ridgeline.errors import ConfigError

SECRET_NAME: Final = "secret"
FOLDER_FLAG: Final = "--kv-cache-dir"
SECRET_FLAG: Final = "--cache-secret-file"
ROUTER_FLAG: Final = "--router-key-file"
TIER_FLAG: Final = "--kv-cache-secret-file"
MIN_SECRET_CHARACTERS: Final = 16


def read_cache_secret(path: str | None, config: EngineConfig) -> bytes:
    """Secret of prefix domains, 32 bytes: from a private file that replicas share, which is made where there is none; without one that of
    the engine's tiers, random without these. Who has another secret finds nothing in the cache, and no more than that. Raises
    ConfigError."""
    found = read_tier_secret(config) if path is None else read_secret(path, SECRET_FLAG)
    return secrets.token_bytes(32) if found is None else found


def read_router_key(path: str | None) -> bytes | None:
    """The key that a router and its replicas share, 32 bytes, of a private file that is made where there is none; None without a file.
    Raises ConfigError."""
    return None if path is None else read_secret(path, ROUTER_FLAG)


def read_tier_secret(config: EngineConfig) -> bytes | None:
    """The secret that signs blocks in tiers, 32 bytes: of its file, or of one in the folder of blocks, which are made where there is none;
    None without either. In the folder it is read through no link, and is this user's own. Raises ConfigError."""
    if config.kv_cache_secret_file is not None:
        return read_secret(config.kv_cache_secret_file, TIER_FLAG)
    if config.kv_cache_dir is None:
        return None
    with private_folder(config.kv_cache_dir) as folder:
        return read_secret(str(Path(config.kv_cache_dir).expanduser() / SECRET_NAME), TIER_FLAG, folder)


def read_secret(path: str, flag: str, folder: int | None = None) -> bytes:
    """A secret of 32 bytes from a private file, which is made where there is none. `folder`: as `read_private` has it. Raises
    ConfigError."""
    file = Path(path).expanduser()
    place = file if folder is None else Path(file.name)
    try:
        os.stat(place, dir_fd=folder, follow_symlinks=folder is None)
    except OSError:  # what is wrong shows when it is made, or read
        _create_secret(place, path, flag, folder)
    text = read_private(path, flag, folder=folder).strip()
    if len(text) < MIN_SECRET_CHARACTERS:
        raise ConfigError(
            f"{flag} {path!r:.200} has {len(text)} characters; at least {MIN_SECRET_CHARACTERS} are needed. Remove the file, and a "
            "new one is made", fix={flag: None}
        )  # fmt: skip
    return hashlib.sha256(text.encode()).digest()


def _create_secret(file: Path, path: str, flag: str, folder: int | None) -> None:
    """Makes the file whole or not at all: of replicas that start at once, all read the first one's."""
    draft = file.with_name(f"{file.name}.{secrets.token_hex(8)}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder)
        try:
            with os.fdopen(descriptor, "w") as opened:
                opened.write(secrets.token_hex(32) + "\n")
            os.link(draft, file, src_dir_fd=folder, dst_dir_fd=folder)
        finally:
            os.unlink(draft, dir_fd=folder)
    except FileExistsError:
        return
    except OSError as error:
        raise ConfigError(f"{flag} {path!r:.200} cannot be made: {error.strerror}", fix={flag: None}) from None


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
