"""Malformed requests, made of the table of routes and of the OpenAPI document: bodies of right and wrong types, bytes that are no JSON,
headers, spellings of paths, and bytes that are hardly HTTP. A request is a function of a seed and its number:

    python tests/helpers/malformed.py SEED NUMBER [http://127.0.0.1:PORT]

prints one and, with an address, what a server answers to it.
"""

import gzip
import json
import random
import re
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from ridgeline.server.openapi import document
from ridgeline.server.routes import ROWS, Row

KEY: Final = "open sesame"


class Raw(str):
    """JSON as it is."""


class Pairs(list[Any]):
    """An object as pairs: names may come twice."""


GOOD: Final[dict[str, tuple[Any, ...]]] = {
    "model": ("fake",),
    "messages": (
        [{"role": "user", "content": "hi"}],
        [{"role": "system", "content": "be brief"}, {"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}, {"role": "user", "content": "3"}],
    ),
    "prompt": ("hello", ["a", "b"], [72, 105], [[72], [105]]),
    "input": ("hello", [{"role": "user", "content": "hi"}]),
    "content": ("hello",),
    "tokens": ([72, 105],),
    "max_tokens": (1, 4, 16),
    "max_output_tokens": (1, 4, 16),
    "stream": (True, False),
    "tools": ([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}], [{"name": "f", "input_schema": {}}]),
    "tool_choice": ("auto", "none", "required"),
    "stop": ("x", ["x", "y"]),
    "response_format": ({"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}),
    "logit_bias": ({"72": 1.5},),
    "stream_options": ({"include_usage": True},),
    "temperature": (0, 0.7),
}
"""Values that are taken, by the name of the field, so that most requests are wrong in one place."""
TEXTS: Final = (
    "", "a", "\u0000", "\ud83e", "\udc00\ud800", "🦊" * 40, "a" * 3_000, "../../etc/passwd", "{{ 7 * 7 }}", "<|im_end|>", "%n%s",
    "\u202e\ufeff", "\r\nX: y",
)  # fmt: skip
NUMBERS: Final = (
    0, -1, 1, 2, 1.5, -0.0, 2**31, 2**31 - 1, -(2**31), 2**53, 2**63, 2**63 - 1, -(2**63), 2**64, -(2**63) - 1, 10**30, 1e308, 5e-324,
    *map(Raw, ("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "9" * 5_000, "0." + "9" * 3_000, "01", "1.", "+1", "0x10", "1e", "--1")),
)  # fmt: skip
ODD: Final = (
    None, True, False, *TEXTS, *NUMBERS, [], {}, [[]], [None], [[1], "a"], [1, "a"], {"a": 1}, [0] * 2_000, ["a"] * 70, [2**40], "NaN", "1",
    Raw("[" * 200 + "]" * 200), Raw("[" * 100_000), Raw('{"a":' * 40 + "1" + "}" * 40), Raw('{"a":' * 100_000), Raw('"\\u12"'),
    Raw('"\\x"'), Raw('"\n"'), Raw("'a'"), Raw("undefined"), Raw("// a\n1"), Raw("[1,]"), Raw('{"a":1,}'), Raw('"' + "\\u0000" * 500 + '"'),
    Pairs([("type", "text"), ("type", "object")]), {"": 1}, {"__proto__": {"a": 1}}, {str(at): 1 for at in range(2_000)},
)  # fmt: skip
UNKNOWN: Final = (
    "zzz", "__class__", "", "a" * 300, "\u0000", "\ud800", "messages ", "Stream", "mirostat", "suffix", "guided_json", "functions",
    "n_probs", "x\r\ny",
)  # fmt: skip
BYTES: Final = (
    b"[" * 100, b'{"a":' * 40, b"1e999", b"\xff\xfe", b"null", b",", b'"', b"9" * 1_000, b"\\u0000", b"\xef\xbb\xbf", b"\x00",
    b"\xed\xa0\x80", b"}" * 9,
)  # fmt: skip
SPELLINGS: Final = (
    "{}/", "/{}", "/.{}", "/x/..{}", "{}%2f", "{};a=b", "{}%00", "{}/../livez", "/livez/..{}", "{}?x=%ff", "{}?{}", "{}#x",
    "http://evil.example{}", "{}%", "{}/%2e%2e/", "\\{}", "{} ", "*", "{}\t", "//evil.example{}", "{}%c0%af", "{}?" + "a" * 9_000,
)  # fmt: skip
HEADERS: Final = (
    (b"Content-Type", b"text/plain"), (b"Content-Type", b"multipart/form-data; boundary=x"), (b"Content-Type", b"\xff"),
    (b"Content-Type", b"application/json; charset=utf-16"), (b"Content-Encoding", b"gzip"), (b"Content-Encoding", b"br, zstd"),
    (b"Accept", b"text/html"), (b"Accept-Encoding", b"gzip"), (b"Expect", b"100-continue"), (b"Expect", b"nonsense"),
    (b"Connection", b"close"), (b"Connection", b"Upgrade"), (b"Upgrade", b"websocket"), (b"Host", b"evil.example"), (b"Host", b"localhost"),
    (b"Origin", b"http://evil.example"), (b"Origin", b"null"), (b"x-api-key", b""), (b"anthropic-version", b"2023-06-01"),
    (b"anthropic-beta", b"\xff" * 50), (b"X-Request-Id", b"a" * 200), (b"X-Request-Id", b"\xff\x80"), (b"X-Long", b"a" * 17_000),
    (b"Cookie", b"a=b; " * 900), (b"Range", b"bytes=0-1"), (b"X-HTTP-Method-Override", b"DELETE"), (b"Transfer-Encoding", b"gzip"),
    (b"Trailer", b"X"), (b"X-Forwarded-For", b"1.2.3.4"),
)  # fmt: skip
METHODS: Final = ("GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PROPFIND", "POST", "post", "G\u00cbT", "X" * 40)


@dataclass(frozen=True, slots=True)
class Request:
    """One request.

    data         its bytes
    is_framed    True: HTTP in which one answer follows, on a connection that may go on
    is_head      the answer has no body
    row          of the table, where the request is meant for one as it is spelled; None: nothing is known of the answer's dialect
    headers      names in lower case
    leaves       the client goes away while it is answered
    """

    data: bytes
    is_framed: bool = True
    is_head: bool = False
    row: Row | None = None
    headers: frozenset[bytes] = field(default_factory=frozenset)
    leaves: bool = False


def encode(value: Any) -> str:
    """JSON with what `json` would not write: raw parts, names twice, half surrogates."""
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, Pairs):
        return "{" + ",".join(f"{json.dumps(name)}:{encode(each)}" for name, each in value) + "}"
    if isinstance(value, dict):
        return encode(Pairs(value.items()))
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(encode, value)) + "]"
    return json.dumps(value)


class Malformed:
    """Requests of one seed."""

    def __init__(self, seed: int, authorization: bytes | None = None) -> None:
        self._seed, self._authorization = seed, authorization
        self._document = document(locked=False)
        rows = [row for row in ROWS if row.summary]
        self._rows = [*(row for row in rows for _ in range(8 if row.request else 1)), next(row for row in ROWS if not row.summary)]

    def request(self, number: int) -> Request:
        """The request of a number."""
        rng = random.Random(f"{self._seed} {number}")
        row = rng.choice(self._rows)
        method, target = row.method, row.path.replace("{name:path}", "fake")
        target = re.sub(r"{\w+(:path)?}", lambda place: rng.choice(["fake", "resp_0", "x" * 300, "%00", "..", "é"]), target)
        headers: list[tuple[bytes, bytes]] = [(row.header, b"2023-06-01")] if row.header else []
        body = self._body(row, rng) if row.request else rng.choice([b"", b"", b"{}"])
        is_known = True
        if rng.random() < 0.06:
            target, is_known = rng.choice(SPELLINGS).replace("{}", target), False
        if rng.random() < 0.05:
            method = rng.choice(METHODS)
        if rng.random() < 0.15:
            more = rng.sample(HEADERS, rng.randint(1, 2))
            is_known = is_known and not any(name in (b"Host", b"Origin", b"anthropic-version") for name, _ in more)
            headers += more
        names = frozenset(name.lower() for name, _ in headers)
        data, is_framed = _http(method, target, headers, body, self._authorization, rng)
        return Request(data, is_framed, method == "HEAD", row if is_known and is_framed else None, names, is_framed and rng.random() < 0.03)

    # ── bodies ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _body(self, row: Row, rng: random.Random) -> bytes:
        """A body of the row: as it should be, or wrong in some places."""
        name = row.request.__name__ if row.request else ""
        body = self._value({"$ref": f"#/components/schemas/{name}"}, "", rng, 0)
        kind = rng.random()
        if kind < 0.65:
            for _ in range(rng.randint(1, 2)):
                body = _mutated(body, rng)
        if rng.random() < 0.002:
            body = {"prompt": "a" * rng.choice([1 << 20, 3 << 20]), "messages": [{"role": "user", "content": "a" * (1 << 20)}]}
        data = encode(body).encode("utf-8", "surrogatepass")
        return _torn(data, rng) if 0.65 <= kind < 0.85 else data

    def _value(self, schema: dict[str, Any], name: str, rng: random.Random, depth: int) -> Any:
        """A value of a schema."""
        if name in GOOD and "Not supported" not in schema.get("description", "") and rng.random() < 0.9:
            return rng.choice(GOOD[name])
        if "$ref" in schema:
            schema = self._document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return rng.choice(schema["enum"])
        if "anyOf" in schema and "properties" not in schema:
            return self._value(rng.choice(schema["anyOf"]), "", rng, depth)
        kind = schema.get("type", "null")
        kind = rng.choice(kind) if isinstance(kind, list) else kind
        if kind == "object":
            return self._object(schema, rng, depth)
        if kind == "array" and "prefixItems" in schema:
            return [self._value(each, "", rng, depth + 1) for each in schema["prefixItems"]]
        if kind == "array":
            least = schema.get("minItems", 0)
            count = rng.randint(least, least + 2) if depth < 6 else 0
            return [self._value(schema.get("items", {}), "", rng, depth + 1) for _ in range(count)]
        if kind in ("integer", "number"):
            low, high = schema.get("minimum", schema.get("exclusiveMinimum", 0)), schema.get("maximum", 100)
            return rng.choice([low, high, int(low) + 1, min(high, 5)])
        return {"string": rng.choice(["a", "hello", "user", "text"]), "boolean": rng.random() < 0.5}.get(kind)

    def _object(self, schema: dict[str, Any], rng: random.Random, depth: int) -> dict[str, Any]:
        properties = schema.get("properties", {})
        wanted = {*schema.get("required", ())}
        others = [each for each in properties if each not in wanted]
        wanted |= {*rng.sample(others, min(len(others), rng.choice([0, 1, 2, 3, 3, 5])))}
        wanted |= {each for each in ("prompt", "messages", "input", "max_tokens") if each in properties and rng.random() < 0.95}
        wanted |= {"stream"} & properties.keys() if rng.random() < 0.3 else set()
        return {each: self._value(properties[each], each, rng, depth + 1) for each in properties if each in wanted} if depth < 6 else {}


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """All (container, name or index) in a value."""
    if isinstance(value, (dict, list)) and not isinstance(value, Pairs):
        names = [*value] if isinstance(value, dict) else [*range(len(value))]
        for name in names:
            yield value, name
            if len(names) < 50:
                yield from _places(value[name])


def _mutated(body: Any, rng: random.Random) -> Any:
    """The body, wrong in one place."""
    body = json.loads(json.dumps(body)) if not _has_raw(body) else body
    places = [*_places(body)]
    if not places or rng.random() < 0.03:
        return rng.choice(ODD)
    container, name = rng.choice(places)
    action = rng.randrange(8)
    if action == 0:
        del container[name]
    elif action == 1 and isinstance(container, dict):
        container[rng.choice(UNKNOWN)] = rng.choice(ODD)
    elif action == 2 and isinstance(container, dict):
        pairs = Pairs([*container.items(), (name, rng.choice(ODD))])
        return pairs if container is body else Pairs([*body.items(), (name, pairs)]) if isinstance(body, dict) else pairs
    elif action == 3:
        size = len(encode(container[name]))
        container[name] = [container[name]] * min(rng.choice([1, 2, 100, 3_000]), max(1, (1 << 21) // size))
    elif action == 4:
        container[name] = {"a": container[name]}
    else:
        container[name] = rng.choice(ODD)
    return body


def _has_raw(value: Any) -> bool:
    if isinstance(value, (Raw, Pairs)):
        return True
    return any(map(_has_raw, value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()))


def _torn(data: bytes, rng: random.Random) -> bytes:
    """Bytes flipped, cut, put in, doubled; another encoding."""
    found = bytearray(data)
    at = rng.randrange(max(1, len(found)))
    action = rng.randrange(8)
    if action == 0:
        del found[at:]
    elif action == 1:
        found[at:at] = rng.choice(BYTES)
    elif action == 2:
        return data + data
    elif action == 3:
        return gzip.compress(data)
    elif action == 4:
        return data.decode("utf-8", "replace").encode(rng.choice(["utf-16", "utf-32", "utf-7", "latin-1"]), "replace")
    elif action == 5:
        return b""
    else:
        for _ in range(rng.randint(1, 8)):
            found[rng.randrange(max(1, len(found)))] = rng.randrange(256)
    return bytes(found)


# ── HTTP ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _http(
    method: str, target: str, headers: list[tuple[bytes, bytes]], body: bytes, authorization: bytes | None, rng: random.Random
) -> tuple[bytes, bool]:
    """The request's bytes, and True if they are HTTP on a connection that may go on."""
    odd = rng.random()
    version = b"HTTP/1.0" if odd < 0.01 else b"HTTP/1.1"
    lines = [method.encode() + b" " + target.encode() + b" " + version, b"Host: localhost"]
    if authorization is not None:
        lines.append(b"Authorization: " + authorization)
    if not any(name == b"Content-Type" for name, _ in headers):
        lines.append(b"Content-Type: application/json")
    lines += [name + b": " + value for name, value in headers]
    breaking = any(name in (b"Transfer-Encoding", b"Upgrade", b"Expect") or value == b"Upgrade" for name, value in headers)
    is_plain = version == b"HTTP/1.1" and not breaking and target.isascii() and not re.search(r"[\s#]", target)
    is_plain = is_plain and method in METHODS[:10] and method != "CONNECT"
    if 0.01 <= odd < 0.06:
        body_lines, body = rng.choice(_FRAMES)(body)
        return b"\r\n".join([*lines, *body_lines]) + b"\r\n\r\n" + body, False
    if 0.06 <= odd < 0.08:
        data = bytearray(b"\r\n".join([*lines, b"Content-Length: %d" % len(body)]) + b"\r\n\r\n")
        data[rng.randrange(len(data))] = rng.randrange(256)
        return bytes(data) + body, False
    if 0.08 <= odd < 0.14:
        head = b"\r\n".join([*lines, b"Transfer-Encoding: chunked"]) + b"\r\n\r\n"
        return head + _chunked(body, rng.choice([1_000, 7, 65_536])), is_plain
    return b"\r\n".join([*lines, b"Content-Length: %d" % len(body)]) + b"\r\n\r\n" + body, is_plain


def _chunked(body: bytes, size: int) -> bytes:
    size = max(size, len(body) // 200 + 1)
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


_FRAMES: Final[tuple[Callable[[bytes], tuple[list[bytes], bytes]], ...]] = (
    lambda body: ([b"Content-Length: %d" % (len(body) + 7)], body),
    lambda body: ([b"Content-Length: %d" % max(0, len(body) - 7)], body),
    lambda body: ([b"Content-Length: 99999999999"], body),
    lambda body: ([b"Content-Length: -1"], body),
    lambda body: ([b"Content-Length: 1e3"], body),
    lambda body: ([b"Content-Length: 18446744073709551617"], body),
    lambda body: ([b"Content-Length: %d" % len(body), b"Content-Length: 1"], body),
    lambda body: ([b"Content-Length: %d" % len(body), b"Transfer-Encoding: chunked"], b"0\r\n\r\n" + body),
    lambda body: ([b"Transfer-Encoding: chunked"], b"zz\r\n" + body + b"\r\n0\r\n\r\n"),
    lambda body: ([b"Transfer-Encoding: chunked"], b"ffffffffffffffff\r\n" + body),
    lambda body: ([b"Transfer-Encoding: chunked"], b"%x\r\n%s\r\n0;" % (len(body), body) + b"x" * 5_000 + b"\r\n\r\n"),
    lambda body: ([b"Transfer-Encoding: chunked, identity"], body),
    lambda body: ([], body),
    lambda body: ([b"X: a"] * 3_000, body),
    lambda body: ([b"X" * 40_000 + b": a"], body),
    lambda body: ([b" folded: a", b"\tb: c"], body),
    lambda body: ([b"X\x00: a", b": a", b"X : a"], body),
)


def main(seed: str, number: str, url: str | None = None) -> None:
    """Prints the request, and what the server says."""
    request = Malformed(int(seed)).request(int(number))
    print(request.data[:4_000])
    if url is not None:
        address = urlsplit(url)
        with socket.create_connection((address.hostname or "127.0.0.1", address.port or 80), timeout=10) as connection:
            connection.sendall(request.data)
            connection.shutdown(socket.SHUT_WR)
            print(b"".join(iter(lambda: connection.recv(65_536), b""))[:8_000])


def path_of(request: Request) -> str:
    """The path as the router sees it."""
    return unquote(request.data.split(b" ", 2)[1].decode("latin-1").partition("?")[0])


if __name__ == "__main__":
    main(*sys.argv[1:])
