"""Errors that a user can cause. Each says the cause, the number that matters and the fix.

Owns the exception types shared by every wing; never formats HTTP and never logs.
"""

from collections.abc import Mapping


class RidgelineError(Exception):
    """Base of every error that is somebody's input, not our bug.

    fix  flags and the values with which the same command works; None takes the flag away. "MODEL" is the model's name.
    """

    def __init__(self, message: str = "", *, fix: Mapping[str, str | None] | None = None) -> None:
        super().__init__(message)
        self.fix = dict(fix or {})


class ModelFormatError(RidgelineError):
    """A model file is malformed, truncated, hostile or of a kind that is not supported."""


class ModelNotFoundError(RidgelineError):
    """A model name resolves to no file."""


class ConfigError(RidgelineError):
    """A flag or a combination of flags cannot work on this machine or with this model."""


class RequestError(RidgelineError):
    """A request that cannot be accepted: becomes a 4xx with an OpenAI-style body.

    `param` names the offending field, `code` is a stable machine-readable word, `status` the HTTP status.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str = "invalid_value", status: int = 400) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.status = status


class OverloadedError(RidgelineError):
    """The queue is full; `retry_after_seconds` says when a retry may succeed."""

    def __init__(self, message: str, retry_after_seconds: int) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class EngineDeadError(RidgelineError):
    """The engine process ended while the request was open; the request may be sent again."""


class LawViolation(RidgelineError):
    """A law of docs/laws.md does not hold: a bug in the engine, never the user's fault."""

    def __init__(self, law: int, message: str) -> None:
        super().__init__(f"law {law}: {message}")
        self.law = law
