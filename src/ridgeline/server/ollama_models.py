"""`/api/tags`, `/api/show`, `/api/ps`, `/api/version`, and for admins `/api/pull`, `/api/delete`, `/api/copy`: models in Ollama's words.

Owns what is told of a model there, and what an admin may do to the library of this machine over HTTP. A client's request never fetches
anything, and no name is a path.
"""

import asyncio
import hashlib
import re
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from math import ceil
from pathlib import Path
from typing import Final

import msgspec
from msgspec import structs
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from ridgeline.config.env import model_stores
from ridgeline.errors import ConfigError, ModelFormatError, ModelNotFoundError, RidgelineError
from ridgeline.facts.headers.read import describe_files
from ridgeline.facts.hub.digests import weight_files
from ridgeline.facts.hub.library import Entry, list_models, owner_hint, remove_model
from ridgeline.facts.hub.packaged import PACKAGED
from ridgeline.facts.hub.source import download_remote, find_hub_name, find_local, find_remote
from ridgeline.facts.model import ModelFacts
from ridgeline.server import fields
from ridgeline.server.errors import ApiError
from ridgeline.server.loading import Model
from ridgeline.server.ollama_chat import LATEST, plain_name, tagged
from ridgeline.server.ollama_shapes import Details, ListedModel, ModelRequest, Progress, Running, RunningModel, Shown, Tags
from ridgeline.server.promises import MAX_RETRY_AFTER_SECONDS
from ridgeline.server.replies import Version
from ridgeline.server.service import Service
from ridgeline.server.transport import KEEP_ALIVE, OLLAMA_LINES, EventStream, json_response, read_body, unless_disconnected

API_VERSION: Final = "0.12.11"
"""Version of the API whose fields are here: clients compare it with the version that they need."""
NEVER: Final = "9999-12-31T23:59:59Z"
"""Time of unloading of a model that stays."""
MAX_ALIASES: Final = 64
ALIAS: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:-]{0,127}")
PROGRESS_SECONDS: Final = 0.25
FIRST_BYTES_SECONDS: Final = 10.0


def routes(service: Service) -> list[BaseRoute]:
    """The routes that clients may use."""

    async def version(request: Request) -> Response:
        return json_response(Version(API_VERSION))

    async def tags(request: Request) -> Response:
        return json_response(Tags(named(await listed(service.model), service.deployments.aliases)))

    async def running(request: Request) -> Response:
        return json_response(Running([await running_model(service.model, NEVER)]))

    async def show(request: Request) -> Response:
        payload, notes = fields.OLLAMA_MODEL.read(await read_body(request))
        service.deployments.check_name(plain_name(payload.model or payload.name))
        answer = json_response(await shown(service.model))
        answer.headers.update(notes.tell())
        return answer

    return [
        Route("/api/version", version, methods=["GET"]),
        Route("/api/tags", tags, methods=["GET"]),
        Route("/api/ps", running, methods=["GET"]),
        Route("/api/show", show, methods=["POST"]),
        pull_route(),
        *_admin_routes(service),
    ]


def pull_route() -> Route:
    """`/api/pull`, for keys with scope=admin. One model is pulled at a time, of all that a server has."""
    pulling, state = asyncio.Lock(), _Transfer()

    async def pull(request: Request) -> Response:
        nonlocal state
        payload, _ = fields.OLLAMA_MODEL.read(await read_body(request))
        name = _hub_name(payload)
        if pulling.locked():
            headers = {"Retry-After": str(state.retry_after())}
            raise ApiError("overloaded", "another model is being pulled; try again when it is here", headers=headers)
        state = _Transfer()
        lines = _pull(name, pulling, state)
        if payload.stream is not False:
            return EventStream(lines, lambda: None, OLLAMA_LINES)
        await unless_disconnected(request.scope, _read_all(lines))
        return json_response(Progress("success"))

    return Route("/api/pull", pull, methods=["POST"])


def _admin_routes(service: Service) -> list[BaseRoute]:
    """The other routes of keys with scope=admin, as the table says."""

    async def delete(request: Request) -> Response:
        payload, _ = fields.OLLAMA_MODEL.read(await read_body(request))
        name = plain_name(payload.model or payload.name)
        if name in service.deployments.aliases:
            del service.deployments.aliases[name]
        else:
            await asyncio.to_thread(remove, name, [service.model.path])
        return PlainTextResponse()

    async def copy(request: Request) -> Response:
        payload, _ = fields.OLLAMA_COPY.read(await read_body(request))
        service.deployments.check_name(plain_name(payload.source))
        add_alias(service, payload.destination)
        return PlainTextResponse()

    return [
        Route("/api/delete", delete, methods=["DELETE"]),
        Route("/api/copy", copy, methods=["POST"]),
    ]


