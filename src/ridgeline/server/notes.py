"""Notes on what an answer does not follow of its request: ignored fields and folded roles, in headers and in the log.

Owns the two headers, what a name in them may look like, and the guess at what was meant by an unknown one. A client that sends the same in
every request is told in every answer; the log has each field and each fold once.
"""

import logging
import re
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Final

log = logging.getLogger("ridgeline.server")

IGNORED_FIELDS, FOLDED_ROLES = "x-ridgeline-ignored-fields", "x-ridgeline-folded-roles"
MAX_TOLD: Final = 16
_TELLABLE: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
"""Names that may stand in headers and in the log."""
_SIMILARITY: Final = 0.8
MAX_GUESSES: Final = 4
"""Names of one request that are compared with the known ones, some 0.3 ms each."""
MAX_LOGGED: Final = 1_024
"""Names that are remembered, so that they are not logged again."""
_logged: dict[str, None] = {}


@dataclass(slots=True)
class Notes:
    """Notes about one request. Names may have any content, as clients send them.

    ignored  field → why it has no effect; "": it is unknown
    folded   roles of messages that the template is told in another role or turn
    known    names that an unknown field may have been meant as
    client   whose request it is (`transport.client_of`)
    arrived  when the request had been read: time to first token counts from here, the prompt's rendering and tokenising included
    encoding, rendered, tokenised  when the making of ids began, when a template's text was there (None: no template), when prompts were ids
    grammar_seconds  in which its grammar was compiled
    headers  of the answer, beside those about what it does not follow
    """

    ignored: dict[str, str] = field(default_factory=dict)
    folded: list[str] = field(default_factory=list)
    known: Collection[str] = ()
    client: bytes = b""
    arrived: float = field(default_factory=time.monotonic)
    encoding: float | None = None
    rendered: float | None = None
    tokenised: float | None = None
    grammar_seconds: float = 0.0
    headers: dict[str, str] = field(default_factory=dict)

    def note_rendered(self) -> None:
        """A template has rendered its text."""
        self.rendered = time.monotonic()

    def ignore(self, name: str, why: str = "") -> None:
        """Notes that a field has no effect on the answer."""
        self.ignored.setdefault(name, why)

    def tell(self) -> dict[str, str]:
        """The headers of the answer; logs what is new in them."""
        headers = dict(self.headers)
        if self.ignored:
            told = [name for name in self.ignored if _TELLABLE.fullmatch(name)][:MAX_TOLD]
            headers[IGNORED_FIELDS] = ", ".join(told)
            self._log_ignored(told)
        if folded := ", ".join(role for role in self.folded[:MAX_TOLD] if _TELLABLE.fullmatch(role)):
            headers[FOLDED_ROLES] = folded
            if _new([f"folded {folded}"]):
                log.info("messages are folded where this model's chat template refuses or drops them as they are: %s", folded)
        return headers

    def _log_ignored(self, told: list[str]) -> None:
        new = _new(told)
        lines = [f"{name} ({self.ignored[name] or self._guess(name, at)})" for at, name in enumerate(new)]
        if others := len(self.ignored) - len(told):
            lines += _new([f"{others} further names"])
        if lines:
            log.info("fields of a request are ignored: %s", ", ".join(lines))

    def _guess(self, name: str, at: int) -> str:
        found = get_close_matches(name, self.known, 1, _SIMILARITY) if at < MAX_GUESSES else []
        return f"unknown, did you mean {found[0]}?" if found else "unknown"


def _new(names: Iterable[str]) -> list[str]:
    """Those that have not been logged yet; from now on they have."""
    new = [name for name in names if name not in _logged]
    for name in new:
        if len(_logged) >= MAX_LOGGED:
            del _logged[next(iter(_logged))]
        _logged[name] = None
    return new
