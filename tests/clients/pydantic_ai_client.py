"""pydantic-ai: `python pydantic_ai_client.py DEMO_URL SCRIPTED_URL`. Asserts, and prints what it used.

An agent with a tool, whole and streamed, and each way to an output of a type: by a tool, natively by a schema, by the prompt; reasoning.
By chat completions and by responses.
"""

import asyncio
import sys
from importlib.metadata import version

from pydantic import BaseModel
from pydantic_ai import Agent, ModelSettings, NativeOutput, PromptedOutput, ThinkingPart
from pydantic_ai.models import Model
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider


class Person(BaseModel):
    """A person."""

    name: str
    age: int


def main(demo_url: str, scripted_url: str) -> None:
    for kind in (OpenAIChatModel, OpenAIResponsesModel):
        model = kind("scripted", provider=OpenAIProvider(base_url=scripted_url, api_key="none"))
        asyncio.run(use_tools(model))
        asyncio.run(take_forms(model))
    demo = OpenAIChatModel("demo", provider=OpenAIProvider(base_url=demo_url, api_key="none"))
    settings = ModelSettings(max_tokens=200, temperature=0)
    assert isinstance(Agent(demo, output_type=NativeOutput(bool), model_settings=settings).run_sync("Is the sea salty?").output, bool)
    print(f"pydantic-ai-slim {version('pydantic-ai-slim')}, openai {version('openai')}: pass")


async def use_tools(model: Model) -> None:
    agent = Agent(model, system_prompt="Use the tool.")
    called: list[str] = []

    @agent.tool_plain
    def weather(city: str) -> str:
        """The weather in a city."""
        called.append(city)
        return {"Bern": "21 degrees", "Oslo": "9 degrees"}[city]

    assert (await agent.run("What is the weather in Bern?")).output == "It is 21 degrees in Bern."
    result = await agent.run("Compare the weather in Bern and in Oslo.")
    assert result.output == "Bern is 12 degrees warmer than Oslo." and sorted(called) == ["Bern", "Bern", "Oslo"]
    async with agent.run_stream("What is the weather in Bern?") as stream:
        pieces = [piece async for piece in stream.stream_text(delta=True, debounce_by=None)]
    assert "".join(pieces) == "It is 21 degrees in Bern." and len(pieces) > 1
    assert result.usage.output_tokens > 20


async def take_forms(model: Model) -> None:
    forms = {
        "Result: Anna Keller, 30.": Person,
        "Anna Keller is 30 years old.": NativeOutput(Person),
        "Simply: Anna Keller is 30 years old.": PromptedOutput(Person),
    }
    for question, form in forms.items():
        agent = Agent(model, output_type=form, retries=0)
        assert (await agent.run(question)).output == Person(name="Anna Keller", age=30), form
        async with agent.run_stream(question) as stream:
            assert await stream.get_output() == Person(name="Anna Keller", age=30), form
    result = await Agent(model).run("What is two and two?")
    (thought,) = [part for message in result.all_messages() for part in message.parts if isinstance(part, ThinkingPart)]
    text = thought.content or "".join((thought.provider_details or {})["raw_content"])
    assert result.output == "Four." and text.strip() == "One, two; three, four."


if __name__ == "__main__":
    main(*sys.argv[1:])