def add_alias(service: Service, destination: str) -> None:
    """Gives the model another name. Raises ApiError for one that is none, and where it has too many."""
    alias = destination.removesuffix(LATEST)
    if not ALIAS.fullmatch(alias):
        message = "destination is no name: letters, digits, and . _ - / : behind the first, at most 128"
        raise ApiError("invalid_value", message, param="destination")
    if alias != service.name:
        if len(service.deployments.aliases) >= MAX_ALIASES:
            raise ApiError("invalid_value", f"the model has {MAX_ALIASES} aliases already; delete one", param="destination")
        service.deployments.aliases[alias] = None


# ── what is told of a model ─────────────────────────────────────────────────────────────────────────────────────────


async def listed(model: Model) -> ListedModel:
    """A model's entry in `/api/tags`."""
    about, name = await _about(model), tagged(model.name)
    return ListedModel(name, name, _modified(model, about), _size(model, about), _digest(model), _details(about))


def named(model: ListedModel, aliases: Iterable[str]) -> list[ListedModel]:
    """The model, and the same under each of its aliases."""
    return [model, *(structs.replace(model, name=tagged(alias), model=tagged(alias)) for alias in aliases)]


async def running_model(model: Model, expires_at: str) -> RunningModel:
    """A loaded model's entry in `/api/ps`."""
    known, info = await listed(model), model.engine.info
    accelerated = info.weights_bytes + info.kv_bytes if info.runner == "cuda" else 0
    return RunningModel(
        known.name, known.name, known.size, known.digest, known.details, expires_at, accelerated, model.limits.max_model_len
    )  # fmt: skip


async def shown(model: Model) -> Shown:
    """The answer of `/api/show` about a model."""
    return _shown(model, await _about(model), await asyncio.to_thread(model.fim) is not None)


@dataclass(frozen=True, slots=True)
class _Files:
    """Facts about a model's files: what their headers say, their size, and when they were written (seconds since 1970)."""

    facts: ModelFacts
    bytes: int
    modified: float


@lru_cache(16)
def _read_files(path: Path) -> _Files | None:
    """None for files that have gone since the start."""
    try:
        stats = [file.stat() for file in weight_files(path)]
        return _Files(describe_files(path), sum(each.st_size for each in stats), max(each.st_mtime for each in stats))
    except (OSError, ValueError, RidgelineError):
        return None


async def _about(model: Model) -> _Files | None:
    """None for a model without files."""
    return None if model.path is None else await asyncio.to_thread(_read_files, model.path)


def _modified(model: Model, about: _Files | None) -> str:
    seconds = model.created if about is None else about.modified
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _size(model: Model, about: _Files | None) -> int:
    return model.engine.info.weights_bytes if about is None else about.bytes


def _digest(model: Model) -> str:
    return hashlib.sha256(model.limits.kv.fingerprint).hexdigest()


def _details(about: _Files | None) -> Details:
    if about is None:
        return Details("", "", "", [], "", "")
    facts = about.facts
    parameters = facts.total_parameters
    size = f"{parameters / 1e9:.1f}B" if parameters >= 1e9 else f"{parameters / 1e6:.0f}M"
    return Details("", facts.format_name, facts.architecture, [facts.architecture], size, facts.format_name)


def _shown(model: Model, about: _Files | None, can_insert: bool) -> Shown:
    chat = model.chat if model.chat is not None and model.chat.is_usable else None
    can = {"completion": True, "tools": chat is not None and chat.family is not None, "insert": can_insert,
           "thinking": chat is not None and chat.reasoning is not None}  # fmt: skip
    info: dict[str, str | int | float] = {}
    if about is not None:
        name, facts = about.facts.architecture, about.facts
        info = {
            "general.architecture": name, "general.parameter_count": round(facts.total_parameters),
            f"{name}.context_length": facts.context, f"{name}.block_count": facts.layers,
            f"{name}.attention.head_count": facts.heads, f"{name}.attention.head_count_kv": facts.kv_heads,
        }  # fmt: skip
    return Shown(
        modelfile=f"FROM {model.name}\n",
        parameters="\n".join(f"{name} {value}" for name, value in model.defaults.items()),
        template="" if chat is None else chat.text,
        details=_details(about),
        model_info=info,
        capabilities=[name for name, has in can.items() if has],
        modified_at=_modified(model, about),
    )


