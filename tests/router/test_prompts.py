"""What a router reads of bodies."""

import json

import pytest

from ridgeline.router.prompts import MAX_PARTS, read_prompt

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


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b"\xff\xfe", b'{"prompt": 1'])
def test_what_is_no_object_has_no_prompt(body: bytes) -> None:
    assert read_prompt("/v1/completions", body, b"").chain == ()


def test_a_stored_response_binds_the_requests_that_name_it() -> None:
    assert read_prompt("/v1/responses", b'{"input": "a", "previous_response_id": "resp_1"}', b"").bound_to == b"resp_1"
    assert read_prompt("/v1/responses/resp_2/input_items", b"", b"").bound_to == b"resp_2"
    assert read_prompt("/v1/responses", b'{"input": "a", "previous_response_id": 3}', b"").bound_to == b""
