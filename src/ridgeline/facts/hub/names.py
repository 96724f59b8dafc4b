"""Parser of model names: `org/name` with a revision and a quantisation, `hf.co/…`, and the table of short names.

Owns what a name may consist of. The table is data (`short_names.json`): repository, quantisation or file, and SHA-256 where it is known.
"""

import json
import re
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files

_NAME = re.compile(
    r"(?P<repository>[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95})"
    r"(@(?P<revision>[A-Za-z0-9][A-Za-z0-9._-]{0,254}))?"
    r"(:(?P<quantisation>[A-Za-z0-9_-]{1,40})|/(?P<file>[A-Za-z0-9._/ -]{1,255}\.gguf))?"
)
_HOSTS = ("https://huggingface.co/", "https://hf.co/", "huggingface.co/", "hf.co/")
_SHORT = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}(:[a-z0-9][a-z0-9._-]{0,63})?")
_NOT_REPOSITORIES = (".gguf", ".json", ".safetensors")


@dataclass(frozen=True, slots=True)
class HubName:
    """`org/name`, then `@revision`, then `/file.gguf` or `:Q4_K_M` for one of several GGUF models.

    sha256  digest that each of its weight files must have, by file name; {} where none is known
    """

    repository: str
    revision: str | None = None
    quantisation: str | None = None
    file: str | None = None
    sha256: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        return f"{self.repository}{revision}" + (f":{self.quantisation}" if self.quantisation else f"/{self.file}" if self.file else "")


@dataclass(frozen=True, slots=True)
class ShortName:
    """A short name of the table.

    about_bytes  size of the weights, two digits: what is said before the hub is asked
    kind         `instruct` or `base`
    """

    name: str
    title: str
    hub: HubName
    about_bytes: int
    kind: str
    licence: str


def parse_hub_name(name: str) -> HubName | None:
    """The parts of a hub name, with or without the hub's host before it; None where `name` is not one, such as the path of a file."""
    host = next((host for host in _HOSTS if name.lower().startswith(host)), "")
    parts = _NAME.fullmatch(name[len(host) :])
    if parts is None or parts["repository"].endswith(_NOT_REPOSITORIES) or ".." in name:
        return None
    found = HubName(parts["repository"], parts["revision"], parts["quantisation"], parts["file"])
    return replace(found, quantisation=None) if (found.quantisation or "").lower() == "latest" else found


def is_short_name(name: str) -> bool:
    """True for what may be a short name: `model` or `model:tag`, as in the table and in Ollama's library."""
    return _SHORT.fullmatch(name.lower()) is not None


def short_name(name: str) -> ShortName | None:
    """The table's entry for a short name, whatever its case; `model` alone is the model's default size. None where there is none."""
    return short_names().get(name.lower().removesuffix(":latest"))


@cache
def short_names() -> dict[str, ShortName]:
    """The table, in the order of the file. A model without a size stands for the first of its sizes."""
    table = json.loads((files("ridgeline.facts.hub") / "short_names.json").read_text("utf-8"))
    found: dict[str, ShortName] = {}
    for name, row in table["names"].items():
        hub = HubName(
            row["repository"], row.get("commit"), row.get("quantisation"), row.get("file"), tuple(sorted(row.get("sha256", {}).items()))
        )
        entry = ShortName(name, row["title"], hub, row["about_bytes"], row["kind"], row["licence"])
        found[name] = entry
        found.setdefault(name.partition(":")[0], entry)
    return found


def starters() -> list[ShortName]:
    """Small instruct models for a first conversation, smallest first."""
    table = json.loads((files("ridgeline.facts.hub") / "short_names.json").read_text("utf-8"))
    return [short_names()[name] for name in table["starters"]]
