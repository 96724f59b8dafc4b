"""Exception types of all packages, and findings, which raise nothing. Those that a user can cause say the cause, the number and the fix."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

RETRY_AFTER_SECONDS: Final = 2
"""Seconds behind which to try again while the engine starts or restarts and nothing better is known."""


class RidgelineError(Exception):
    """Base of errors caused by input, not by a bug.

    fix  flag → value with which the same command may work; None: without the flag. "MODEL" is the model's name. What is no flag is a word
         of the command line as it was given
    """

    def __init__(self, message: str = "", *, fix: Mapping[str, str | None] | None = None) -> None:
        super().__init__(message)
        self.fix = dict(fix or {})


class ModelFormatError(RidgelineError):
    """A model file is malformed, truncated, malicious or unsupported."""


class ModelNotFoundError(RidgelineError):
    """There is no file for a model name."""


class ConfigError(RidgelineError):
    """A flag or a combination of flags cannot work on this machine or with this model."""


class RequestError(RidgelineError):
    """A request is rejected with a 4xx and an OpenAI-style body.

    param   offending field        code    stable machine-readable word        status  HTTP status
    """

    def __init__(self, message: str, *, param: str | None = None, code: str = "invalid_value", status: int = 400) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.status = status


class OverloadedError(RidgelineError):
    """The queue is full; a retry may succeed after `retry_after_seconds`."""

    def __init__(self, message: str, retry_after_seconds: int) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class EngineDeadError(RidgelineError):
    """The engine process ended while the request was open; the request may be repeated, behind `retry_after_seconds`."""

    def __init__(self, message: str = "", retry_after_seconds: int = RETRY_AFTER_SECONDS) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class LawViolation(RidgelineError):
    """A law of docs/laws.md does not hold: a bug of the engine."""

    def __init__(self, law: int, message: str) -> None:
        super().__init__(f"law {law}: {message}")
        self.law = law


def unwritable(flag: str, path: object, error: OSError) -> ConfigError:
    """The error for a file that a flag names and that cannot be written."""
    return ConfigError(f"{flag} {path}: {error.strerror}; give the path of a file that can be written", fix={flag: None})


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known name that `word` most likely means, whatever its case and separators; None where none is similar."""
    from difflib import get_close_matches  # needed beside an error only

    by_letters = {_letters(name): name for name in known}
    found = get_close_matches(_letters(word), by_letters, 1, cutoff)
    return by_letters[found[0]] if found else None


def _letters(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem of a model, found by a check at load, before the first request.

    severity  error: answers are wrong or impossible; warning: they may be wrong; note: unusual, and as its authors made it
    check     what was checked: header, tokenizer, template, weights, answers
    cause     what is wrong, with its numbers
    fix       what to do
    """

    severity: Literal["error", "warning", "note"]
    check: str
    cause: str
    fix: str

    def __str__(self) -> str:
        return f"{self.check}: {self.cause}: {self.fix}"
