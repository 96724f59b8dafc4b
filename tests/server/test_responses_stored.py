"""Stored answers of `/v1/responses`: references to them, items in pages, answers in the background and their events."""

import asyncio
from typing import Any

import pytest
from openai import BadRequestError, NotFoundError
from responses_site import TOOL, Client, other_client, responses_client, responses_keys  # noqa: F401  (fixtures among them)

from ridgeline.errors import OverloadedError
from ridgeline.server import tapes
from ridgeline.server.errors import ApiError


def test_stored_answers(client: Client, other: Client) -> None:
    first = client.create("My name is Ada.", instructions="Be brief.")
    responses = client.openai.responses
    assert client.do(responses.retrieve(first.id)).to_dict() == first.to_dict() and first.to_dict()["store"] is True
    second = client.create([{"role": "user", "content": "Who am I?"}], previous_response_id=first.id)
    items = client.do(responses.input_items.list(second.id, order="asc")).data
    assert [(item.type, item.content[0].text) for item in items] == [
        ("message", "My name is Ada."), ("message", "Hello, Ada."), ("message", "Who am I?")
    ]  # fmt: skip
    for refused in (
        other.openai.responses.retrieve(first.id), other.openai.responses.delete(first.id), other.openai.responses.cancel(first.id),
        other.openai.responses.input_items.list(first.id),
    ):  # fmt: skip
        with pytest.raises(NotFoundError):
            other.do(refused)
    with pytest.raises(BadRequestError, match="no stored answer") as unknown:
        other.create("Who am I?", previous_response_id=first.id)
    assert unknown.value.code == "previous_response_not_found" and unknown.value.param == "previous_response_id"
    client.do(responses.delete(first.id))
    with pytest.raises(NotFoundError):
        client.do(responses.retrieve(first.id))
    assert client.create("Who am I?", previous_response_id=second.id).output_text == "You are Ada."


def test_a_call_that_was_cut_is_not_gone_on_with(client: Client) -> None:
    cut = client.create("Weather in Bern?", tools=[TOOL], max_output_tokens=94)
    assert (cut.output[-1].type, cut.output[-1].status) == ("function_call", "incomplete")
    assert client.create("Who am I?", previous_response_id=cut.id).status == "completed"


def test_references_to_items(client: Client, other: Client) -> None:
    """As the AI SDK sends a conversation: what was answered by its id."""
    asked = {"role": "user", "content": "Weather in Bern?"}
    first = client.create([asked], tools=[TOOL])
    told = [{"type": "item_reference", "id": item.id} for item in first.output]
    given = {"type": "function_call_output", "call_id": first.output[-1].call_id, "output": "Sunny, 21 °C"}
    second = client.create([asked, *told, given], tools=[TOOL])
    whole = client.create([asked, *(item.to_dict() for item in first.output), given], tools=[TOOL])
    assert second.output_text == "It is sunny in Bern." and second.usage.input_tokens == whole.usage.input_tokens
    more = [*told, given, {"type": "item_reference", "id": second.output[0].id}, {"role": "user", "content": "Who am I?"}]
    client.do(client.openai.responses.delete(first.id))
    third = client.create([asked, *more])
    assert third.output_text == "You are Ada.", "the newest answer has the items before it"
    with pytest.raises(BadRequestError, match="not stored"):
        other.create([asked, *more])
    counted = client.do(client.openai.responses.input_tokens.count(model="fake", input=[asked, *more]))
    assert counted.input_tokens == third.usage.input_tokens and counted.object == "response.input_tokens"


def test_a_hundred_at_once(client: Client, other: Client) -> None:
    async def one(at: int) -> None:
        mine, others = [each.openai.responses for each in ((client, other), (other, client))[at % 2]]
        answer = await mine.create(model="fake", input=f"{at} My name is Ada.", metadata={"at": str(at)})
        again = await mine.retrieve(answer.id)
        assert again.metadata == {"at": str(at)} and again.output_text == "Hello, Ada."
        chained = await mine.create(model="fake", input="Who am I?", previous_response_id=answer.id)
        items = await mine.input_items.list(chained.id, order="asc")
        assert items.data[0].content[0].text.startswith(f"{at} ")
        with pytest.raises(NotFoundError):
            await others.retrieve(answer.id)
        await mine.delete(answer.id)
        with pytest.raises(NotFoundError):
            await mine.retrieve(answer.id)

    async def run() -> None:
        await asyncio.gather(*map(one, range(100)))

    client.do(run())


