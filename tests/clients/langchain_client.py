"""LangChain's ChatOpenAI: `python langchain_client.py DEMO_URL SCRIPTED_URL`. Asserts, and prints what it used.

With the demo a conversation whole, streamed, in a batch, JSON of a schema, and vectors of texts; with scripted answers
a loop of tools, and each way to a structured output, by chat completions and by responses.
"""

import asyncio
import sys
from importlib.metadata import version

from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, SystemMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel, Field


class Person(BaseModel):
    """A person."""

    name: str = Field(max_length=24)
    age: int = Field(ge=0, le=150)


@tool
def weather(city: str) -> str:
    """The weather in a city."""
    return {"Bern": "21 degrees", "Oslo": "9 degrees"}[city]


def main(demo_url: str, scripted_url: str) -> None:
    converse(demo_url)
    embed(demo_url)
    for by_responses in (False, True):
        chat = ChatOpenAI(base_url=scripted_url, api_key="none", model="scripted", max_retries=0, use_responses_api=by_responses)
        use_tools(chat)
        take_forms(chat)
    print(f"langchain-openai {version('langchain-openai')}, langchain-core {version('langchain-core')}, openai {version('openai')}: pass")


def embed(base_url: str) -> None:
    # It makes ids by OpenAI's tokenizer otherwise, which mean something else to any other model.
    model = OpenAIEmbeddings(base_url=base_url, api_key="none", model="demo", check_embedding_ctx_length=False, dimensions=64)
    texts = ["A cat sits on the mat.", "A kitten rests on a rug.", "Interest rates have risen."]
    vectors = model.embed_documents(texts)
    assert [len(each) for each in vectors] == [64] * 3 and all(abs(sum(x * x for x in each) - 1) < 1e-3 for each in vectors)
    assert max(abs(a - b) for a, b in zip(model.embed_query(texts[0]), vectors[0], strict=True)) < 1e-5


def converse(base_url: str) -> None:
    chat = ChatOpenAI(base_url=base_url, api_key="none", model="demo", temperature=0, max_tokens=12, seed=1, max_retries=0)
    conversation = [SystemMessage("Be brief."), HumanMessage("Hi"), AIMessage("Hello!"), HumanMessage("Name a colour.")]
    whole = chat.invoke(conversation)
    assert isinstance(whole, AIMessage) and whole.content and whole.response_metadata["finish_reason"] in ("stop", "length")
    assert whole.usage_metadata is not None and 0 < whole.usage_metadata["output_tokens"] <= 12

    chunks = list(chat.stream(conversation, stream_usage=True))
    assert "".join(str(chunk.content) for chunk in chunks) == whole.content and len(chunks) > 1
    (usage,) = [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata]
    assert usage["output_tokens"] == whole.usage_metadata["output_tokens"]

    answers = chat.batch([[HumanMessage("One")], [HumanMessage("Two")], conversation])
    assert len(answers) == 3 and answers[2].content == whole.content
    assert asyncio.run(_asynchronous(chat, conversation)) == (whole.content, whole.content)

    scored = chat.bind(logprobs=True, top_logprobs=2).invoke(conversation)
    content = scored.response_metadata["logprobs"]["content"]
    assert all(len(each["top_logprobs"]) == 2 for each in content)

    chain = ChatPromptTemplate.from_messages([("user", "Write about {topic}.")]) | chat | StrOutputParser()
    assert chain.invoke({"topic": "rivers"})

    complete = OpenAI(base_url=base_url, api_key="none", model="demo", temperature=0, max_tokens=6, max_retries=0)
    text = complete.invoke("1, 2, 3, 4,")
    assert text and "".join(complete.stream("1, 2, 3, 4,")) == text

    roomy = ChatOpenAI(base_url=base_url, api_key="none", model="demo", temperature=0, max_tokens=200, max_retries=0)
    person = roomy.with_structured_output(Person, method="json_schema", strict=True).invoke("Describe a person as JSON.")
    assert isinstance(person, Person)


async def _asynchronous(chat: ChatOpenAI, conversation: list) -> tuple[str, str]:
    """Whole and streamed, in one event loop: the client's connections belong to it."""
    whole = await chat.ainvoke(conversation)
    return str(whole.content), "".join([str(chunk.content) async for chunk in chat.astream(conversation)])


def use_tools(chat: ChatOpenAI) -> None:
    bound = chat.bind_tools([weather])
    conversation: list = [HumanMessage("Compare the weather in Bern and in Oslo.")]
    asked = bound.invoke(conversation)
    assert [call["args"] for call in asked.tool_calls] == [{"city": "Bern"}, {"city": "Oslo"}] and not asked.invalid_tool_calls
    results = [weather.invoke(call) for call in asked.tool_calls]
    assert all(isinstance(each, ToolMessage) for each in results)
    said = bound.invoke([*conversation, asked, *results])
    assert said.text == "Bern is 12 degrees warmer than Oslo." and not said.tool_calls

    joined = AIMessageChunk("")
    for chunk in bound.stream(conversation):
        joined += chunk
    assert [call["args"] for call in joined.tool_calls] == [{"city": "Bern"}, {"city": "Oslo"}]

    for choice in ("any", "weather"):
        forced = chat.bind_tools([weather], tool_choice=choice, strict=True, parallel_tool_calls=False)
        (call,) = forced.invoke("What is the weather in Bern?").tool_calls
        assert (call["name"], call["args"]) == ("weather", {"city": "Bern"})


def take_forms(chat: ChatOpenAI) -> None:
    anna = Person(name="Anna Keller", age=30)
    for method, question in (
        ("function_calling", "Store: Anna Keller, 30."), ("json_schema", "Anna Keller is 30 years old."),
        ("json_mode", "As JSON: Anna Keller is 30 years old."),
    ):  # fmt: skip
        form = chat.with_structured_output(Person, method=method)
        assert form.invoke(question) == anna, method
        assert [*form.stream(question)][-1] == anna, method
        found = chat.with_structured_output(Person, method=method, include_raw=True).invoke(question)
        assert found["parsed"] == anna and found["parsing_error"] is None, method


if __name__ == "__main__":
    main(*sys.argv[1:])
