"""`/v1/load_lora_adapter`, `/v1/unload_lora_adapter` (vLLM's bodies), `/lora-adapters` (llama.cpp's): adapters while the server runs.

Loading is for admins. An adapter is named by what lies under --lora-root, never by a path. Its header is checked, and its digest made,
here; the engine reads it when the first request names it.
"""

import asyncio
from functools import partial
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from ridgeline.engine.adapters import NAME, AdapterLibrary
from ridgeline.errors import ConfigError, ModelFormatError, ModelNotFoundError
from ridgeline.server import replies, wire
from ridgeline.server.body import parse
from ridgeline.server.errors import ApiError
from ridgeline.server.service import Service
from ridgeline.server.transport import json_response, read_body

GGUF_SUFFIX: Final = ".gguf"


def routes(service: Service) -> list[BaseRoute]:
    """The routes of this family."""
    loading = asyncio.Lock()

    def tell(library: AdapterLibrary) -> None:
        client = service.deployment.client
        if client is not None:
            for pin in library.changed_pins():
                client.send(pin)

    async def load(request: Request) -> Response:
        payload = parse(wire.LoadLoraRequest, await read_body(request))
        if not service.deployment.engine_config.adapter_slots:
            raise ApiError("unsupported_parameter", "this server takes no adapters; start it with --enable-lora", param="lora_name")
        library, place = service.deployment.adapters, _place(payload.lora_path or payload.lora_name, service.config.lora_root)
        async with loading:
            if library.find(payload.lora_name) is not None and not payload.load_inplace:
                message = "an adapter of that name is loaded; unload it, or send load_inplace: true"
                raise ApiError("invalid_value", message, param="lora_name")
            add = partial(library.add, payload.lora_name, place, is_pinned=payload.pinned is True)
            try:
                await asyncio.to_thread(add)
            except (ConfigError, ModelFormatError, ModelNotFoundError) as error:
                message = str(error).replace(str(place.parent), "--lora-root")
                raise ApiError("invalid_value", f"the adapter cannot be used: {message}", param="lora_path") from None
            tell(library)
        return PlainTextResponse(f"Success: LoRA adapter '{payload.lora_name}' added successfully.")

    async def unload(request: Request) -> Response:
        payload = parse(wire.UnloadLoraRequest, await read_body(request))
        if not service.deployment.adapters.remove(payload.lora_name):
            raise ApiError("model_not_found", "there is no adapter of that name here", param="lora_name")
        tell(service.deployment.adapters)
        return PlainTextResponse(f"Success: LoRA adapter '{payload.lora_name}' removed successfully.")

    async def listed(request: Request) -> Response:
        known = service.deployments.adapters_for_caller
        return json_response([replies.LoraAdapter(number, each.adapter.name, 0.0) for number, each in enumerate(known)])

    return [
        Route("/v1/load_lora_adapter", load, methods=["POST"]),
        Route("/v1/unload_lora_adapter", unload, methods=["POST"]),
        Route("/lora-adapters", listed, methods=["GET"]),
    ]


def _place(name: str, root: str | None) -> Path:
    """The path of an id's adapter: directly under the root, and no link out of it. Raises ApiError."""
    if root is None:
        raise ApiError("unsupported_parameter", "this server loads no adapters while it runs; start it with --lora-root", param="lora_path")
    if not NAME.fullmatch(name):
        message = "lora_path is the name of a folder or a GGUF file directly under --lora-root: letters, digits, points, hyphens"
        raise ApiError("invalid_value", message, param="lora_path")
    folder = Path(root).resolve()
    found = next((each for each in (folder / name, folder / f"{name}{GGUF_SUFFIX}") if each.exists()), None)
    if found is None or found.resolve().parent != folder:
        raise ApiError("invalid_value", "there is no such adapter under --lora-root", param="lora_path")
    return found
