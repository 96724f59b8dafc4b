"""Routes for browsers, operators and load balancers: the page at `/`, liveness, readiness, version, metrics.

Owns the policy of the page: one document, assembled from `ui/`, that loads nothing and talks to this server alone.
"""

import base64
import hashlib
from importlib.resources import files
from typing import Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from ridgeline import __version__
from ridgeline.observe.prometheus import CONTENT_TYPE, exposition
from ridgeline.server import replies
from ridgeline.server.errors import RETRY_AFTER_SECONDS, ApiError
from ridgeline.server.service import Service
from ridgeline.server.transport import json_response

SCRIPTS: Final = ("api.js", "tokens.js", "sampling.js", "answer.js", "chat.js", "complete.js", "app.js")
"""Ordered so that each comes after those it uses."""


def routes(service: Service) -> list[BaseRoute]:
    """The routes of this family."""

    async def livez(request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(request: Request) -> Response:
        """200 exactly when a request would be taken; also under vLLM's name `/health`."""
        if service.is_ready:
            return PlainTextResponse("ok\n")
        raise ApiError("engine_unavailable", f"not ready: {service.not_ready_reason()}", headers={"Retry-After": str(RETRY_AFTER_SECONDS)})

    async def version(request: Request) -> Response:
        return json_response(replies.Version(__version__))

    async def metrics(request: Request) -> Response:
        model = service.model
        body = exposition(service.current_metrics(), model.name, model.limits.kv)
        return Response(body, headers={"Content-Type": CONTENT_TYPE})

    return [
        _page(),
        Route("/livez", livez, methods=["GET"]),
        Route("/readyz", readyz, methods=["GET"]),
        Route("/health", readyz, methods=["GET"]),
        Route("/version", version, methods=["GET"]),
        Route("/metrics", metrics, methods=["GET"]),
    ]


def _page() -> Route:
    """The route of the page. The document is fixed at start; scripts and styles are allowed by their hashes."""
    ui = files("ridgeline.server") / "ui"
    style, scripts = (ui / "style.css").read_text(), [(ui / name).read_text() for name in SCRIPTS]
    document = (ui / "index.html").read_text().replace("<!--styles-->", f"<style>{style}</style>")
    document = document.replace("<!--scripts-->", "\n".join(f"<script>{script}</script>" for script in scripts))
    allowed = " ".join(f"'{_hash(script)}'" for script in scripts)
    headers = {
        "Content-Security-Policy": (
            f"default-src 'none'; style-src '{_hash(style)}'; script-src {allowed}; "
            "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        ),
        "Content-Type": "text/html; charset=utf-8",
        "Cache-Control": "no-cache",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }

    async def page(request: Request) -> Response:
        return Response(document, headers=headers)

    return Route("/", page, methods=["GET"])


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
