"""From the bytes of a body to a typed value: strict JSON, bounded depth, and errors that name the field.

Owns how bodies are read. Never says which fields exist (`server.wire`) nor what they may hold.
"""

from typing import Final, TypeVar

import msgspec

from ridgeline.server.errors import ApiError

JSON_DEPTH: Final = 32

_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_ROUND_TO_SQUARE: Final = bytes.maketrans(b"{}", b"[]")

Body = TypeVar("Body")


def parse(shape: type[Body], body: bytes) -> Body:
    """The body as `shape`. Raises ApiError that names the field; its text holds types and places, never what the client sent."""
    try:
        parsed = msgspec.json.decode(body, type=shape)
        if deeper_than(body, JSON_DEPTH):
            raise ApiError("json_too_deep", f"the body nests deeper than {JSON_DEPTH} levels; flatten it")
        return parsed
    except RecursionError:
        raise ApiError("json_too_deep", f"the body nests deeper than {JSON_DEPTH} levels; flatten it") from None
    except msgspec.ValidationError as error:
        raise _wrong_type(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        place = str(error) if isinstance(error, msgspec.DecodeError) else "it is not UTF-8"
        raise ApiError("invalid_json", f"the body is not valid JSON: {place}") from None


def deeper_than(body: bytes, levels: int) -> bool:
    """Whether well-formed JSON nests deeper than `levels`. Strings are dropped first; each round then closes the innermost level."""
    outside = b"".join(body.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')[::2])
    brackets = outside.translate(_ROUND_TO_SQUARE, _NO_BRACKETS)
    for _ in range(levels):
        brackets = brackets.replace(b"[]", b"")
    return bool(brackets)


def _wrong_type(message: str) -> ApiError:
    """`Expected X, got Y - at $.field[0]` → an answer that names the field."""
    text, _, path = message.partition(" - at `$")
    place = path.rstrip("`").lstrip(".")
    param = place.partition("[")[0].partition(".")[0] or None
    where = f"{place}: " if place else "the body: "
    return ApiError("invalid_type", f"{where}{text[:1].lower()}{text[1:].replace('`', '')}", param=param)
