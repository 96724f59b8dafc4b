"""The pooling of texts that a model's files state: of a checkpoint in the files of sentence-transformers, of a GGUF file in a key.

Owns the names of kinds of pooling in files. A kind that is not computed here is refused, since its vectors would be wrong.
"""

import re
from pathlib import Path
from typing import Any, Final

from ridgeline.errors import ModelFormatError
from ridgeline.facts.files.gguf import Header
from ridgeline.facts.files.json_file import parse_array, read_object, read_text

MODULES: Final = "modules.json"
"""Lists the parts of a model of sentence-transformers: the network, the pooling, and what follows."""
_FOLDER: Final = re.compile(r"[0-9]{1,2}_[A-Za-z]{1,32}")
_MODES: Final = {
    "pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean", "pooling_mode_lasttoken": "last",
    "pooling_mode_max_tokens": "max", "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}  # fmt: skip
_KNOWN: Final = ("last", "mean", "cls")
_GGUF_KINDS: Final = {0: "", 1: "mean", 2: "cls", 3: "last", 4: "rank"}
"""`pooling_type` of GGUF files; 4 is a head that ranks."""


def checkpoint_pooling(directory: Path) -> str:
    """ "last", "mean" or "cls", as modules.json in a checkpoint's directory leads to; "" where there is none.

    Raises ModelFormatError for other kinds, and for parts behind the pooling other than a normalisation.
    """
    path = directory / MODULES
    if not path.is_file():
        return ""
    kind = ""
    for module in parse_array(read_text(path), MODULES):
        name = _text(module, "type").rpartition(".")[2]
        if name == "Pooling":
            folder = _text(module, "path")
            if not _FOLDER.fullmatch(folder):
                raise ModelFormatError(f"{MODULES}: the pooling is in {folder!r:.60}, a folder as 1_Pooling was expected")
            kind = _mode(read_object(directory / folder / "config.json"), folder)
        elif name not in ("Transformer", "Normalize"):
            raise ModelFormatError(f"{MODULES}: {name!r:.60} is not supported; a transformer, a pooling and a normalisation are")
    return kind


def _mode(config: dict[str, Any], folder: str) -> str:
    named = config.get("pooling_mode")
    kinds = [named] if isinstance(named, str) else [kind for key, kind in _MODES.items() if config.get(key) is True]
    kinds = ["last" if kind == "lasttoken" else kind for kind in kinds]
    if len(kinds) != 1 or kinds[0] not in _KNOWN:
        raise ModelFormatError(f"{folder}/config.json pools by {kinds!r:.80}, which is not supported; one of {', '.join(_KNOWN)} is")
    return kinds[0]


def _text(module: Any, key: str) -> str:
    value = module.get(key) if isinstance(module, dict) else None
    if not isinstance(value, str):
        raise ModelFormatError(f"{MODULES}: a part has no {key}")
    return value


def gguf_pooling(header: Header, architecture: str) -> str:
    """The same of a GGUF header. Raises ModelFormatError for kinds that are not supported."""
    number = header.integer(f"{architecture}.pooling_type", 0, 1 << 16, default=0)
    kind = _GGUF_KINDS.get(number, str(number))
    if kind and kind not in _KNOWN:
        raise ModelFormatError(f"{architecture}.pooling_type is {number} ({kind}), which is not supported; mean, cls and last are")
    return kind