def test_pages_of_items(client: Client) -> None:
    answer = client.create([{"role": "user", "content": str(at)} for at in range(7)])
    pages = client.openai.responses.input_items

    async def all_of(**more: Any) -> list[str]:
        return [item.content[0].text async for item in pages.list(answer.id, **more)]

    assert client.do(all_of(limit=3)) == list("6543210") and client.do(all_of(limit=2, order="asc")) == list("0123456")
    page = client.do(pages.list(answer.id, limit=3))
    assert page.has_more and page.first_id == page.data[0].id and page.last_id == page.data[-1].id
    for query in ("limit=0", "limit=101", "limit=x", "order=up", "after=msg_0"):
        assert client.raw("GET", f"/v1/responses/{answer.id}/input_items?{query}").status_code == 400


def test_what_is_not_to_be_stored_is_not(client: Client) -> None:
    answer = client.create("My name is Ada.", store=False)
    assert answer.to_dict()["store"] is False
    with pytest.raises(NotFoundError):
        client.do(client.openai.responses.retrieve(answer.id))
    streamed = client.events("My name is Ada.", store=False)[-1].response
    with pytest.raises(BadRequestError, match="no stored answer"):
        client.create("Who am I?", previous_response_id=streamed.id)


def test_reasoning_comes_back_from_encrypted_content(client: Client) -> None:
    """As of clients that keep neither content nor summary; the prompt is that of the words themselves."""
    answer = client.create("Weather in Bern?", tools=[TOOL], store=False, include=["reasoning.encrypted_content"])
    thought, _, call = answer.output
    assert client.create("Weather in Bern?", tools=[TOOL]).output[0].encrypted_content is None
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny, 21 °C"}
    counts = []
    for kept in (
        {"encrypted_content": thought.encrypted_content}, {"content": [{"type": "reasoning_text", "text": thought.content[0].text}]}, {}
    ):  # fmt: skip
        item = {"type": "reasoning", "id": thought.id, "summary": [], **kept}
        items = [{"role": "user", "content": "Weather in Bern?"}, item, call.model_dump(exclude_none=True), result]
        counts.append(client.create(items, tools=[TOOL], store=False).usage.input_tokens)
    assert counts[0] == counts[1] > counts[2]


def test_answers_in_the_background(client: Client, other: Client) -> None:
    responses = client.openai.responses
    first = client.create("My name is Ada.", background=True)
    assert first.status == "in_progress" and first.background and first.output == []

    async def ended(response_id: str) -> Any:
        while (found := await responses.retrieve(response_id)).status == "in_progress":
            await asyncio.sleep(0.01)
        return found

    whole = client.do(ended(first.id))
    assert whole.status == "completed" and whole.output_text == "Hello, Ada." and whole.usage.output_tokens == 12
    assert client.do(responses.cancel(first.id)).status == "completed", "what has ended stays as it is"
    assert client.create("Who am I?", previous_response_id=first.id).output_text == "You are Ada."
    endless = client.create("Tell.", background=True, extra_body={"ignore_eos": True})
    with pytest.raises(BadRequestError, match="in_progress"):
        client.create("Who am I?", previous_response_id=endless.id)
    with pytest.raises(NotFoundError):
        other.do(other.openai.responses.cancel(endless.id))
    assert client.do(responses.cancel(endless.id)).status == "cancelled" == client.do(responses.retrieve(endless.id)).status
    with pytest.raises(BadRequestError, match="background"):
        client.do(responses.cancel(client.create("My name is Ada.").id))