# ── the library ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _hub_name(payload: ModelRequest) -> str:
    """A name that a hub or the table of short names has. Raises ApiError for any other, as for a path."""
    name = plain_name(payload.model or payload.name)
    if len(name) > 256 or (name not in PACKAGED and find_hub_name(name) is None):
        message = "model is no name of a hub's model; send one like llama3.2:1b, org/name or org/name:Q4_K_M"
        raise ApiError("invalid_value", message, param="model")
    if payload.insecure:
        raise ApiError("unsupported_parameter", "insecure is not supported by this server; leave it out", param="insecure")
    return name


async def _pull(name: str, pulling: asyncio.Lock, state: "_Transfer") -> AsyncGenerator[bytes, None]:
    """Fetches what this machine lacks of a model; yields how far it is. Ends the transfer where nobody reads on; what has come stays."""
    encode = msgspec.json.encode
    async with pulling:
        yield encode(Progress("pulling manifest"))
        work = asyncio.ensure_future(asyncio.to_thread(_fetch, name, state))
        told = -1
        try:
            while not work.done():
                await asyncio.wait({work}, timeout=PROGRESS_SECONDS)
                if state.total and state.done != told:
                    told = state.done
                    yield encode(Progress(f"pulling {state.digest[:12]}", state.digest, state.total, told))
                else:
                    yield KEEP_ALIVE
            work.result()
        except (ConfigError, ModelFormatError, ModelNotFoundError) as error:
            raise ApiError("invalid_value", str(error), param="model") from None
        finally:
            state.is_wanted = False
            with suppress(Exception):
                await work
        yield encode(Progress("success"))


async def _read_all(lines: AsyncGenerator[bytes, None]) -> None:
    async with aclosing(lines):
        async for _ in lines:
            pass


@dataclass(slots=True)
class _Transfer:
    """State of a transfer; its threads write it. is_wanted: False ends it."""

    digest: str = ""
    total: int = 0
    done: int = 0
    is_wanted: bool = True
    began: float = field(default_factory=time.monotonic)

    def retry_after(self) -> int:
        """Whole seconds until its file should be here, by the pace so far; before there is one, those in which it should begin."""
        pace = self.done / max(1e-3, time.monotonic() - self.began)
        left = (self.total - self.done) / pace if pace else FIRST_BYTES_SECONDS
        return min(MAX_RETRY_AFTER_SECONDS, max(1, ceil(left)))

    def note(self, done: int, total: int) -> None:
        """Called with (bytes here, bytes in all). Raises ConfigError where nobody waits for it."""
        if not self.is_wanted:
            raise ConfigError("the client has gone; what has come stays, and the next pull goes on from there")
        self.done, self.total = done, total


def _fetch(name: str, state: _Transfer) -> None:
    stores = model_stores()
    if name in PACKAGED or find_local(name, stores) is not None:
        return
    client, selection = find_remote(name, stores)
    state.digest = f"sha256:{selection.files[0].digest}"
    download_remote(client, selection, stores, state.note)


def remove(name: str, served: Sequence[Path | None]) -> None:
    """Removes a model that Ridgeline fetched. Raises ApiError for one that is served, another's, or not here."""
    stores = model_stores()
    entries = list_models(stores)
    local = find_local(name, stores) if find_hub_name(name) is not None else None
    is_meant: Callable[[Entry], bool] = lambda entry: entry.model.name == name or entry.model.path == local  # noqa: E731
    entry = next(filter(is_meant, entries), None)
    if entry is None:
        raise ApiError("model_not_found", "the library of this machine has no model of that name", param="model")
    if not entry.is_own:
        raise ApiError("invalid_value", f"Ridgeline did not fetch this model: {owner_hint(entry)}", param="model")
    if {path.resolve() for path in served if path} & {path.resolve() for path in (entry.model.path, *entry.model.files)}:
        raise ApiError("invalid_value", "this model is being served; end the server, or swap its model, first", param="model")
    try:
        remove_model(entry, stores)
    except (OSError, ModelNotFoundError) as error:
        raise ApiError("invalid_value", f"it cannot be removed: {type(error).__name__}", param="model") from None
