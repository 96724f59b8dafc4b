"""Models of a hub: from `org/name` to files in the local cache of `huggingface_hub`, which is imported only when a name needs it.

Owns the choice of files: weights as safetensors or GGUF, JSON, tokenizers and chat templates. Never code or pickles.
HF_HOME, HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE apply as usual.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from ridgeline.errors import ModelFormatError, ModelNotFoundError
from ridgeline.facts.files.safetensors import MAX_FILES
from ridgeline.facts.files.shards import INDEX, SINGLE
from ridgeline.facts.files.values import quoted

Progress = Callable[[str, float], None]
"""Called with (stage, fraction done)."""

SIDE_FILES = frozenset(
    {
        "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json",
        "added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja", "chat_template.json",
        "additional_chat_templates/tool_use.jinja",
    }
)  # fmt: skip
"""Files downloaded with the weights of a checkpoint, where the repository has them."""

_NAME = re.compile(
    r"(?P<repository>[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95})"
    r"(@(?P<revision>[A-Za-z0-9][A-Za-z0-9._-]{0,254}))?"
    r"(:(?P<quantisation>[A-Za-z0-9_]{1,32})|/(?P<file>[A-Za-z0-9._/ -]{1,255}\.gguf))?"
)
_PICKLED = (".bin", ".pt", ".pth", ".ckpt")
_SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")
_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


@dataclass(frozen=True, slots=True)
class HubName:
    """`org/name`, then `@revision`, then `/file.gguf` or `:Q4_K_M` for one of several GGUF models."""

    repository: str
    revision: str | None = None
    quantisation: str | None = None
    file: str | None = None


def parse_hub_name(name: str) -> HubName | None:
    """The parts of a hub name; None where `name` is not one, such as the path of a file."""
    parts = _NAME.fullmatch(name)
    if parts is None or parts["repository"].endswith((".gguf", ".json", ".safetensors")) or ".." in name:
        return None
    return HubName(**parts.groupdict())


def download_model(name: HubName, progress: Progress) -> Path:
    """Path of the GGUF file or of the checkpoint's directory; downloads what the cache lacks.

    Raises ModelNotFoundError with what was tried and the fix, ModelFormatError where the repository holds nothing that is accepted.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError

    try:
        information = HfApi().model_info(name.repository, revision=name.revision, files_metadata=True)
    except (OSError, HFValidationError, _http_error()) as error:
        return _cached_model(name, error, progress)
    sizes = {each.rfilename: each.size or 0 for each in information.siblings or ()}
    selected = select_files(name, sizes)
    folder = _download(name, {file: sizes[file] for file in selected}, progress)
    return folder / selected[0] if selected[0].endswith(".gguf") else folder


def select_files(name: HubName, files: Iterable[str]) -> list[str]:
    """Files of a repository to download: all parts of a GGUF model in order, or those of a checkpoint."""
    names = sorted(file for file in files if _is_safe_path(file))
    if name.file is not None or name.quantisation is not None:
        return _select_gguf(name, names)
    top_level = [file for file in names if "/" not in file]
    weights = [SINGLE] if SINGLE in top_level else [file for file in top_level if _SHARD.fullmatch(file)]
    weights = weights or [file for file in top_level if file.endswith(".safetensors")]
    if weights and "config.json" in top_level:
        if len(weights) > MAX_FILES:
            raise ModelFormatError(f"{name.repository} holds {len(weights)} safetensors files, at most {MAX_FILES} were expected")
        extra = SIDE_FILES if SINGLE in top_level else SIDE_FILES | {INDEX}
        return [file for file in top_level if file in extra] + weights
    if any(file.endswith(".gguf") for file in names):
        return _select_gguf(name, names)
    pickled = next((file for file in names if file.endswith(_PICKLED)), None)
    if pickled is not None:
        raise ModelFormatError(
            f"{name.repository} holds its weights in {pickled} only; such files can run any code when they are read and are not accepted: "
            "name a repository with safetensors or GGUF files"
        )
    raise ModelFormatError(f"{name.repository} holds no model: {len(names)} files, neither a config.json with safetensors nor GGUF")


def _is_safe_path(file: str) -> bool:
    """True for a name that stays inside the repository's folder."""
    parts = PurePosixPath(file).parts
    return bool(parts) and not file.startswith("/") and "\\" not in file and "\0" not in file and ".." not in parts


def _select_gguf(name: HubName, names: list[str]) -> list[str]:
    models = _group_parts(file for file in names if file.endswith(".gguf") and "mmproj" not in file.lower())
    if name.file is not None:
        matching = {first: parts for first, parts in models.items() if name.file in parts}
    elif name.quantisation is not None:
        tag = re.compile(rf"(?:^|[-._/]){re.escape(name.quantisation)}(?:[-./]|$)", re.IGNORECASE)
        matching = {first: parts for first, parts in models.items() if tag.search(first)}
    else:
        matching = models
    if len(matching) == 1:
        return next(iter(matching.values()))
    selected = name.file or name.quantisation or "one GGUF model"
    available = ", ".join(list(models)[:12]) or "none"
    raise ModelNotFoundError(
        f"{name.repository} holds {len(matching)} GGUF models that are {selected!r}, exactly one was expected; "
        f"name it as {name.repository}:Q4_K_M or {name.repository}/file.gguf; there are: {available}"
    )


