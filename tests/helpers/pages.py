"""The chat page in a real browser: a server that chats, the page opened, and what a person does with it."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

SLOW = 'fake:{"step_seconds": 0.02}'
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}<eos>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
RECORD = """
window.sent = []; window.realFetch ??= window.fetch;
window.fetch = (address, options) => { if (options?.body) sent.push(JSON.parse(options.body)); return realFetch(address, options); };
"""
KEYS = {"Enter": (13, "\r"), "ArrowUp": (38, ""), "Escape": (27, ""), "Tab": (9, "")}


@pytest.fixture(scope="session")
def chat_server(serving: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A fake model with a template, 20 ms per token."""
    file = tmp_path_factory.mktemp("template") / "chat.jinja"
    file.write_text(TEMPLATE)
    with serving(SLOW, "--chat-template", str(file)) as server:
        yield server


@pytest.fixture
def page(chat_server: Any, browser: Any) -> Any:
    """The page, ready to chat in a browser that has kept nothing; `sent` has the bodies of its requests."""
    visit(browser, chat_server.url)
    return browser


def visit(browser: Any, url: str) -> None:
    browser.open(url)
    browser.wait("document.getElementById('status')?.hidden && !document.getElementById('chat').hidden")
    browser.value(RECORD)


def text(browser: Any, selector: str) -> str:
    return browser.value(f"document.querySelector({selector!r}).textContent")


def count(browser: Any, selector: str) -> int:
    return browser.value(f"document.querySelectorAll({selector!r}).length")


def fill(browser: Any, name: str, value: str) -> None:
    """As if it were typed."""
    field = f"document.getElementById('{name}')"
    browser.value(f"{field}.value = {json.dumps(value)}; {field}.dispatchEvent(new Event('input'))")


def press(browser: Any, name: str) -> None:
    browser.value(f"document.getElementById('{name}').click()")


def click(browser: Any, selector: str) -> None:
    browser.value(f"document.querySelector({selector!r}).click()")


def key(browser: Any, name: str = "Enter", modifiers: int = 0) -> None:
    number, typed = KEYS[name]
    for kind in ("keyDown", "keyUp"):
        event = {"key": name, "code": name, "windowsVirtualKeyCode": number, "text": typed, "modifiers": modifiers}
        browser.call("Input.dispatchKeyEvent", type=kind, **event)


def ask(browser: Any, message: str, tokens: int | None = 20) -> None:
    """Sends a message; its answer may be on its way."""
    fill(browser, "max-tokens", "" if tokens is None else str(tokens))
    fill(browser, "message", message)
    browser.value("document.getElementById('composer').requestSubmit()")


def wait_for_the_end(browser: Any) -> None:
    browser.wait("document.getElementById('halt').hidden")


def chat(browser: Any, message: str, tokens: int = 20) -> str:
    """Sends a message, waits, and returns the answer as the page shows it."""
    ask(browser, message, tokens)
    wait_for_the_end(browser)
    return last_answer(browser)


def last_answer(browser: Any) -> str:
    return browser.value("[...document.querySelectorAll('.assistant .body')].at(-1).innerText")


def stats(browser: Any) -> str:
    return browser.value("[...document.querySelectorAll('.assistant .stats')].at(-1).textContent")


def answer_with(browser: Any, *pieces: str, thoughts: tuple[str, ...] = (), tail: str = "data: [DONE]\n\n") -> None:
    """The server's next answers are replaced by one that streams these pieces, thoughts before them."""
    deltas = [{"reasoning_content": piece} for piece in thoughts] + [{"content": piece} for piece in pieces]
    events = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None, "logprobs": None}]} for delta in deltas]
    body = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + tail
    replace_answers(browser, f"new Response({json.dumps(body)})")


def replace_answers(browser: Any, reply: str) -> None:
    """`reply` is JavaScript for what the server answers to requests with a body."""
    browser.value(f"window.realFetch ??= fetch; window.fetch = async (url, options) => options?.body ? {reply} : realFetch(url, options)")


def give(browser: Any, content: str) -> None:
    """A file of conversations, chosen by the reader."""
    browser.value(
        f"(() => {{ const list = new DataTransfer(); list.items.add(new File([{json.dumps(content)}], 'talk.json'));"
        "const field = document.getElementById('import-file'); field.files = list.files; field.dispatchEvent(new Event('change')); })()"
    )
