"""The page at `/`: one document, assembled from `ui/`, under a policy that lets it load nothing and talk to this server alone."""

import base64
import hashlib
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route


def routes() -> list[BaseRoute]:
    """The route of the page. The document is fixed at start; scripts and styles are allowed by their hashes."""
    ui = files("ridgeline.server") / "ui"
    style, script = (ui / "style.css").read_text(), (ui / "app.js").read_text()
    document = (ui / "index.html").read_text().replace("/*style*/", style).replace("/*script*/", script).encode()
    headers = {
        "Content-Security-Policy": (
            f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; connect-src 'self'; img-src data:; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        ),
        "Content-Type": "text/html; charset=utf-8",
        "Cache-Control": "no-cache",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }

    async def page(request: Request) -> Response:
        return Response(document, headers=headers)

    return [Route("/", page, methods=["GET"])]


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
