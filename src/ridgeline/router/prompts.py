"""What a router reads of a body: how long its prompt is about, the chain of digests of its parts, and what binds it to a replica.

The parts are of the request's text and not of tokens, so that no replica's tokenizer is needed here: equal beginnings of texts are equal
beginnings of prompts, whatever the template. Nothing of a text is kept but digests.
"""

import re
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

import msgspec

PART_BYTES: Final = 512
"""Bytes of text per part of a chain: about the tokens of eight blocks."""
MAX_PARTS: Final = 256
"""Parts that are looked at: what follows 128 kB of equal text is rarely equal too."""
BYTES_PER_TOKEN: Final = 4
"""Of English text, about; loads need no more."""
RESPONSE_ID: Final = re.compile(rb'"id":\s?"(resp_[A-Za-z0-9_-]{1,64})"')
RESPONSE_PATH: Final = re.compile(r"/v1/responses/(resp_[A-Za-z0-9_-]{1,64})(?:/|$)")


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


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a router knows of a prompt. `bound_to`: the stored response that it continues or asks for, b"" for none."""

    tokens: int
    chain: tuple[bytes, ...]
    bound_to: bytes = b""


_decode: Final = msgspec.json.Decoder(Asked).decode


def read_prompt(path: str, body: bytes, domain: bytes) -> Prompt:
    """The prompt of a body; of one that is no JSON object, nothing. Requests of different `domain` share no prefix."""
    found = RESPONSE_PATH.match(path)
    bound_to = found[1].encode() if found else b""
    try:
        asked = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Prompt(len(body) // BYTES_PER_TOKEN, (), bound_to)
    if isinstance(asked.previous_response_id, str):
        bound_to = asked.previous_response_id.encode()[:128]
    text = b"".join((asked.tools, asked.system, asked.instructions, asked.prompt, asked.messages, asked.input))
    parent, chain = blake2b(domain + b"\0" + bytes(asked.model), digest_size=16).digest(), []
    for begin in range(0, min(len(text), PART_BYTES * MAX_PARTS) - PART_BYTES + 1, PART_BYTES):
        parent = blake2b(parent + text[begin : begin + PART_BYTES], digest_size=16).digest()
        chain.append(parent)
    return Prompt(len(text) // BYTES_PER_TOKEN, tuple(chain), bound_to)
