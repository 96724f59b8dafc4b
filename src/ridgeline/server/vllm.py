"""`/load`, `/is_sleeping`, `/server_info`, `/tokenizer_info`: what vLLM's operators and their programs ask a server."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ridgeline import __version__
from ridgeline.server import vllm_shapes
from ridgeline.server.service import Service
from ridgeline.server.transport import json_response


def routes(service: Service) -> list[BaseRoute]:
    """The routes of this family."""

    async def load(request: Request) -> Response:
        return json_response(vllm_shapes.Load(service.deployments.open_requests))

    async def is_sleeping(request: Request) -> Response:
        return json_response(vllm_shapes.Sleeping())

    async def server_info(request: Request) -> Response:
        model = service.model
        info, decisions = model.engine.info, model.engine.decisions
        settings = [vllm_shapes.EffectiveSetting(each.name, each.value, each.origin, each.reason) for each in decisions]
        return json_response(vllm_shapes.ServerInfo(
            __version__, model.name, info.runner, info.rows, info.max_model_len, info.weights_bytes, info.kv_bytes, settings
        ))  # fmt: skip

    async def tokenizer_info(request: Request) -> Response:
        model = service.model
        template = None if model.chat is None else model.chat.text
        kind = type(model.tokenizer).__name__
        return json_response(vllm_shapes.TokenizerInfo(kind, model.limits.vocab, model.limits.max_model_len, *model.ends, template))

    return [
        Route("/load", load, methods=["GET"]),
        Route("/is_sleeping", is_sleeping, methods=["GET"]),
        Route("/server_info", server_info, methods=["GET"]),
        Route("/tokenizer_info", tokenizer_info, methods=["GET"]),
    ]