def test_an_answer_in_the_background_is_streamed_from_any_event_on(client: Client, other: Client) -> None:
    """The client goes after some events, and comes back for the others, while the answer is computed and behind its end."""
    responses = client.openai.responses

    async def begun(count: int, **more: Any) -> list[Any]:
        stream = await responses.create(model="fake", background=True, stream=True, **more)
        events = []
        async for event in stream:
            events.append(event)
            if len(events) == count:
                break
        await stream.close()
        return events

    async def rest(of: Any, response_id: str, **more: Any) -> list[Any]:
        return [event async for event in await of.openai.responses.retrieve(response_id, stream=True, **more)]

    first = client.do(begun(4, input="My name is Ada."))
    response_id = first[0].response.id
    assert first[0].type == "response.created" and first[0].response.background
    for _ in range(2):
        found = [*first, *client.do(rest(client, response_id, starting_after=first[-1].sequence_number))]
        assert [event.sequence_number for event in found] == [*range(len(found))] and found[-1].type == "response.completed"
        assert "".join(event.delta for event in found if event.type == "response.output_text.delta") == "Hello, Ada."
        assert found[-1].response == client.do(responses.retrieve(response_id)) and found == client.do(rest(client, response_id))
    assert client.do(rest(client, response_id, starting_after=10_000)) == []
    with pytest.raises(NotFoundError):
        other.do(rest(other, response_id))
    with pytest.raises(BadRequestError, match="starting_after"):
        client.do(rest(client, response_id, extra_query={"starting_after": "x"}))
    client.do(responses.delete(response_id))
    with pytest.raises(NotFoundError):
        client.do(rest(client, response_id))
    endless = client.do(begun(9, input="Tell.", extra_body={"ignore_eos": True}))
    client.do(responses.cancel(endless[0].response.id))
    found = client.do(rest(client, endless[0].response.id))
    assert found[: len(endless)] == endless and not any(event.type == "response.completed" for event in found)
    with pytest.raises(BadRequestError, match="background and stream"):
        client.do(rest(client, client.create("My name is Ada.", background=True).id))


def test_events_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tapes, "MAX_BYTES", 100)
    monkeypatch.setattr(tapes, "MAX_ALL_BYTES", 150)
    asyncio.run(make_room(tapes.Tapes()))


async def make_room(kept: tapes.Tapes) -> None:
    async def read(tape: tapes.Tape, start: int) -> list[bytes]:
        return [event async for event in tape.read(start, 0.001)]

    for name in ("a", "b"):
        for _ in range(12):
            (tape := kept.begin(b"me", name) if _ == 0 else kept.find(name)).add(b"0123456789")
        tape.is_over = True
    with pytest.raises(ApiError, match="before number 5 are not kept"):
        await read(kept.find("a"), 4)
    assert await read(kept.find("a"), 5) == [b"0123456789"] * 7
    for name in ("c", "d"):
        kept.begin(b"me", name).add(b"0" * 90)
    with pytest.raises(ApiError, match="not kept"):
        kept.find("a")
    assert kept.find("c").bytes == 90
    with pytest.raises(OverloadedError, match="no more room"):
        kept.check_room()
    kept.find("c").is_over = kept.find("d").is_over = True
    kept.check_room()
    kept.begin(b"other", "e").add(b"0" * 90)
    kept.find("e").is_over = True
    kept.begin(b"other", "f")
    assert kept.find("d").bytes == 90, "one's own answers go first"


def test_who_finds_no_room_for_events_comes_back_when_an_answer_should_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tapes, "MAX_ALL_BYTES", 150)

    async def work() -> list[int]:
        kept, now, told = tapes.Tapes(), asyncio.get_running_loop().time(), []
        ended, *going = (kept.begin(b"me", name) for name in "abc")
        ended.began = now - 39.9
        kept.end("a")
        for tape in going:
            tape.add(b"0" * 90)
        for _ in range(2):
            with pytest.raises(OverloadedError) as refused:
                kept.check_room()
            told.append(refused.value.retry_after_seconds)
        return told

    first, second = asyncio.run(work())
    assert first == 50, "two that take 40 s each, and of their ends 40 % are promised"
    assert 18 <= second <= 60, "past the minute that anybody waits, somewhere in it"
