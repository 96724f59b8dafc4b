"""Values of settings from text, from typed files and from Python: one parser for all, which says where a wrong value stands. Pure."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import Field, fields
from decimal import Decimal
from math import isfinite
from types import NoneType
from typing import Any, Final, get_args, get_origin

from ridgeline.config.foreign import REFUSED_WORDS
from ridgeline.config.groups import EngineConfig, ServerConfig, public_name
from ridgeline.config.setting import setting_of
from ridgeline.errors import ConfigError, nearest

WORDS: Final[Mapping[str, bool]] = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
OPEN: Final = ("", "auto", "none", "null", "~")
"""Texts of a number that is left open."""
SIZE: Final = re.compile(r"([0-9][0-9_]*(?:\.[0-9]+)?) ?(?:([kKmMgGtT])(i)?)?([bB])?")
POWERS: Final = {"k": 1, "m": 2, "g": 3, "t": 4}
MAX_SIZE: Final = 1 << 53
MAX_DIGITS: Final = 64
MAX_TEXT: Final = 4_096
"""Characters of a value."""
MAX_ITEMS: Final = 64
"""Values of a list."""
GIB: Final = 1 << 30


def parse_size(text: str, source: str, *, unit: str = "bytes") -> int:
    """Tokens or bytes: 4096, 4_096, 4k (4,000), 4K or 4Ki (4,096); for bytes also 4GB (4·10⁹), 4GiB, 4G (4·2³⁰), 4g (4·10⁹).

    As vLLM reads them: a small letter counts in thousands, a capital one in 1,024, unless "B" follows, which is SI's. Raises ConfigError.
    """
    found = SIZE.fullmatch(text.strip()) if len(text) <= MAX_DIGITS else None
    if found is None or (found[4] and unit != "bytes"):
        example = "4GiB" if unit == "bytes" else "4k"
        raise ConfigError(f"{source} is {text!r:.60}, not a number of {unit}; write it as 4096, 4_096 or {example}", fix=_without(source))
    number, letter, binary, byte = Decimal(found[1].replace("_", "")), found[2] or "", found[3], found[4]
    base = 1024 if binary or (letter.isupper() and not byte) else 1000
    value = number * base ** POWERS.get(letter.lower(), 0)
    if value > MAX_SIZE:
        raise ConfigError(f"{source} is {text!r:.60}, more than {MAX_SIZE:,} {unit}", fix=_without(source))
    if value != int(value):
        raise ConfigError(f"{source} is {text!r:.60}, which is {value.normalize():f} {unit}, not a whole number", fix=_without(source))
    return int(value)


def parse_text(each: "Field[Any]", text: str, source: str) -> Any:
    """The value of a setting from text. `source` names where it stands: a flag, a variable, a key of a file. Raises ConfigError."""
    kind, optional = _kind(each)
    setting = setting_of(each)
    if len(text) > MAX_TEXT:
        raise ConfigError(f"{source} has {len(text)} characters; at most {MAX_TEXT} are possible", fix=_without(source))
    text = setting.also.get(text.strip().lower(), text)
    if optional and kind is not str and text.strip().lower() in OPEN:
        return None
    if kind is bool:
        if text.strip().lower() not in WORDS:
            raise _wrong(source, text, "true or false")
        return WORDS[text.strip().lower()]
    if kind is tuple:
        return check_value(each, _items(text, source), source)
    if kind is str:
        return check_value(each, text, source)
    try:
        if setting.unit in ("tokens", "bytes") and not text.strip().startswith("-"):
            return check_value(each, parse_size(text, source, unit=setting.unit), source)
        if setting.unit == "GiB" and text.strip()[-1:].isalpha() and text.strip()[:1].isdigit():
            return check_value(each, parse_size(text, source) / GIB, source)
        number = int(text) if kind is int else float(text)
    except ValueError:
        raise _wrong(source, text, "a whole number" if kind is int else "a number") from None
    return check_value(each, number, source)


def read_value(each: "Field[Any]", value: Any, source: str) -> Any:
    """The value of a setting from Python or a typed file: text is parsed, other types must be the setting's. Raises ConfigError."""
    kind, optional = _kind(each)
    if value is None and optional:
        return None
    if kind is tuple and isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
        return check_value(each, tuple(value), source)
    if isinstance(value, str):
        return parse_text(each, value, source)
    if kind is str and hasattr(value, "__fspath__"):
        return check_value(each, str(value), source)
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        names = {str: "text", int: "a whole number", float: "a number", bool: "true or false", tuple: "a list of texts"}
        raise _wrong(source, str(value), names[kind])
    return check_value(each, value, source)


