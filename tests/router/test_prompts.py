"""What a router reads of bodies."""

import json

import pytest

from ridgeline.errors import ConfigError
from ridgeline.router.prompts import MAX_PARTS, Sessions, read_prompt

LONG = "Once upon a time there was a router. " * 100


def chain(body: object, domain: bytes = b"") -> tuple[bytes, ...]:
    return read_prompt("/v1/chat/completions", json.dumps(body).encode(), domain).chain


@pytest.mark.parametrize("field", ["prompt", "messages", "input", "system", "instructions"])
def test_equal_beginnings_have_equal_chains(field: str) -> None:
    one, other = chain({field: LONG + "a"}), chain({"max_tokens": 5, field: LONG + "b", "stream": True})
    assert len(one) == len(LONG) // 512 and one == other


def test_tenants_and_models_share_nothing() -> None:
    body = {"prompt": LONG}
    assert not set(chain(body)) & (set(chain(body, b"t")) | set(chain(body | {"model": "m"})))


def test_a_chain_is_bounded() -> None:
    prompt = read_prompt("/v1/completions", json.dumps({"prompt": "x" * (1 << 20)}).encode(), b"")
    assert len(prompt.chain) == MAX_PARTS and prompt.tokens > 1 << 17


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b"\xff\xfe", b'{"prompt": 1', b'{"prompt": ' + b"[" * 100_000])
def test_what_is_no_object_has_no_prompt(body: bytes) -> None:
    assert read_prompt("/v1/completions", body, b"").chain == ()


def test_a_stored_response_binds_the_requests_that_name_it() -> None:
    def bound(body: object, path: str = "/v1/responses") -> bytes:
        return read_prompt(path, json.dumps(body).encode(), b"").bound_to

    name, other = (f"{number:024x}deadbeef" for number in (1, 2))
    reference, whole = ({"type": kind, "id": f"msg_{name}0002"} for kind in ("item_reference", "message"))
    assert bound({"input": "a", "previous_response_id": f"resp_{name}"}) == f"resp_{name}".encode()
    assert bound({}, f"/v1/responses/resp_{name}") == bound({}, f"/v1/responses/resp_{name}/input_items") == f"resp_{name}".encode()
    assert bound({"input": [whole, reference]}) == bound({"input": [reference | {"id": f"rs_{other}0001"}, reference]})
    assert bound({"input": [whole, reference]}) == f"resp_{name}".encode()
    for nothing in (
        {"previous_response_id": 3}, {"previous_response_id": "resp_1"}, {"previous_response_id": f"resp_{name}".upper()},
        {"input": [whole]}, {"input": json.dumps(reference)}, {"input": [{"type": "item_reference", "x": "a" * 999} | reference]},
    ):  # fmt: skip
        assert bound(nothing) == b"", nothing
    assert bound({"input": [reference]}, "/v1/embeddings") == bound({}, "/v1/responsesx") == bound({}, "/v1/responses/none") == b""


def test_a_session_is_what_requests_have_in_common() -> None:
    sessions = Sessions.parse(["header:X-Session-Id", "cookie:lane", "prompt_cache_key", "user"])

    def session(body: object = None, domain: bytes = b"", **headers: str) -> bytes:
        given = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        return read_prompt("/v1/chat/completions", json.dumps(body or {}).encode(), domain, given, sessions).session

    assert session() == session({"user": 3}) == session(cookie="other=1") == session({"metadata": "a"}) == b""
    assert session({"user": "a"}) == session({"user": "a", "messages": []}) == session({"metadata": {"user_id": "a"}}) != b""
    assert session({"user": "a"}) != session({"user": "b"}) and session({"user": "a"}) != session({"user": "a"}, b"tenant")
    assert session({"user": "a"}, x_session_id="s") == session({"prompt_cache_key": "k"}, x_session_id="s") != session({"user": "a"})
    assert session(cookie="a=1; lane=7") == session(cookie="lane=7;b=2") != session(cookie="lane=8")
    assert read_prompt("/", b"no JSON", b"", [(b"x-session-id", b"s")], sessions).session == session(x_session_id="s")


@pytest.mark.parametrize("text", ["", "header:", "header:a b", "cookie:a;b", "messages", "header", "cookie"])
def test_what_is_no_source_of_sessions_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--session-affinity"):
        Sessions.parse([text])
