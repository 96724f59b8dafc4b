"""The ASGI application: request id, pages of other origins, error handling, access check, router.

Owns the order of these layers. Endpoints live one file per family; the service that they share is passed in. `server.run` runs it.
"""

import re
import secrets
from typing import Final

from starlette.exceptions import HTTPException
from starlette.routing import Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ridgeline.server import chat, completions, models, openapi, page, status
from ridgeline.server.auth import AccessGuard
from ridgeline.server.errors import ApiError, as_api_error
from ridgeline.server.origins import CrossOrigin, parse_origins
from ridgeline.server.service import Service
from ridgeline.server.transport import BODY_SEND_KEY, Disconnected

REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._:-]{1,64}")
"""Ids that a client may give its request; anything else is replaced, never echoed."""


def build_app(service: Service) -> ASGIApp:
    """The whole application over `service`, which may still be loading."""
    router = Router(
        [
            *page.routes(), *status.routes(service), *openapi.routes(service),
            *models.routes(service), *completions.routes(service), *chat.routes(service),
        ],
        redirect_slashes=False,
    )  # fmt: skip
    origins = parse_origins(service.config.allowed_origins)
    app: ASGIApp = ErrorHandler(AccessGuard(router, service.config.host, service.keys, origins))
    return RequestId(CrossOrigin(app, origins) if origins else app)


class ErrorHandler:
    """Turns exceptions of the layers below into answers of the catalogue, unless an answer has started."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self  # The router raises instead of answering in plain text where it finds an "app".
        has_started = False

        async def send_and_note(message: Message) -> None:
            nonlocal has_started
            has_started = has_started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, send_and_note)
        except Disconnected:
            return
        except HTTPException as error:
            await _routing_error(error, scope).response()(scope, receive, send)
        except Exception as error:
            answer = as_api_error(error)
            if not has_started:
                await answer.response()(scope, receive, send)


def _routing_error(error: HTTPException, scope: Scope) -> ApiError:
    if error.status_code == 405:
        return ApiError("method_not_allowed", f"{scope['method']} is not allowed here", headers=error.headers)
    return ApiError("not_found", "there is nothing at this path")


class RequestId:
    """Gives every answer an `X-Request-Id`: the client's, where it sent a harmless one, or a new one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
        request_id = given if REQUEST_ID.fullmatch(given) else secrets.token_hex(16).encode()
        scope[BODY_SEND_KEY] = send

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-request-id", request_id)]
            await send(message)

        await self._app(scope, receive, send_with_id)