def check_value(each: "Field[Any]", value: Any, source: str) -> Any:
    """The value itself, if it is within the bounds and among the choices of the setting. Raises ConfigError."""
    setting, flag = setting_of(each), flag_of(public_name(each))
    if isinstance(value, float) and not isfinite(value):
        raise ConfigError(f"{source} is {value}, which is not a number", fix=_without(source))
    if setting.bounds is not None and value is not None and not setting.bounds[0] <= value <= setting.bounds[1]:
        low, high = setting.bounds
        fix = _without(source) if setting.unit == "PORT" else {flag: str(low if value < low else high)}
        raise ConfigError(f"{source} is {value}, outside {low} … {high}", fix=fix)
    if setting.choices and value not in setting.choices and not (setting.unit == "URL" and "://" in value):
        near = nearest(value, setting.choices) or setting.choices[0]
        if why := REFUSED_WORDS.get(each.name, {}).get(value.lower().replace("_", "-")):
            raise ConfigError(f"{source} {value!r:.60} is not possible here: {why}", fix={flag: "suffix"})
        known = ", ".join(setting.choices) + (", or a URL" if setting.unit == "URL" else "")
        raise ConfigError(f"{source} is {value!r:.60}; it must be one of {known}", fix={flag: near})
    if isinstance(value, str) and "\0" in value:
        raise ConfigError(f"{source} has a zero byte", fix=_without(source))
    if isinstance(value, tuple) and len(value) > MAX_ITEMS:
        raise ConfigError(f"{source} has {len(value)} items; at most {MAX_ITEMS} are possible", fix=_without(source))
    return value


def check_settings(config: EngineConfig | ServerConfig) -> None:
    """Checks every setting by itself, whatever the model and the machine. Raises ConfigError."""
    for each in fields(config):
        check_value(each, getattr(config, each.name), flag_of(public_name(each)))


def unknown_name(name: str, known: Iterable[str], source: str) -> ConfigError:
    """The error for a name that is no setting, with the nearest one."""
    names = list(known)
    near = nearest(name, names)
    hint = f"did you mean {near}?" if near else f"there are: {', '.join(names)}"
    return ConfigError(f"{source} {name!r:.60} is not a setting; {hint}")


def flag_of(name: str) -> str:
    """The flag of a setting: `max_model_len` → `--max-model-len`."""
    return f"--{name.replace('_', '-')}"


def _without(source: str) -> dict[str, str | None]:
    """The fix of an error: without the flag. A variable or a key of a file is not on the command line."""
    return {source: None} if source.startswith("--") else {}


def _wrong(source: str, text: str, expected: str) -> ConfigError:
    return ConfigError(f"{source} is {text!r:.60}; {expected} was expected", fix=_without(source))


def _kind(each: "Field[Any]") -> tuple[type, bool]:
    """(type of the setting: bool, int, float, str or tuple; True if it may be left open)."""
    names = get_args(each.type) if get_origin(each.type) is not tuple else ()
    kinds = [name for name in names if name is not NoneType] or [each.type]
    kind = get_origin(kinds[0]) or kinds[0]
    return kind, NoneType in names


def _items(text: str, source: str) -> tuple[str, ...]:
    """Items of a list: of JSON, or separated by commas or spaces."""
    items: Any = text.replace(",", " ").split()
    if text.strip().startswith("["):
        try:
            items = json.loads(text)
        except (ValueError, RecursionError):
            items = None
        if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
            raise _wrong(source, text, "a list of texts")
    return tuple(items)
