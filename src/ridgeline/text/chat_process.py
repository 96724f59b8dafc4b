"""Processes that render a model's chat templates: started, limited in time, replaced when they exceed it.

Owns the process in use and one spare, so that the next conversation after a timeout finds a process ready. Knows frames, not messages.
"""

import os
import select
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Any, Final

from ridgeline.config.env import child_environment
from ridgeline.errors import EngineDeadError, ModelFormatError, OverloadedError, RequestError
from ridgeline.text.chat_frames import FrameError, frame, receive, send
from ridgeline.text.tokenizer import MASK

RENDER_SECONDS: Final = 0.4
"""Wall time of one render. A conversation of 1,000 messages takes some 10 ms."""
MIN_CPU_SECONDS: Final = 0.05
STALL_SECONDS: Final = 2.0
"""A render that has used less CPU time than the first was not scheduled by the system: it may take up to the second in wall time."""
START_SECONDS: Final = 10.0
"""Wall time to start a process and compile its templates; 0.2 s is usual."""
QUEUE_SECONDS: Final = 2.0
"""Time for which a conversation waits for those before it."""
MAX_REASON: Final = 200


class TemplateProcess:
    """One process with compiled templates. Not for two threads at a time."""

    def __init__(self, templates: Mapping[str, str]) -> None:
        self._stream, child_stream = socket.socketpair()
        self._description: dict[str, Any] | None = None
        self._started = monotonic()
        try:
            self._process = subprocess.Popen(
                # -P: the working directory is no place to import from.
                [sys.executable, "-P", "-m", "ridgeline.text.chat_sandbox", str(child_stream.fileno())],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                pass_fds=(child_stream.fileno(),), env=child_environment(),
                process_group=0,  # Ctrl-C in the terminal is the parent's alone.
            )  # fmt: skip
        except BaseException:
            self._stream.close()
            raise
        finally:
            child_stream.close()
        with suppress(OSError):  # `ready` raises then
            send(self._stream, frame({"templates": dict(templates), "mask": MASK}), self._started + START_SECONDS)

    @property
    def pid(self) -> int:
        return self._process.pid

    def ready(self) -> dict[str, Any]:
        """Waits until the templates are compiled; returns their description. Raises `ModelFormatError` where they cannot be compiled."""
        if self._description is None:
            try:
                # A spare process may be older than that: its answer has come and only needs to be read.
                self._description = receive(self._stream, max(self._started + START_SECONDS, monotonic() + RENDER_SECONDS))
            except TimeoutError:
                raise ModelFormatError(f"the chat template is not compiled after {START_SECONDS:g} s") from None
            except (OSError, FrameError):
                self._description = None
            if self._description is None:
                raise ModelFormatError("the process that compiles the chat template ended")
        if "failed" in self._description:
            raise ModelFormatError(f"the chat template does not compile: {shorten(self._description['failed'])}")
        return self._description

    def ask(self, request: bytes) -> dict[str, Any] | None:
        """The answer to a frame; None where the process ended. Raises `TimeoutError` after `RENDER_SECONDS`, `OverloadedError` after
        `STALL_SECONDS`."""
        start, used = monotonic(), self._cpu_seconds()
        try:
            send(self._stream, request, start + STALL_SECONDS)
            timeout = RENDER_SECONDS
            while not self._answers_within(timeout):
                if self._cpu_seconds() - used >= MIN_CPU_SECONDS:
                    raise TimeoutError
                if monotonic() - start >= STALL_SECONDS:
                    raise OverloadedError(f"the machine is too busy to render a conversation within {STALL_SECONDS:g} s: try again", 1)
                timeout = MIN_CPU_SECONDS
            return receive(self._stream, start + STALL_SECONDS)
        except (BrokenPipeError, ConnectionResetError, FrameError):
            return None

    def end(self) -> None:
        """Kills the process and reaps it."""
        self._stream.close()
        self._process.kill()
        self._process.wait()

    def _answers_within(self, seconds: float) -> bool:
        poll = select.poll()
        poll.register(self._stream, select.POLLIN)
        return bool(poll.poll(seconds * 1_000))

    def _cpu_seconds(self) -> float:
        """CPU time that the process has used; wall time where the system does not say."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return monotonic()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Renderer:
    """Renders with one process at a time, from any thread."""

    def __init__(self, templates: Mapping[str, str]) -> None:
        """Waits until the templates are compiled. Raises `ModelFormatError` where they cannot be."""
        self._templates = templates
        self._lock = Lock()
        self._closed = False
        self._current = TemplateProcess(templates)
        try:
            self.variables: frozenset[str] = frozenset(self._current.ready()["variables"])
            self._spare = TemplateProcess(templates)
        except BaseException:
            self._current.end()
            raise

    def render(self, template: str, variables: Mapping[str, Any], now: tuple[int, ...]) -> str:
        """The text. Raises `RequestError` where the template fails or exceeds its limits, `OverloadedError` where many wait."""
        try:
            request = frame({"template": template, "variables": dict(variables), "now": now})
        except FrameError as error:
            raise _request_error(f"the conversation {error}: send a smaller one", "invalid_value") from None
        if not self._lock.acquire(timeout=QUEUE_SECONDS):
            raise OverloadedError(f"other conversations have kept the chat template busy for {QUEUE_SECONDS:g} s: try again", 1)
        try:
            answer = self._ask(request)
        finally:
            self._lock.release()
        if "text" in answer:
            return str(answer["text"])
        if "rejected" in answer:
            raise _request_error(shorten(answer["rejected"]), "template_refused")
        if "exceeded" in answer:
            problem = f"the chat template {answer['exceeded']} for these messages"
            raise _request_error(f"{problem}: send fewer or shorter ones", "template_budget")
        raise _request_error(f"the chat template cannot render these messages: {shorten(answer['failed'])}", "template_failed")

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
            self._current.ready()
        except ModelFormatError as error:
            self._replace()
            raise OverloadedError(f"{error}: try again", 1) from None
        answer, problem = None, "ends its process"
        try:
            answer = self._current.ask(request)
        except TimeoutError:
            problem = f"needs more than {RENDER_SECONDS:g} s"
        finally:
            if answer is None:
                self._replace()
        return answer or {"exceeded": problem}

    def _replace(self) -> None:
        self._current.end()
        self._current, self._spare = self._spare, TemplateProcess(self._templates)


def shorten(value: object) -> str:
    """A template's text for an error message: printable, at most 200 characters."""
    text = "".join(letter if letter.isprintable() else " " for letter in str(value))
    return text if len(text) <= MAX_REASON else f"{text[: MAX_REASON - 1]}…"


def _request_error(message: str, code: str) -> RequestError:
    return RequestError(message, param="messages", code=code)