def _group_parts(files: Iterable[str]) -> dict[str, list[str]]:
    """First part → all parts of each model, in order."""
    models: dict[str, list[str]] = {}
    for file in files:
        part = _PART.fullmatch(file)
        models.setdefault(f"{part['stem']}-00001-of-{part['count']}.gguf" if part else file, []).append(file)
    return models


def _download(name: HubName, sizes: Mapping[str, int], progress: Progress) -> Path:
    """Downloads the files and returns the folder of the snapshot."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    meter = _progress_meter(f"downloading {name.repository}", sum(sizes.values()), progress)
    folders = set()
    for done, file in enumerate(sizes):
        try:
            path = hf_hub_download(name.repository, file, revision=name.revision, library_name="ridgeline", tqdm_class=meter)
        except (OSError, EntryNotFoundError, _http_error()) as error:
            raise _not_found_error(name, error, f"fetched {done} of {len(sizes)} files, then {file} failed") from None
        folders.add(Path(str(path).removesuffix(file)))
    if len(folders) != 1:
        raise ModelNotFoundError(
            f"{name.repository} changed during the download; start again, or name a revision: {name.repository}@COMMIT"
        )
    progress(f"downloading {name.repository}", 1.0)
    return folders.pop()


def _cached_model(name: HubName, error: Exception, progress: Progress) -> Path:
    """Cached files of an earlier download, for when the hub cannot be reached."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError

    denied = isinstance(error, (GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError))
    try:
        if denied:
            raise LocalEntryNotFoundError("")
        folder = Path(snapshot_download(name.repository, revision=name.revision, local_files_only=True, allow_patterns=[]))
    except (LocalEntryNotFoundError, ValueError):
        raise _not_found_error(name, error, "asked the hub") from None
    selected = select_files(name, (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()))
    progress("reading the cached copy", 1.0)
    return folder / selected[0] if selected[0].endswith(".gguf") else folder


def _not_found_error(name: HubName, error: Exception, tried: str) -> ModelNotFoundError:
    """The error to raise for `error`, with the cause and the fix."""
    from huggingface_hub.constants import ENDPOINT, HF_HUB_CACHE
    from huggingface_hub.errors import GatedRepoError, OfflineModeIsEnabled, RepositoryNotFoundError, RevisionNotFoundError

    where = f"{ENDPOINT}/{name.repository}"
    if isinstance(error, GatedRepoError):
        return ModelNotFoundError(f"{where} is gated: accept its terms there, then set HF_TOKEN to a token of that account")
    if isinstance(error, RevisionNotFoundError):
        return ModelNotFoundError(f"{where} has no revision {name.revision!r}; name a branch, a tag or a commit that it has")
    if isinstance(error, RepositoryNotFoundError):
        return ModelNotFoundError(
            f"there is no file or directory {name.repository!r}, and {where} does not exist or is private; check the name, or set HF_TOKEN"
        )
    if isinstance(error, OfflineModeIsEnabled):
        tried = "HF_HUB_OFFLINE is set"
    cause = str(error).strip().partition("\n")[0] or type(error).__name__
    return ModelNotFoundError(
        f"{name.repository!r} is not a file or directory here and cannot be fetched from {ENDPOINT} ({tried}: {quoted(cause)}; "
        f"no copy is in {HF_HUB_CACHE}); download it where there is a network and give the path"
    )


def _http_error() -> type[Exception]:
    """Base class of the library's HTTP errors."""
    from huggingface_hub import errors

    kind: type[Exception] = errors.HTTPError  # type: ignore[attr-defined]
    return kind


def _progress_meter(stage: str, total: int, progress: Progress) -> Any:
    """The subset of tqdm that downloads of huggingface_hub use; all bars count into one total."""
    done = 0

    class Meter:
        total = 0

        def __init__(self, *_: object, initial: int = 0, **__: object) -> None:
            self.update(initial)

        def __enter__(self) -> "Meter":
            return self

        def __exit__(self, *_: object) -> None:
            return None

        def update(self, count: float | None = 1) -> None:
            nonlocal done
            done += int(count or 0)
            progress(stage, min(1.0, done / total) if total else 0.0)

        def update_transfer(self, count: float | None = 1) -> None:
            """Bytes on the wire, which become bytes of the file later and are counted then."""

        def set_postfix_str(self, *_: object, **__: object) -> None:
            """The bar's caption."""

        set_transfer_postfix_str = set_description = refresh = close = set_postfix_str

    return Meter
