"""The Responses API through the official client against real servers: a model, a stream over a socket, answers that survive a restart."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

from gold import TEMPLATES

SCRIPT = [["My name is Ada.", "Hello, Ada."], ["Who am I?", "You are Ada."]]


class Planet(BaseModel):
    name: Literal["Jupiter", "Saturn", "Neptune"]
    rings: bool


def test_a_model_answers(demo_server: Any) -> None:
    with openai.OpenAI(base_url=f"{demo_server.url}/v1", api_key="any", max_retries=0) as client:
        asked: Any = {"model": "demo", "input": "Name the largest planet.", "temperature": 0, "max_output_tokens": 12}
        whole = client.responses.create(**asked)
        with client.responses.stream(**asked) as stream:
            events = list(stream)
        assert events[-1].type in ("response.completed", "response.incomplete") and events[-1].response.output_text == whole.output_text
        assert whole.output_text and (whole.status == "incomplete") == (whole.usage is not None and whole.usage.output_tokens == 12)
        chat = client.chat.completions.create(
            model="demo", messages=[{"role": "user", "content": asked["input"]}], temperature=0, max_tokens=12
        )  # fmt: skip
        assert chat.choices[0].message.content == whole.output_text, "it is a chat"
        planet = client.responses.parse(model="demo", input=asked["input"], text_format=Planet, max_output_tokens=60, temperature=0)
        assert isinstance(planet.output_parsed, Planet)


def test_answers_survive_a_restart(serving: Callable[..., Any], tmp_path: Path) -> None:
    model = "fake:" + json.dumps({"vocab": 258, "windows": [0, 32], "step_seconds": 0.005, "script": SCRIPT})
    settings = ("--api-key", "k", "--served-model-name", "m", "--chat-template", str(TEMPLATES / "Qwen-Qwen3-0.6B.jinja"))
    stored = ("--response-store", "file", "--response-store-dir", str(tmp_path / "answers"))

    def connected(server: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0)

    with serving(model, *settings, *stored) as server, connected(server) as client:
        stream = client.responses.create(model="m", input="My name is Ada.", stream=True)
        first = [event for _, event in zip(range(6), stream, strict=False)]
        found = client.responses.create(model="m", input="Who am I?", extra_body={"max_output_tokens": 2})
        assert first[-1].type == "response.output_text.delta" and found.status == "incomplete", "events come while it is computed"
        last = next(event.response for event in stream if event.type == "response.completed")
        unstored = client.responses.create(model="m", input="Who am I?", store=False)
    with serving(model, *settings, *stored) as server, connected(server) as client:
        assert client.responses.retrieve(last.id).output_text == "Hello, Ada."
        answer = client.responses.create(model="m", input="Who am I?", previous_response_id=last.id)
        assert answer.output_text == "You are Ada." and len(client.responses.input_items.list(answer.id).data) == 3
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(unstored.id)
        client.responses.delete(last.id)
        with pytest.raises(openai.BadRequestError, match="no stored answer"):
            client.responses.create(model="m", input="Who am I?", previous_response_id=last.id)
    kept = {path.stem for path in (tmp_path / "answers").rglob("*.json")}
    assert kept == {found.id, answer.id}
