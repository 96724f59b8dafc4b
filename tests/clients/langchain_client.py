"""LangChain's ChatOpenAI against a server: `python langchain_client.py BASE_URL MODEL`. Asserts, and prints what it used."""

import asyncio
import sys
from importlib.metadata import version

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI, OpenAI


def main(base_url: str, model: str) -> None:
    chat = ChatOpenAI(base_url=base_url, api_key="none", model=model, temperature=0, max_tokens=12, seed=1, max_retries=0)
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

    complete = OpenAI(base_url=base_url, api_key="none", model=model, temperature=0, max_tokens=6, max_retries=0)
    text = complete.invoke("1, 2, 3, 4,")
    assert text and "".join(complete.stream("1, 2, 3, 4,")) == text
    print(f"langchain-openai {version('langchain-openai')}, langchain-core {version('langchain-core')}, openai {version('openai')}: pass")


async def _asynchronous(chat: ChatOpenAI, conversation: list) -> tuple[str, str]:
    """Whole and streamed, in one event loop: the client's connections belong to it."""
    whole = await chat.ainvoke(conversation)
    return str(whole.content), "".join([str(chunk.content) async for chunk in chat.astream(conversation)])


if __name__ == "__main__":
    main(*sys.argv[1:])
