"""Files of settings (YAML, TOML) and of secrets: bounded, read once, without code, tags, aliases or duplicate keys.

Owns the rule who may read a file with a secret. Values of YAML stay text, which `config.values` parses: `port: 8000` and `port: "8000"` are
the same, and a key made of digits stays as it is written.
"""

import os
import shlex
import stat
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from ridgeline.errors import ConfigError

MAX_BYTES: Final = 1 << 16
SUFFIXES: Final = (".yaml", ".yml", ".toml")
NULL: Final = ("", "~", "null")
"""Plain texts that leave a setting open."""
OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


def read_settings(path: str) -> dict[str, Any]:
    """Names and values of a file of settings, names as they are written: values of YAML are texts, lists of texts, or None, those of TOML
    have its types. Raises ConfigError."""
    text = read_bounded(path, "--config")
    if path.endswith(".toml"):
        return _read_toml(path, text)
    if not path.endswith(SUFFIXES):
        raise ConfigError(f"--config {path!r:.200} is neither YAML nor TOML by its name; end it in one of {', '.join(SUFFIXES)}")
    return _read_yaml(path, text)


def read_bounded(path: str, source: str, most: int = MAX_BYTES) -> str:
    """The text of a regular file of at most `most` bytes. `source` names the setting that gives the path. Raises ConfigError."""
    return _read(path, source, most)


def read_private(path: str, source: str, most: int = MAX_BYTES, folder: int | None = None) -> str:
    """`read_bounded` of a file with a secret, which is checked as `check_private` does when it is open: what is read is what was checked.

    folder  descriptor of the private folder that the file lies in, which then has to be this user's own and no link
    """

    def check(found: os.stat_result) -> None:
        _check_private(found, path, source)
        if folder is not None and found.st_uid != os.geteuid():
            raise ConfigError(f"{source} {path!r:.200} belongs to user {found.st_uid}, this process to {os.geteuid()}; remove the file")

    return _read(path, source, most, check, folder)


def check_private(path: str, source: str) -> None:
    """Raises ConfigError where others than its owner may read or change a file with a secret. The group of a file that belongs to root may
    read it, if this is another user's process: so are keys given to services (Debian's `ssl-cert`, secrets of Kubernetes)."""
    try:
        found = Path(path).expanduser().stat()
    except OSError as error:
        raise ConfigError(f"{source} {path!r:.200} cannot be read: {error.strerror}", fix={source: None}) from None
    _check_private(found, path, source)


def _check_private(found: os.stat_result, path: str, source: str) -> None:
    allowed = stat.S_IRGRP if found.st_uid == 0 != os.geteuid() else 0
    if found.st_mode & OTHERS & ~allowed:
        mode = stat.S_IMODE(found.st_mode)
        raise ConfigError(
            f"{source} {path!r:.200} holds a secret, and its mode {mode:04o} lets others than its owner at it; "
            f"run: chmod {'640' if allowed else '600'} {shlex.quote(path)}"
        )


def _read(
    path: str, source: str, most: int, check: Callable[[os.stat_result], None] | None = None, folder: int | None = None
) -> str:  # fmt: skip
    """The text of a file that `check` has let pass. `folder`: descriptor of the one that it is in; it is no link then."""
    try:
        name, more = (Path(path).expanduser(), 0) if folder is None else (Path(path).name, os.O_NOFOLLOW)
        descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK | more, dir_fd=folder)  # a pipe without a writer does not wait
        with os.fdopen(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise ConfigError(f"{source} {path!r:.200} is not a regular file", fix={source: None})
            if check is not None:
                check(found)
            data = file.read(most + 1)
    except (OSError, RuntimeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{source} {path!r:.200} cannot be read: {reason}", fix={source: None}) from None
    if len(data) > most:
        raise ConfigError(f"{source} {path!r:.200} has more than {most:,} bytes", fix={source: None})
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{source} {path!r:.200} is not UTF-8 (byte {error.start})", fix={source: None}) from None


def _read_toml(path: str, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"--config {path!r:.200} is not TOML: {error!s:.200}") from None


def _read_yaml(path: str, text: str) -> dict[str, Any]:
    """One mapping of names to texts and lists of texts, read from the parser's events: nothing is constructed."""
    import yaml  # only where there is such a file

    def wrong(event: yaml.Event, reason: str) -> ConfigError:
        return ConfigError(f"--config {path!r:.200}, line {event.start_mark.line + 1}: {reason}")

    found: dict[str, Any] = {}
    inside = False
    key: str | None = None
    items: list[str] | None = None
    try:
        for event in yaml.parse(text, yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) or getattr(event, "tag", None):
                raise wrong(event, "anchors, aliases and tags are not read; write the value itself")
            if isinstance(event, yaml.MappingStartEvent):
                if inside or found:
                    raise wrong(event, "a mapping within another is not a setting; write name: value")
                inside = True
            elif isinstance(event, yaml.MappingEndEvent):
                inside = False
            elif not isinstance(event, (yaml.ScalarEvent, yaml.SequenceStartEvent, yaml.SequenceEndEvent)):
                continue
            elif not inside:
                raise wrong(event, "settings are written as name: value")
            elif isinstance(event, yaml.SequenceEndEvent):
                found[str(key)], key, items = items, None, None
            elif isinstance(event, yaml.SequenceStartEvent):
                if key is None or items is not None:
                    raise wrong(event, "a list within another, or as a name, is not a setting")
                items = []
            elif key is None:
                key = event.value
                if key in found:
                    raise wrong(event, f"{key!r:.60} stands here a second time; remove one")
            elif items is not None:
                items.append(event.value)
            else:
                found[key], key = (None if event.style is None and event.value.lower() in NULL else event.value), None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f", line {mark.line + 1}"
        raise ConfigError(f"--config {path!r:.200}{where} is not YAML: {getattr(error, 'problem', None) or error!s:.200}") from None
    return found
