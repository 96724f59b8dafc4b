"""One server whose model says what the guide and the bodies of agents expect, behind the chat template of Qwen3."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gold import TEMPLATES

CLIENTS = Path(__file__).parents[1] / "clients"
BODIES = {file.stem: json.loads(file.read_text()) for file in sorted((CLIENTS / "bodies").glob("*.json"))}
"""Requests as agents form them, by agent."""
NAME = "qwen3:0.6b"


@pytest.fixture(scope="session")
def scripted_server(serving: Callable[..., Any]) -> Iterator[Any]:
    """Any key is right. Answers: `tests/clients/script.json`, and those of the bodies."""
    script = [*json.loads((CLIENTS / "script.json").read_text()), *(each for body in BODIES.values() for each in body["script"])]
    model = {"vocab": 258, "max_model_len": 65536, "blocks": 16384, "script": script}
    template = TEMPLATES / "Qwen-Qwen3-0.6B.jinja"
    with serving(f"fake:{json.dumps(model)}", "--served-model-name", NAME, "--chat-template", str(template)) as server:
        yield server
