"""The page at `/`: one document, assembled from `ui/`, under a policy that lets it load nothing and talk to this server alone."""

import base64
import hashlib
from importlib.resources import files
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

SCRIPTS: Final = ("api.js", "tokens.js", "sampling.js", "answer.js", "chat.js", "complete.js", "app.js")
"""In the order in which they need each other."""


def routes() -> list[BaseRoute]:
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

    return [Route("/", page, methods=["GET"])]


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
