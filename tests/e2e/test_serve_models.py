"""`ridgeline serve` of a checkpoint directory that chats: its template, its ends and its defaults, and the flags that replace them."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from chat_llama import TURN_END, write_chat_llama

COMMAND = [sys.executable, "-c", "import sys; sys.argv[0] = 'ridgeline'; from ridgeline.cli.main import main; main()"]
MESSAGES: Any = [{"role": "user", "content": f"hello {TURN_END} there"}]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chat_llama(tmp_path_factory.mktemp("model") / "tiny-chat", context=256)


@pytest.fixture(scope="module")
def server(serving: Callable[..., Any], directory: Path) -> Iterator[Any]:
    with serving(str(directory), "--served-model-name", "tiny") as server:
        yield server


@pytest.fixture
def client(server: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=30) as client:
        yield client


def test_what_is_said_at_the_start(server: Any) -> None:
    said = server.output()
    assert "chat template: the model's own" in said and repr(TURN_END) in said
    assert "warning:" not in said and "Traceback" not in said


def test_chat(client: openai.OpenAI, server: Any) -> None:
    asked: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "seed": 1, "max_tokens": 40}
    whole = client.chat.completions.create(**asked)
    with client.chat.completions.create(**asked, stream=True) as stream:
        assert "".join(choice.delta.content or "" for chunk in stream for choice in chunk.choices) == whole.choices[0].message.content
    rest = client.chat.completions.create(model="tiny", messages=MESSAGES, extra_body={"ignore_eos": True}).usage
    assert rest is not None and rest.total_tokens == 256, "as long as the context allows"


def test_a_turn_ends_where_the_template_ends_it(client: openai.OpenAI) -> None:
    """A bias makes the end of a turn the likeliest token: it ends the answer, is counted and is not shown."""
    import httpx

    names = httpx.post(f"{client.base_url}".replace("/v1/", "/tokenize"), json={"prompt": TURN_END, "add_special_tokens": False}).json()
    (end,) = names["tokens"]
    answer = client.chat.completions.create(model="tiny", messages=MESSAGES, temperature=0, logit_bias={str(end): 100}, max_tokens=9)
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("", "stop")
    assert answer.usage is not None and answer.usage.completion_tokens == 1


def test_a_template_from_a_file_and_no_defaults(serving: Callable[..., Any], directory: Path, tmp_path: Path) -> None:
    template = tmp_path / "mine.jinja"
    template.write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}. {% endfor %}{% if add_generation_prompt %}me: {% endif %}")
    with serving(str(directory), "--chat-template", str(template), "--generation-config", "none") as server:
        assert "chat template: from --chat-template" in server.output() and "defaults of the model" not in server.output()
        status, models = server.get("/v1/models")
        assert status == 200 and '"chat":true' in models


def test_defaults_that_no_client_could_send(environment: dict[str, str], directory: Path, tmp_path: Path) -> None:
    copy = tmp_path / "odd"
    shutil.copytree(directory, copy)
    (copy / "generation_config.json").write_text('{"repetition_penalty": 50.0}')
    ended = subprocess.run([*COMMAND, "serve", str(copy), "--port", "0"], env=environment, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2 and "repetition_penalty is 50.0" in ended.stderr and "--generation-config none" in ended.stderr
    assert "Traceback" not in ended.stderr
