"""The description of a setting, and how a field of a group has it."""

from collections.abc import Mapping
from dataclasses import Field, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Setting:
    """Description of a setting.

    help     what it is, for `--help`; in brackets what an open value means
    why      what speaks for its default, or what it costs
    wrong    metric or sign that shows a bad value
    bounds   range of a number, both ends included
    unit     "tokens" and "bytes" take sizes as 4k and 4GiB, "GiB" a plain number too; "seconds", "PORT", "FILE", "FOLDER" say what it is
    choices  words that are possible, where they do not depend on the runner; with the unit "URL" an address is, too
    also     words of other servers → the setting's
    name     public name, where it is not the field's
    secret   its value is never printed
    """

    help: str
    why: str = ""
    wrong: str = ""
    bounds: tuple[float, float] | None = None
    unit: str = ""
    choices: tuple[str, ...] = ()
    also: Mapping[str, str] = field(default_factory=dict)
    name: str = ""
    secret: bool = False


def described(default: Any, help: str, why: str = "", wrong: str = "", **more: Any) -> Any:
    """A field of a group, with its default and its description."""
    setting = Setting(help, why, wrong, **more)
    return field(default=default, repr=not setting.secret, metadata={"setting": setting})


def setting_of(each: "Field[Any]") -> Setting:
    """The description of a field of a group."""
    found: Setting = each.metadata["setting"]
    return found
