"""The pages at `/` and `/dashboard` and the files that it is made of: what browsers get, and the policy under which it runs.

Files are served as they lie in `ui/`: no build, nothing from elsewhere, nothing inline. The policy lets the page load from this server and
talk to it alone, and make no HTML of a text (trusted types without a policy): what a model writes becomes neither script nor request.
"""

import hashlib
from importlib.resources import files
from typing import Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

HTML, CSS, JAVASCRIPT, SVG = "text/html; charset=utf-8", "text/css; charset=utf-8", "text/javascript; charset=utf-8", "image/svg+xml"
SCRIPTS: Final = (
    "answer", "api", "app", "chat", "complete", "dashboard", "dom", "markdown", "message", "sampling", "sidebar", "store", "theme",
    "tokens", "waterfall", "vendor/markdown-it.umd.min",
)  # fmt: skip
FILES: Final = {
    "/": ("index.html", HTML),
    "/dashboard": ("dashboard.html", HTML),
    "/ui/icon.svg": ("icon.svg", SVG),
    **{f"/ui/{name}.css": (f"{name}.css", CSS) for name in ("dashboard", "style", "text", "waterfall")},
    "/ui/report.css": ("report:style.css", CSS),
    "/ui/plot.js": ("report:plot.js", JAVASCRIPT),
    **{f"/ui/{name}.js": (f"{name}.js", JAVASCRIPT) for name in SCRIPTS},
}
"""Path → file in `ui/`, or behind `report:` one of the planner's pages, and its media type. Every one may be read without a key."""
REPORT: Final = "report:"

OLLAMA: Final = "Ollama is running"
"""Text that programs that are no browsers get at `/`: by this text Ollama's know that there is a server that they can speak to."""
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "Cache-Control": "no-cache",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def routes() -> list[BaseRoute]:
    """The routes of the page and of its files, which are read once."""
    return [_route(path, name, kind) for path, (name, kind) in FILES.items()]


def _route(path: str, name: str, media_type: str) -> Route:
    is_report = name.startswith(REPORT)
    folder = files("ridgeline.planning").joinpath("page") if is_report else files("ridgeline.server").joinpath("ui")
    content = folder.joinpath(name.removeprefix(REPORT)).read_bytes()
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {**HEADERS, "Content-Type": media_type, "ETag": tag, "Vary": "Accept"}

    async def answer(request: Request) -> Response:
        if path == "/" and "text/html" not in request.headers.get("accept", ""):
            return PlainTextResponse(OLLAMA, headers={"Vary": "Accept"})
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers)

    return Route(path, answer, methods=["GET"], include_in_schema=media_type == HTML)
