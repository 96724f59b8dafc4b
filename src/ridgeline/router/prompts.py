"""The part of a body that a router reads: how long its prompt is about, the digests of its parts, its model, and what binds it to a
replica.

The parts are of the request's text and not of tokens, so that no replica's tokenizer is needed here: equal beginnings of texts are equal
beginnings of prompts, whatever the template. Nothing of a text is kept but digests.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import msgspec

from ridgeline.errors import ConfigError

PART_BYTES: Final = 512
"""Bytes of text per part of a chain: about the tokens of eight blocks."""
MAX_PARTS: Final = 256
"""Parts that are looked at: what follows 128 kB of equal text is rarely equal too."""
BYTES_PER_TOKEN: Final = 4
"""Bytes per token of English text, about; loads need no more."""
MAX_NAME_BYTES: Final = 512
"""Bytes of a model's name, with its quotes."""
TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}")
"""Names of headers and cookies."""
RESPONSE_ID: Final = re.compile(r"resp_[0-9a-f]{32}")
RESPONSES_PATH: Final = "/v1/responses"
REFERENCE: Final = b'"item_reference"'
MAX_REFERENCE_BYTES: Final = 256
ITEM_ID: Final = re.compile(rb'"id"\s*:\s*"[a-z]+_([0-9a-f]{32})[0-9a-f]{4}"')
"""An item's id has that of its answer."""


class Asked(msgspec.Struct, frozen=True):
    """Fields of a body, of all dialects, in the order in which templates write them."""

    model: msgspec.Raw = msgspec.Raw()
    tools: msgspec.Raw = msgspec.Raw()
    system: msgspec.Raw = msgspec.Raw()
    instructions: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()
    messages: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()
    previous_response_id: Any = None
    prompt_cache_key: Any = None
    user: Any = None
    safety_identifier: Any = None
    metadata: Any = None


Headers = Sequence[tuple[bytes, bytes]]


class Prompt(NamedTuple):
    """A prompt as a router knows it. `bound_to`: the stored response that it continues or asks for, b"" for none; `session`: digest of
    what it has in common with others of its session, b"" without one; `model`: by the name that was asked for; `ids`: where the router
    tokenises; `scope`: digest of the tenant, model and salt within which prefixes are shared."""

    tokens: int
    chain: tuple[bytes, ...]
    bound_to: bytes = b""
    session: bytes = b""
    model: str = ""
    ids: Sequence[int] = ()
    scope: bytes = b""


_decode: Final = msgspec.json.Decoder(Asked).decode


SESSION_FIELDS: Final = ("prompt_cache_key", "user", "safety_identifier")
"""Fields of OpenAI's dialect; Anthropic's is `metadata.user_id`, and is meant by `user` too."""


@dataclass(frozen=True, slots=True)
class Sessions:
    """Places where requests say which session they belong to, the first that is there counts: header:NAME, cookie:NAME, or a field of the
    body."""

    sources: tuple[str, ...] = ()

    @staticmethod
    def parse(texts: Sequence[str]) -> "Sessions":
        """Raises ConfigError for what is no source."""
        for text in texts:
            kind, _, name = text.partition(":")
            if not (text in SESSION_FIELDS or (kind in ("header", "cookie") and TOKEN.fullmatch(name))):
                known = ", ".join(("header:NAME", "cookie:NAME", *SESSION_FIELDS))
                raise ConfigError(f"--session-affinity {text!r:.80} is none of {known}", fix={"--session-affinity": "header:x-session-id"})
        return Sessions(tuple(text.lower() if text.startswith("header:") else text for text in texts))

    def find(self, headers: Headers, asked: Asked | None, domain: bytes) -> bytes:
        """The digest of a request's session; b"" for none. Requests of different `domain` share none."""
        for source in self.sources:
            kind, _, name = source.partition(":")
            if not name:
                value = _field(asked, kind)
            elif kind == "header":
                value = next((each for key, each in headers if key == name.encode()), b"")
            else:
                value = _cookie(headers, name.encode())
            if value:
                return blake2b(b"\0".join((domain, source.encode(), value)), digest_size=16).digest()
        return b""


NO_SESSIONS: Final = Sessions()


def _field(asked: Asked | None, name: str) -> bytes:
    value = None if asked is None else getattr(asked, name)
    if name == "user" and value is None and asked is not None and isinstance(asked.metadata, dict):
        value = asked.metadata.get("user_id")
    return value.encode() if isinstance(value, str) else b""


def _cookie(headers: Headers, name: bytes) -> bytes:
    pairs = (pair.strip().partition(b"=") for key, value in headers if key == b"cookie" for pair in value.split(b";"))
    return next((value for key, _, value in pairs if key == name), b"")


def _response(given: Any) -> bytes:
    """The id of a stored answer; b"" for what is none."""
    return given.encode() if isinstance(given, str) and RESPONSE_ID.fullmatch(given) else b""


def _referred(text: bytes) -> bytes:
    """The id of the answer whose item a conversation refers to, of several the last one's."""
    if (at := text.rfind(REFERENCE)) < 0:
        return b""
    begin, end = text.rfind(b"{", max(0, at - MAX_REFERENCE_BYTES), at), text.find(b"}", at, at + MAX_REFERENCE_BYTES)
    found = ITEM_ID.search(text, begin, end) if 0 <= begin < end else None
    return b"" if found is None else b"resp_" + found[1]


def read_prompt(path: str, body: bytes, domain: bytes, headers: Headers = (), sessions: Sessions = NO_SESSIONS) -> Prompt:
    """The prompt of a body; of one that is no JSON object, nothing. Requests of different `domain` share no prefix and no session."""
    bound_to = _response(path.removeprefix(RESPONSES_PATH).lstrip("/").partition("/")[0]) if path.startswith(RESPONSES_PATH) else b""
    try:
        asked = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Prompt(len(body) // BYTES_PER_TOKEN, (), bound_to, sessions.find(headers, None, domain))
    if path.startswith(RESPONSES_PATH):
        bound_to = bound_to or _response(asked.previous_response_id) or _referred(bytes(asked.input))
    text = b"".join((asked.tools, asked.system, asked.instructions, asked.prompt, asked.messages, asked.input))
    parent, chain = blake2b(domain + b"\0" + bytes(asked.model), digest_size=16).digest(), []
    for begin in range(0, min(len(text), PART_BYTES * MAX_PARTS) - PART_BYTES + 1, PART_BYTES):
        parent = blake2b(parent + text[begin : begin + PART_BYTES], digest_size=16).digest()
        chain.append(parent)
    model = bytes(asked.model)[1:-1] if len(bytes(asked.model)) <= MAX_NAME_BYTES else b""
    session = sessions.find(headers, asked, domain) if sessions.sources else b""
    return Prompt(len(text) // BYTES_PER_TOKEN, tuple(chain), bound_to, session, model.decode("utf-8", "replace"))
