"""Routes for operators and load balancers: liveness, readiness, version, metrics."""

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from ridgeline import __version__
from ridgeline.observe.prometheus import CONTENT_TYPE, exposition
from ridgeline.server import replies
from ridgeline.server.callers import current_caller
from ridgeline.server.errors import RETRY_AFTER_SECONDS, ApiError
from ridgeline.server.service import Service
from ridgeline.server.transport import json_response


def routes(service: Service) -> list[BaseRoute]:
    """The routes of this family."""

    async def livez(request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(request: Request) -> Response:
        """200 exactly when a request would be taken; also under vLLM's name `/health`."""
        if service.is_ready:
            return PlainTextResponse("ok\n")
        reason = f"not ready: {service.deployment.not_ready_reason()}"
        raise ApiError("engine_unavailable", reason, headers={"Retry-After": str(RETRY_AFTER_SECONDS)})

    async def version(request: Request) -> Response:
        return json_response(replies.Version(__version__))

    async def metrics(request: Request) -> Response:
        model = service.model
        tenants = service.by_tenant() if current_caller().is_admin else None
        body = exposition(service.current_metrics(), model.name, model.limits.kv, tenants)
        return Response(body, headers={"Content-Type": CONTENT_TYPE})

    return [
        Route("/livez", livez, methods=["GET"]),
        Route("/readyz", readyz, methods=["GET"]),
        Route("/health", readyz, methods=["GET"]),
        Route("/version", version, methods=["GET"]),
        Route("/metrics", metrics, methods=["GET"]),
    ]
