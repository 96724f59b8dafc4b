"""LlamaIndex's OpenAILike: `python llamaindex_client.py DEMO_URL SCRIPTED_URL`. Asserts, and prints what it used.

Chat, completion and vectors of texts with the demo; with scripted answers an agent that calls a tool, by chat completions and by responses,
and structured output by a tool and by a schema.
"""

import asyncio
import sys
from importlib.metadata import version

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import LLM, ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike, OpenAILikeResponses
from pydantic import BaseModel


class Person(BaseModel):
    """A person."""

    name: str
    age: int


def weather(city: str) -> str:
    """The weather in a city."""
    return {"Bern": "21 degrees", "Oslo": "9 degrees"}[city]


def main(demo_url: str, scripted_url: str) -> None:
    more = {"api_key": "none", "max_retries": 0, "is_chat_model": True}
    converse(OpenAILike(model="demo", api_base=demo_url, temperature=0, max_tokens=12, context_window=1024, **more))
    embed(demo_url)
    llm = OpenAILike(model="scripted", api_base=scripted_url, is_function_calling_model=True, context_window=32768, **more)
    asyncio.run(use_tools(llm))
    more.pop("is_chat_model")
    by_responses = OpenAILikeResponses(
        model="scripted", api_base=scripted_url, is_function_calling_model=True, context_window=32768, **more
    )  # fmt: skip
    asyncio.run(use_tools(by_responses))
    anna = Person(name="Anna Keller", age=30)
    assert llm.as_structured_llm(Person).complete("Store: Anna Keller, 30.").raw == anna
    strict = OpenAILike(
        model="scripted", api_base=scripted_url, should_use_structured_outputs=True, is_function_calling_model=True, is_chat_model=True,
        **more,
    )  # fmt: skip
    assert strict.as_structured_llm(Person).complete("Anna Keller is 30 years old.").raw == anna
    print(f"llama-index-llms-openai-like {version('llama-index-llms-openai-like')}, core {version('llama-index-core')}: pass")


def converse(llm: OpenAILike) -> None:
    messages = [ChatMessage(role="system", content="Be brief."), ChatMessage(role="user", content="Name a colour.")]
    whole = llm.chat(messages).message.content
    assert whole
    assert "".join(each.delta or "" for each in llm.stream_chat(messages)) == whole
    assert llm.complete("Name a colour.").text


def embed(base_url: str) -> None:
    model = OpenAILikeEmbedding(model_name="demo", api_base=base_url, api_key="none", max_retries=0, embed_batch_size=2)
    texts = ["A cat sits on the mat.", "A kitten rests on a rug.", "Interest rates have risen."]
    vectors = model.get_text_embedding_batch(texts)
    assert len(vectors) == 3 and all(abs(sum(x * x for x in each) - 1) < 1e-3 for each in vectors)
    assert max(abs(a - b) for a, b in zip(model.get_query_embedding(texts[0]), vectors[0], strict=True)) < 1e-5


async def use_tools(llm: LLM) -> None:
    called: list[str] = []

    def counted(city: str) -> str:
        called.append(city)
        return weather(city)

    tool = FunctionTool.from_defaults(counted, name="weather", description="The weather in a city.")
    for streaming in (False, True):
        agent = FunctionAgent(tools=[tool], llm=llm, system_prompt="Use the tool.", streaming=streaming)
        answer = await agent.run("What is the weather in Bern?")
        assert str(answer) == "It is 21 degrees in Bern.", answer
    agent = FunctionAgent(tools=[tool], llm=llm, system_prompt="Use the tool.")
    assert str(await agent.run("Compare the weather in Bern and in Oslo.")) == "Bern is 12 degrees warmer than Oslo."
    assert called[:2] == ["Bern", "Bern"] and sorted(called[2:]) == ["Bern", "Oslo"]


if __name__ == "__main__":
    main(*sys.argv[1:])
