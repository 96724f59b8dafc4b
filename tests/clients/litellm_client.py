"""LiteLLM: `python litellm_client.py DEMO_URL SCRIPTED_URL`. Asserts, and prints what it used.

OpenAI's path with the demo, whole, streamed and completed; tools, structured output and reasoning with scripted answers; responses; the
same by Anthropic's path.
"""

import asyncio
import json
import sys
from importlib.metadata import version

import litellm
from pydantic import BaseModel

ASKED: dict = {"api_key": "none", "num_retries": 0}
TOOLS = [
    {"type": "function", "function": {
        "name": "weather", "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    }}
]  # fmt: skip


class Person(BaseModel):
    name: str
    age: int


def main(demo_url: str, scripted_url: str) -> None:
    converse({**ASKED, "model": "openai/demo", "api_base": demo_url, "temperature": 0, "max_tokens": 12})
    scripted = {**ASKED, "model": "openai/scripted", "api_base": scripted_url}
    use_tools(scripted)
    take_forms(scripted)
    respond(scripted)
    speak_anthropic(scripted_url.removesuffix("/v1"))
    print(f"litellm {version('litellm')}, openai {version('openai')}: pass")


def converse(asked: dict) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Name a colour."}]
    asked = {**asked, "messages": messages}
    whole = litellm.completion(**asked)
    text = whole.choices[0].message.content
    assert text and whole.choices[0].finish_reason in ("stop", "length")
    assert 0 < whole.usage.completion_tokens <= 12
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens

    chunks = list(litellm.completion(**asked, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text
    assert [chunk.usage.completion_tokens for chunk in chunks if getattr(chunk, "usage", None)] == [whole.usage.completion_tokens]
    built = litellm.stream_chunk_builder(chunks, messages=messages)
    assert built.choices[0].message.content == text

    assert asyncio.run(litellm.acompletion(**asked)).choices[0].message.content == text
    assert asyncio.run(_streamed(asked)) == text

    completed = litellm.text_completion(
        model="text-completion-openai/demo", api_base=asked["api_base"], api_key="none", prompt="1, 2, 3, 4,", max_tokens=6, temperature=0
    )
    assert completed.choices[0].text and completed.usage.completion_tokens <= 6

    try:
        litellm.completion(**asked | {"model": "openai/no-such-model"})
    except litellm.NotFoundError:
        pass
    else:
        raise AssertionError("a model that is not there was served")


async def _streamed(asked: dict) -> str:
    stream = await litellm.acompletion(**asked, stream=True)
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])


def use_tools(asked: dict) -> None:
    messages: list = [{"role": "user", "content": "What is the weather in Bern?"}]
    for choice in ("auto", "required", {"type": "function", "function": {"name": "weather"}}):
        answer = litellm.completion(**asked, messages=messages, tools=TOOLS, tool_choice=choice).choices[0]
        (call,) = answer.message.tool_calls
        assert answer.finish_reason == "tool_calls" and json.loads(call.function.arguments) == {"city": "Bern"}
    chunks = list(litellm.completion(**asked, messages=messages, tools=TOOLS, stream=True))
    (built,) = litellm.stream_chunk_builder(chunks, messages=messages).choices[0].message.tool_calls
    assert (built.function.name, json.loads(built.function.arguments)) == ("weather", {"city": "Bern"})
    messages += [answer.message, {"role": "tool", "tool_call_id": call.id, "content": "21 degrees"}]
    assert litellm.completion(**asked, messages=messages, tools=TOOLS).choices[0].message.content == "It is 21 degrees in Bern."


def take_forms(asked: dict) -> None:
    for form, question in ((Person, "Anna Keller is 30 years old."), ({"type": "json_object"}, "JSON: Anna Keller is 30 years old.")):
        answer = litellm.completion(**asked, messages=[{"role": "user", "content": question}], response_format=form)
        assert Person.model_validate_json(answer.choices[0].message.content) == Person(name="Anna Keller", age=30)
    message = litellm.completion(**asked, messages=[{"role": "user", "content": "What is two and two?"}]).choices[0].message
    assert message.content == "Four." and message.reasoning_content.strip() == "One, two; three, four."


def respond(asked: dict) -> None:
    tools = [{"type": "function", **TOOLS[0]["function"]}]
    first = litellm.responses(**asked, input="What is the weather in Bern?", tools=tools)
    (call,) = [item for item in first.output if item.type == "function_call"]
    assert json.loads(call.arguments) == {"city": "Bern"}
    result = [{"type": "function_call_output", "call_id": call.call_id, "output": "21 degrees"}]
    events = list(litellm.responses(**asked, input=result, previous_response_id=first.id, stream=True))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "It is 21 degrees in Bern."
    assert events[-1].type == "response.completed"


def speak_anthropic(base_url: str) -> None:
    asked = {**ASKED, "model": "anthropic/scripted", "api_base": base_url, "max_tokens": 200}
    messages: list = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is the weather in Bern?"}]
    answer = litellm.completion(**asked, messages=messages, tools=TOOLS).choices[0]
    (call,) = answer.message.tool_calls
    assert answer.finish_reason == "tool_calls" and json.loads(call.function.arguments) == {"city": "Bern"}
    chunks = list(litellm.completion(**asked, messages=messages, tools=TOOLS, tool_choice="required", stream=True))
    (built,) = litellm.stream_chunk_builder(chunks, messages=messages).choices[0].message.tool_calls
    assert (built.function.name, json.loads(built.function.arguments)) == ("weather", {"city": "Bern"})
    messages += [answer.message, {"role": "tool", "tool_call_id": call.id, "content": "21 degrees"}]
    whole = litellm.completion(**asked, messages=messages, tools=TOOLS)
    assert whole.choices[0].message.content == "It is 21 degrees in Bern." and whole.usage.completion_tokens > 5
    chunks = list(litellm.completion(**asked, messages=messages, tools=TOOLS, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "It is 21 degrees in Bern."
    thought = litellm.completion(**asked, messages=[{"role": "user", "content": "What is two and two?"}]).choices[0].message
    assert thought.content == "Four." and thought.reasoning_content.strip() == "One, two; three, four."


if __name__ == "__main__":
    main(*sys.argv[1:])
