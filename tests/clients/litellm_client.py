"""LiteLLM's OpenAI path against a server: `python litellm_client.py BASE_URL MODEL`. Asserts, and prints what it used."""

import asyncio
import sys
from importlib.metadata import version

import litellm


def main(base_url: str, model: str) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Name a colour."}]
    asked = {
        "model": f"openai/{model}", "api_base": base_url, "api_key": "none", "messages": messages, "temperature": 0, "max_tokens": 12,
        "num_retries": 0,
    }  # fmt: skip
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
        model=f"text-completion-openai/{model}", api_base=base_url, api_key="none", prompt="1, 2, 3, 4,", max_tokens=6, temperature=0
    )
    assert completed.choices[0].text and completed.usage.completion_tokens <= 6

    try:
        litellm.completion(**asked | {"model": "openai/no-such-model"})
    except litellm.NotFoundError:
        pass
    else:
        raise AssertionError("a model that is not there was served")
    print(f"litellm {version('litellm')}, openai {version('openai')}: pass")


async def _streamed(asked: dict) -> str:
    stream = await litellm.acompletion(**asked, stream=True)
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])


if __name__ == "__main__":
    main(*sys.argv[1:])
