"""What a router is told of a stream, and what a server takes from one."""

import json
import random
import time
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import msgspec
import pytest
from relayed import alike

from ridgeline.config.groups import EngineConfig, ServerConfig
from ridgeline.router.journal import Journal

SECRET = "a secret of router and replicas"
KEY = sha256(SECRET.encode()).digest()
BODY = json.dumps({"prompt": "once upon a time", "max_tokens": 12, "ignore_eos": True, "temperature": 1, "stream": True}).encode()


@pytest.fixture(scope="module")
def known(site: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A server that has the key of a router."""
    file = tmp_path_factory.mktemp("router") / "key"
    file.write_text(SECRET)
    file.chmod(0o600)
    known = type(site)(EngineConfig('fake:{"windows": [0, 32], "vocab": 258}'), ServerConfig(router_key_file=str(file)))
    known.wait(known.service.start())
    yield known
    known.close()


def post(site: Any, journal: Journal, body: bytes = BODY, **headers: str) -> Any:
    asked = {name.decode(): value.decode() for name, value in journal.headers} | headers
    return site.request("POST", "/v1/completions", content=journal.body(body), headers=asked)


def begun(site: Any, events: int, body: bytes = BODY) -> tuple[Journal, bytes]:
    """A stream of which a router has passed on so many events, and all of it."""
    whole, part = Journal(KEY), Journal(KEY)
    told = post(site, whole, body).content
    text = whole.take(told)
    part.take(b"\n\n".join(told.split(b"\n\n")[:events]) + b"\n\n")
    return part, text + whole.end()


@pytest.mark.parametrize("events", [1, 5, 11])
def test_a_stream_goes_on_behind_what_a_client_has(known: Any, events: int) -> None:
    journal, whole = begun(known, events)
    assert journal.events == events and journal.can_continue
    before = b"\n\n".join(whole.split(b"\n\n")[:events]) + b"\n\n"
    assert before + journal.take(post(known, journal).content) == whole


def test_log_probabilities_of_text_that_waits_go_on_too(known: Any) -> None:
    """Tokens are bytes, of which characters and what may be stop strings wait for others: their events come behind other choices'."""
    asked = {"max_tokens": 24, "seed": 5, "n": 3, "logprobs": 2, "stop": ["e!", "at all"], "stream_options": {"include_usage": True}}
    body = json.dumps(json.loads(BODY) | asked).encode()
    _, whole = begun(known, 1, body)
    waited = 0
    for events in range(1, whole.count(b"\n\n") - 1):
        journal, whole = begun(known, events, body)
        before = b"\n\n".join(whole.split(b"\n\n")[:events]) + b"\n\n"
        told = sum(len(each[3]) for each in msgspec.json.decode(journal.body(b""))[1:] if each[0] == "w")
        sent = sum(len(each["logprobs"]["tokens"]) for each in choices(before) if each["logprobs"])
        waited += told > sent
        found = before + journal.take(post(known, journal, body).content)
        assert alike(found.decode()) == alike(whole.decode()), f"behind {events} events"
    assert waited, "of some streams more has been told than sent"


def choices(stream: bytes) -> Iterator[dict[str, Any]]:
    """The choices in the events of a stream."""
    for event in stream.split(b"\n\n"):
        yield from json.loads(event.removeprefix(b"data: ") or b"{}").get("choices", [])


def test_without_the_key_nothing_is_told_and_nothing_taken(known: Any, site: Any) -> None:
    journal, _ = begun(known, 3)
    assert b":r " not in known.request("POST", "/v1/completions", content=BODY).content
    for headers in ({"x-ridgeline-router": "0" * 64}, {"x-ridgeline-router": ""}):
        answer = post(known, journal, **headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "router_only")
    assert post(site, journal).status_code == 403
    assert b":r " not in post(site, Journal(KEY)).content


def test_records_that_cannot_be_are_refused(known: Any) -> None:
    journal, _ = begun(known, 3)
    first, *others = msgspec.json.decode(journal.body(b""))

    def status(*records: Any, length: int | None = None) -> int:
        text = msgspec.json.encode(list(records))
        asked = f"{len(text) if length is None else length} 1"
        headers = {"x-ridgeline-router": KEY.hex(), "x-ridgeline-continue": asked}
        return int(known.request("POST", "/v1/completions", content=text + BODY, headers=headers).status_code)

    assert status(first, *others) == 200
    wrong = [["w", *(value if at == place else each for at, each in enumerate(others[0][1:]))] for place, value in [
        (0, 1), (0, -1), (1, 1), (1, -1), (2, [258]), (2, [-1]), (2, list(range(12))), (4, -1), (4, 10**6),
        (5, [[-1.0, [], 1]]), (5, [["x", [], 1]]),
    ]]  # fmt: skip
    assert {status(first, *others, each) for each in wrong} == {409}
    assert status(*others) == status(first, first) == status() == status(first, ["x"]) == 409
    assert status(first, ["e", 0, 0, "stop", 1, 0], ["e", 0, 0, "stop", 1, 0]) == status(first, ["e", 0, 0, "stop", 13, 0]) == 409
    other_prompt = [*first[:3], [[*first[3][0][:3], "0" * 32]]]
    assert status(other_prompt, *others) == 409
    assert status(first, *others, length=10**7) == status(first, *others, length=3) == 409
    assert known.get("/readyz").status_code == 200


def test_a_prompt_that_has_not_ended_here_leaves_none_of_its_answer_open(known: Any) -> None:
    """Two prompts of one id: the second cannot be submitted, and the first is nobody's."""
    body = json.dumps({**json.loads(BODY), "prompt": ["once", "upon"], "max_tokens": 250}).encode()
    journal = Journal(KEY)
    journal.take(known.request("POST", "/v1/completions", content=body, headers={"x-ridgeline-router": KEY.hex()}).content)
    first = msgspec.json.decode(journal.body(b""))[0]
    first[3][0][0] = first[3][1][0] = "twice"
    records = msgspec.json.encode([first])
    headers = {"x-ridgeline-router": KEY.hex(), "x-ridgeline-continue": f"{len(records)} 1"}
    assert known.request("POST", "/v1/completions", content=records + body, headers=headers).status_code == 409
    until = time.monotonic() + 10
    while known.service.deployments.open_requests or known.service.ledger.find("twice") is None:
        assert time.monotonic() < until
        time.sleep(0.01)
    assert known.service.ledger.find("twice").choices[0].reason == "abort"


ODD = [0, 1, -1, 257, 258, 2**31, 2**63, 2**64, 10**30, 1.5, None, True, "", "x", "\0", "a" * 300, [], [1], {}, "stop", "error", "abort"]


def spoiled(records: list[Any], draw: random.Random) -> list[Any]:
    """Records with one to three places that are others, gone, twice or in another order."""
    made = json.loads(json.dumps(records))
    for _ in range(draw.randint(1, 3)):
        place = made
        while (inner := [each for each in place if isinstance(each, list) and each]) and draw.random() < 0.7:
            place = draw.choice(inner)
        if not place:
            continue
        at = draw.randrange(len(place))
        match draw.randrange(6):
            case 0:
                del place[at]
            case 1:
                place.insert(at, place[draw.randrange(len(place))])
            case 2:
                draw.shuffle(place)
            case _:
                place[at] = draw.choice(ODD) if draw.random() < 0.6 else draw.randrange(258)
    return made


@pytest.mark.parametrize("count", [60, pytest.param(4_000, marks=pytest.mark.night)])
def test_no_records_end_an_engine(known: Any, count: int) -> None:
    draw, client = random.Random(count), known.service.deployment.client
    before, codes = client.pid, set[int]()
    records = msgspec.json.decode(begun(known, 9)[0].body(b""))
    for _ in range(count):
        text = json.dumps(spoiled(records[: draw.randint(1, len(records))], draw)).encode()
        headers = {"x-ridgeline-router": KEY.hex(), "x-ridgeline-continue": f"{len(text)} {draw.choice([0, 1, 9, 10**7])}"}
        answer = known.request("POST", "/v1/completions", content=text + BODY, headers=headers)
        codes.add(answer.status_code)
        assert "internal_error" not in answer.text, text
    assert codes <= {200, 400, 409} and {200, 409} <= codes
    until = time.monotonic() + 10
    while known.service.deployments.open_requests:
        assert time.monotonic() < until
        time.sleep(0.01)
    assert client.pid == before
    assert known.request("POST", "/v1/completions", content=BODY).status_code == 200


def test_a_journal_passes_whole_events_on_and_ends_where_it_cannot_go_on() -> None:
    journal = Journal(KEY)
    assert journal.can_continue and journal.take(b": keep-alive\n\n:r [1]") == b": keep-alive\n\n"
    assert journal.take(b",[2]\ndata: a\n") == b"" and journal.take(b"\n:r \nevent: b\ndata: c\n\n:r [3]\nda") == (
        b"data: a\n\nevent: b\ndata: c\n\n"
    )
    journal.lose()
    assert (journal.events, journal.body(b"{}")) == (2, b"[[1],[2]]{}")
    assert dict(journal.headers)[b"x-ridgeline-continue"] == b"9 2"
    assert journal.take(b"data: [DONE]\n\n") and not journal.can_continue and journal.is_whole
    silent = Journal(KEY)
    silent.take(b"data: a\n\n")
    assert not silent.can_continue and not silent.is_whole


@pytest.mark.alone
def test_an_event_of_many_megabytes_is_joined_once() -> None:
    journal, began = Journal(KEY), time.process_time()
    for part in (b":r [1]\ndata: ", *[b"a" * 65_536] * 256, b"\n"):
        assert journal.take(part) == b""
    assert len(journal.take(b"\n")) == 6 + (16 << 20) + 2
    assert time.process_time() - began < 1
