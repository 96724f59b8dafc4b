"""Processes that render a model's chat templates: started, limited in time, replaced when they exceed it.

Owns the process in use and one spare, so that the next conversation after a timeout finds a process ready. Knows frames, not messages.
"""

from collections.abc import Mapping
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from ridgeline.errors import EngineDeadError, ModelFormatError, OverloadedError, RequestError
from ridgeline.text.sandbox_frames import FrameError, frame
from ridgeline.text.sandbox_process import SandboxProcess
from ridgeline.text.tokenizer import MASK

if TYPE_CHECKING:
    from asyncio import Lock as AsyncLock

RENDER_SECONDS: Final = 0.4
"""Wall time of one render. A conversation of 1,000 messages takes some 10 ms."""
START_SECONDS: Final = 10.0
"""Wall time to start a process and compile its templates; 0.2 s is usual."""
QUEUE_SECONDS: Final = 2.0
"""Time for which a conversation waits for those before it."""
QUICK_BYTES: Final = 16 * 1024
"""Bytes of variables, as JSON, that a socket takes at once, and that are made in a moment."""
MAX_REASON: Final = 200


class TemplateProcess(SandboxProcess):
    """One process with compiled templates. Not for two threads at a time."""

    def __init__(self, templates: Mapping[str, str]) -> None:
        super().__init__("ridgeline.text.chat_sandbox", {"templates": dict(templates), "mask": MASK}, START_SECONDS)

    def description(self) -> dict[str, Any]:
        """Waits until the templates are compiled; returns their description. Raises `ModelFormatError` where they cannot be compiled."""
        try:
            found = self.ready(RENDER_SECONDS)
        except TimeoutError:
            raise ModelFormatError(f"the chat template is not compiled after {START_SECONDS:g} s") from None
        if found is None:
            raise ModelFormatError("the process that compiles the chat template ended")
        if "failed" in found:
            raise ModelFormatError(f"the chat template does not compile: {shorten(found['failed'])}")
        return found


class Renderer:
    """Renders with one process at a time, from any thread."""

    def __init__(self, templates: Mapping[str, str]) -> None:
        """Waits until the templates are compiled. Raises `ModelFormatError` where they cannot be."""
        self._templates = templates
        self._lock = Lock()
        self._turn: AsyncLock | None = None
        """Order of those who render from the event loop: one of them has the lock above, the others wait without a thread."""
        self._closed = False
        self._current = TemplateProcess(templates)
        try:
            self.variables: frozenset[str] = frozenset(self._current.description()["variables"])
            self._spare = TemplateProcess(templates)
        except BaseException:
            self._current.end()
            raise

    def render(self, template: str, variables: Mapping[str, Any], now: tuple[int, ...]) -> str:
        """The text. Raises `RequestError` where the template fails or exceeds its limits, `OverloadedError` where many wait."""
        request = _framed(template, variables, now)
        if not self._lock.acquire(timeout=QUEUE_SECONDS):
            raise _busy()
        try:
            answer = self._ask(request)
        finally:
            self._lock.release()
        return _text(answer)

    async def render_from_loop(self, template: str, variables: Mapping[str, Any], now: tuple[int, ...]) -> str | None:
        """The same without a thread; None where that cannot be, as for variables of more than `QUICK_BYTES`."""
        import asyncio  # a server has loaded it; `LLM` does without

        request = _framed(template, variables, now)
        if len(request) > QUICK_BYTES:
            return None
        if self._turn is None:
            self._turn = asyncio.Lock()
        try:
            async with asyncio.timeout(QUEUE_SECONDS):
                await self._turn.acquire()
        except TimeoutError:
            raise _busy() from None
        try:
            if not self._lock.acquire(blocking=False):
                return None
            try:
                answer = await self._ask_from_loop(request)
            finally:
                self._lock.release()
        finally:
            self._turn.release()
        return None if answer is None else _text(answer)

    def close(self) -> None:
        """Ends both processes. Safe to call twice."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._current.end()
                self._spare.end()

    def _ask(self, request: bytes) -> dict[str, Any]:
        if self._closed:
            raise EngineDeadError("the chat template's process has been closed: the model is no longer served")
        try:
            self._current.description()
        except ModelFormatError as error:
            self._replace()
            raise OverloadedError(f"{error}: try again", 1) from None
        answer, problem = None, "ends its process"
        try:
            answer = self._current.ask(request, RENDER_SECONDS)
        except TimeoutError:
            problem = f"needs more than {RENDER_SECONDS:g} s"
        finally:
            if answer is None:
                self._replace()
        return answer or {"exceeded": problem}

    async def _ask_from_loop(self, request: bytes) -> dict[str, Any] | None:
        """None: the process is about to be replaced, or has been, which takes a thread."""
        if self._closed or not self._current.is_ready:
            return None
        answer, is_over = None, False
        try:
            answer = await self._current.ask_from_loop(request, RENDER_SECONDS)
            is_over = answer is not None
        except TimeoutError:
            return {"exceeded": f"needs more than {RENDER_SECONDS:g} s"}
        finally:
            if not is_over:
                from asyncio import to_thread

                await to_thread(self._replace)
        return answer or {"exceeded": "ends its process"}

    def _replace(self) -> None:
        self._current.end()
        self._current, self._spare = self._spare, TemplateProcess(self._templates)


def _framed(template: str, variables: Mapping[str, Any], now: tuple[int, ...]) -> bytes:
    try:
        return frame({"template": template, "variables": dict(variables), "now": now})
    except FrameError as error:
        raise _request_error(f"the conversation {error}: send a smaller one", "invalid_value") from None


def _text(answer: Mapping[str, Any]) -> str:
    """The text of an answer of the process. Raises `RequestError` for one without."""
    if "text" in answer:
        return str(answer["text"])
    if "rejected" in answer:
        raise _request_error(shorten(answer["rejected"]), "template_refused")
    if "exceeded" in answer:
        problem = f"the chat template {answer['exceeded']} for these messages"
        raise _request_error(f"{problem}: send fewer or shorter ones", "template_budget")
    raise _request_error(f"the chat template cannot render these messages: {shorten(answer['failed'])}", "template_failed")


def _busy() -> OverloadedError:
    return OverloadedError(f"other conversations have kept the chat template busy for {QUEUE_SECONDS:g} s: try again", 1)


def shorten(value: object) -> str:
    """A template's text for an error message: printable, at most 200 characters."""
    text = "".join(letter if letter.isprintable() else " " for letter in str(value))
    return text if len(text) <= MAX_REASON else f"{text[: MAX_REASON - 1]}…"


def _request_error(message: str, code: str) -> RequestError:
    return RequestError(message, param="messages", code=code)
