"""Processes that render a model's chat templates: started, limited in time, replaced when they exceed it.

Owns the process in use and one spare, so that the next conversation after a timeout finds a process ready. Knows frames, not messages.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from ridgeline.errors import EngineDeadError, ModelFormatError, OverloadedError, RequestError
from ridgeline.text.sandbox_frames import FrameError, encoded, framed
from ridgeline.text.sandbox_process import SandboxProcess
from ridgeline.text.tokenizer import MASK

if TYPE_CHECKING:
    import asyncio

Answer = dict[str, Any]
"""Answer of the process to one conversation: a text, or why there is none."""

RENDER_SECONDS: Final = 0.4
"""Wall time of one render. A conversation of 1,000 messages takes some 10 ms."""
START_SECONDS: Final = 10.0
"""Wall time to start a process and compile its templates; 0.2 s is usual."""
QUEUE_SECONDS: Final = 2.0
"""Time for which a conversation waits for those before it."""
QUICK_BYTES: Final = 16 * 1024
"""Bytes of variables, as JSON, that a socket takes at once, and that are made in a moment; of one conversation or some."""
ENDED: Final = "ends its process"
TOO_SLOW: Final = f"needs more than {RENDER_SECONDS:g} s"
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
        self._waiting: deque[_Waiting] = deque()
        """Conversations of the event loop, which the process has not been asked for."""
        self._task: asyncio.Task[None] | None = None
        """Asks for them: those that come while it waits for an answer are the next to be asked for together."""
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
        request = _together([_encoded(template, variables, now)])
        if not self._lock.acquire(timeout=QUEUE_SECONDS):
            raise _busy()
        try:
            answer = self._ask(request)
        finally:
            self._lock.release()
        return _text(answer)

    async def render_from_loop(self, template: str, variables: Mapping[str, Any], now: tuple[int, ...]) -> str | None:
        """The same without a thread; None where that cannot be, as for variables of more than `QUICK_BYTES`.

        Conversations of a moment are asked for together: each frame costs two system calls and two wake-ups. Where they exceed the limit
        of one, each is a thread's, so that every one of them gets an answer of its own.
        """
        import asyncio  # a server has loaded it; `LLM` does without

        request = _encoded(template, variables, now)
        if len(request) > QUICK_BYTES:
            return None
        waiting = _Waiting(request, asyncio.get_running_loop().create_future(), monotonic())
        self._waiting.append(waiting)
        if self._task is None:
            self._task = asyncio.create_task(self._ask_for_waiting())
        answer = await waiting.answer
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
        answers, problem = None, ENDED
        try:
            answers = _answers(self._current.ask(request, RENDER_SECONDS), 1)
        except TimeoutError:
            problem = TOO_SLOW
        finally:
            if answers is None:
                self._replace()
        return answers[0] if answers is not None else {"exceeded": problem}

    async def _ask_for_waiting(self) -> None:
        """Answers those who wait, until nobody does."""
        taken: list[_Waiting] = []
        try:
            while taken := self._take_waiting():
                answers, error = await self._answers_from_loop([each.request for each in taken])
                for each, answer in zip(taken, answers, strict=True):
                    each.end(answer, error)
        except Exception as problem:
            for each in (*taken, *self._waiting):
                each.end(None, problem)
        finally:  # also where the loop ends in the middle of it
            self._task = None
            for each in (*taken, *self._waiting):
                each.answer.cancel()
            self._waiting.clear()

    def _take_waiting(self) -> "list[_Waiting]":
        """The oldest of those who wait, of `QUICK_BYTES` together. Who has gone is left out; who has waited too long is told so."""
        taken, size, now = list[_Waiting](), 0, monotonic()
        while self._waiting and size + len(self._waiting[0].request) <= QUICK_BYTES:
            each = self._waiting.popleft()
            if now - each.since > QUEUE_SECONDS:
                each.end(None, _busy())
            elif not each.answer.done():
                taken.append(each)
                size += len(each.request)
        return taken

    async def _answers_from_loop(self, requests: Sequence[bytes]) -> tuple[Sequence[Answer | None], OverloadedError | None]:
        """An answer each, None for what is a thread's, and the error of all. A thread has the process now, or it is one that has just
        taken another's place, or several have exceeded the limit of one."""
        nothing = [None] * len(requests)
        if not self._lock.acquire(blocking=False):
            return nothing, None
        try:
            if self._closed or not self._current.is_ready:
                return nothing, None
            answers, problem = None, ENDED
            try:
                answers = _answers(await self._current.ask_from_loop(_together(requests), RENDER_SECONDS), len(requests))
            except TimeoutError:
                problem = TOO_SLOW
            except OverloadedError as error:
                return nothing, error
            finally:
                if answers is None:
                    from asyncio import to_thread

                    await to_thread(self._replace)
            if answers is None:
                return ([{"exceeded": problem}] if len(requests) == 1 else nothing), None
            return answers, None
        finally:
            self._lock.release()

    def _replace(self) -> None:
        self._current.end()
        self._current, self._spare = self._spare, TemplateProcess(self._templates)


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A conversation that waits for its text, since a time of `monotonic`. `answer`: None where it is a thread's."""

    request: bytes
    answer: "asyncio.Future[Answer | None]"
    since: float

    def end(self, answer: Answer | None, error: Exception | None = None) -> None:
        """Answers whoever still waits."""
        if self.answer.done():
            return
        if error is None:
            self.answer.set_result(answer)
        else:
            self.answer.set_exception(error)


def _encoded(template: str, variables: Mapping[str, Any], now: tuple[int, ...]) -> bytes:
    try:
        return encoded({"template": template, "variables": dict(variables), "now": now})
    except FrameError as error:
        raise _not_framed(error) from None


def _together(requests: Sequence[bytes]) -> bytes:
    """The frame of some conversations."""
    try:
        return framed(b'{"asked": [%b]}' % b", ".join(requests))
    except FrameError as error:
        raise _not_framed(error) from None


def _not_framed(error: FrameError) -> RequestError:
    return _request_error(f"the conversation {error}: send a smaller one", "invalid_value")


def _answers(found: dict[str, Any] | None, count: int) -> list[Answer] | None:
    """The answers in a frame of the process, which may be out of a template's control; None: it ended, or is out of order."""
    answers = None if found is None else found.get("answers")
    if not isinstance(answers, list) or len(answers) != count or not all(isinstance(each, dict) for each in answers):
        return None
    return answers


def _text(answer: Answer) -> str:
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
