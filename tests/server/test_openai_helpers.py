"""Helpers of the official client over chats: answers parsed into types, streams that say the same, and its loop of tools."""

from typing import Any

from openai import pydantic_function_tool
from pydantic import BaseModel, ConfigDict
from responses_site import Client, responses_client, responses_keys  # noqa: F401  (fixtures among them)

ASKED: Any = {"role": "user", "content": "Weather in Bern?"}


class Trip(BaseModel):
    city: str
    days: int


class Weather(BaseModel):
    """Weather of a city"""

    model_config = ConfigDict(extra="forbid")
    city: str


TOOLS = [pydantic_function_tool(Weather, name="weather")]


def test_answers_are_parsed(client: Client) -> None:
    asked: Any = {"model": "fake", "messages": [{"role": "user", "content": "As JSON."}], "response_format": Trip}
    answer = client.do(client.openai.chat.completions.parse(**asked))
    assert answer.choices[0].message.parsed == Trip(city="Bern", days=3)

    async def streamed() -> Any:
        async with client.openai.beta.chat.completions.stream(**asked) as stream:
            parsed = [event.parsed for event in [each async for each in stream] if event.type == "content.delta"]
            return parsed, await stream.get_final_completion()

    parsed, last = client.do(streamed())
    assert last.choices[0].message.parsed == Trip(city="Bern", days=3) and parsed[-1] == {"city": "Bern", "days": 3}


def test_the_loop_of_tools(client: Client) -> None:
    def ask(messages: list[Any]) -> Any:
        return client.do(client.openai.chat.completions.parse(model="fake", messages=messages, tools=TOOLS)).choices[0]

    first = ask([ASKED])
    (call,) = first.message.tool_calls
    assert first.finish_reason == "tool_calls" and call.function.parsed_arguments == Weather(city="Bern")
    result = {"role": "tool", "tool_call_id": call.id, "content": "Sunny, 21 °C"}
    last = ask([ASKED, first.message, result])
    assert last.finish_reason == "stop" and last.message.content == "It is sunny in Bern."

    async def streamed() -> Any:
        async with client.openai.chat.completions.stream(model="fake", messages=[ASKED], tools=TOOLS) as stream:
            return [each.type async for each in stream], await stream.get_final_completion()

    events, whole = client.do(streamed())
    assert events.count("tool_calls.function.arguments.done") == 1
    assert whole.choices[0].message.tool_calls[0].function.parsed_arguments == Weather(city="Bern")
