"""The page in a real browser: chats, continues text, streams, stops, shows errors and probabilities, loads nothing from elsewhere."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

SLOW = 'fake:{"step_seconds": 0.02}'
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}<eos>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
RECORD = """
window.sent = []; window.realFetch ??= window.fetch;
window.fetch = (address, options) => { if (options?.body) sent.push(JSON.parse(options.body)); return realFetch(address, options); };
"""


@pytest.fixture(scope="module")
def chatting(serving: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    file = tmp_path_factory.mktemp("template") / "chat.jinja"
    file.write_text(TEMPLATE)
    with serving(SLOW, "--chat-template", str(file)) as server:
        yield server


@pytest.fixture
def page(chatting: Any, browser: Any) -> Any:
    browser.open(chatting.url)
    browser.wait("!document.getElementById('chat').hidden")
    browser.value(RECORD)
    return browser


def text(browser: Any, selector: str) -> str:
    return browser.value(f"document.querySelector({selector!r}).textContent")


def fill(browser: Any, name: str, value: str) -> None:
    browser.value(f"document.getElementById('{name}').value = {json.dumps(value)}")


def press(browser: Any, name: str) -> None:
    browser.value(f"document.getElementById('{name}').click()")


def key(browser: Any, modifiers: int = 0) -> None:
    enter = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r", "modifiers": modifiers}
    for kind in ("keyDown", "keyUp"):
        browser.call("Input.dispatchKeyEvent", type=kind, **enter)


def ask(browser: Any, message: str, tokens: int = 20) -> None:
    fill(browser, "message", message)
    fill(browser, "max-tokens", str(tokens))
    browser.value("document.getElementById('composer').requestSubmit()")


def wait_for_the_end(browser: Any) -> None:
    browser.wait("document.getElementById('halt').disabled")


def last_answer(browser: Any) -> str:
    return browser.value("[...document.querySelectorAll('.assistant .body')].at(-1).textContent")


def stats(browser: Any) -> str:
    return browser.value("[...document.querySelectorAll('.assistant .stats')].at(-1).textContent")


def test_a_conversation_streams_and_is_sent_whole(page: Any) -> None:
    fill(page, "system", "Be brief.")
    fill(page, "seed", "7")
    fill(page, "max-tokens", "30")
    page.value("document.getElementById('message').focus()")
    page.call("Input.insertText", text="Hello")
    key(page, modifiers=8)
    page.call("Input.insertText", text="again")
    assert page.value("document.getElementById('message').value") == "Hello\nagain"
    key(page)
    page.wait("document.querySelector('.assistant .body')?.textContent.length > 3")
    assert len(last_answer(page)) < 30, "the answer came at once instead of as a stream"
    wait_for_the_end(page)
    first = last_answer(page)
    assert len(first) == 30 and page.value("document.getElementById('message').value") == ""
    for part in ("30 tokens", "tok/s", "first token", "· 0 of", "ended by length"):
        assert part in stats(page)

    ask(page, "More", 5)
    wait_for_the_end(page)
    assert "· 0 of" not in stats(page) and "prompt tokens cached" in stats(page)
    assert page.value("sent")[-1]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello\nagain"},
        {"role": "assistant", "content": first},
        {"role": "user", "content": "More"},
    ]
    assert page.problems == []


def test_stop_retry_edit_and_new(page: Any) -> None:
    fill(page, "seed", "3")
    ask(page, "Hello", 2000)
    page.wait("document.querySelector('.assistant .body')?.textContent.length > 9")
    press(page, "halt")
    wait_for_the_end(page)
    stopped = last_answer(page)
    assert 9 < len(stopped) < 1000 and "ended by you" in stats(page)

    fill(page, "max-tokens", "9")
    page.value("document.querySelector('.assistant [aria-label=\"Answer again\"]').click()")
    wait_for_the_end(page)
    assert last_answer(page) == stopped[:9], "the same seed begins alike"
    ask(page, "And then?", 4)
    wait_for_the_end(page)
    assert page.value("document.querySelectorAll('#turns li').length") == 4

    page.value("document.querySelector('.user [aria-label^=\"Edit\"]').click()")
    assert page.value("document.getElementById('message').value") == "Hello"
    ask(page, "Hello, you", 4)
    wait_for_the_end(page)
    assert [message["content"] for message in page.value("sent")[-1]["messages"]] == ["Hello, you"]
    assert page.value("document.querySelectorAll('#turns li').length") == 2
    press(page, "new")
    assert page.value("document.querySelectorAll('#turns li').length") == 0


def test_controls_reach_the_request(page: Any) -> None:
    asked = {
        "temperature": 0.5, "top_p": 0.8, "top_k": 40, "min_p": 0.05, "presence_penalty": 0.5, "frequency_penalty": -0.5,
        "repetition_penalty": 1.1, "seed": 5, "max_tokens": 6,
    }  # fmt: skip
    for name, value in asked.items():
        fill(page, name.replace("_", "-"), str(value))
    fill(page, "stop-strings", "END\nSTOP")
    ask(page, "Hello", 6)
    wait_for_the_end(page)
    body = page.value("sent")[-1]
    assert {name: body[name] for name in asked} == asked
    assert body["stop"] == ["END", "STOP"] and (body["logprobs"], body["top_logprobs"]) == (True, 5)
    for name in asked:
        fill(page, name.replace("_", "-"), "")
    press(page, "show-logprobs")
    fill(page, "message", "Again")
    fill(page, "max-tokens", "3")
    page.value("document.getElementById('composer').requestSubmit()")
    wait_for_the_end(page)
    assert not {*asked, "logprobs"} & page.value("sent")[-1].keys() - {"max_tokens"}
    assert page.value("[...document.querySelectorAll('.assistant')].at(-1).querySelectorAll('.token').length") == 0


def test_probabilities_on_hover(page: Any) -> None:
    ask(page, "Hello", 8)
    wait_for_the_end(page)
    assert page.value("document.querySelectorAll('.assistant .token').length") == 8
    x, y = page.value(
        "(() => { const box = document.querySelectorAll('.token')[3].getBoundingClientRect(); return [box.left + 2, box.top + 8]; })()"
    )
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    page.wait("!document.getElementById('tip').hidden")
    shown = page.value("document.getElementById('tip').innerText")
    assert "%" in shown and "log-probability -" in shown
    assert page.value("document.querySelectorAll('#tip tr').length") == 5
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=5, y=5)
    page.wait("document.getElementById('tip').hidden")
    plain = page.value("getComputedStyle(document.querySelector('.token')).backgroundColor")
    press(page, "colour")
    assert page.value("getComputedStyle(document.querySelector('.token')).backgroundColor") != plain


ATTACK = '<img src=x onerror="window.broken = 1"><script>window.broken = 2</script>'


@pytest.mark.parametrize("with_logprobs", [True, False])
def test_what_a_model_writes_is_only_text(page: Any, with_logprobs: bool) -> None:
    """The server's answer is replaced by one that attacks."""
    token = {"token": ATTACK, "logprob": -0.1, "bytes": list(ATTACK.encode()), "top_logprobs": [{"token": ATTACK, "logprob": -0.1}]}
    logprobs = {"content": [token]} if with_logprobs else None
    choice = {"index": 0, "delta": {"content": ATTACK}, "finish_reason": "stop", "logprobs": logprobs}
    body = f"data: {json.dumps({'choices': [choice]})}\n\ndata: [DONE]\n\n"
    page.value(f"window.fetch = async () => new Response({json.dumps(body)})")
    ask(page, ATTACK)
    wait_for_the_end(page)
    assert last_answer(page) == text(page, ".user .body") == ATTACK
    if with_logprobs:
        page.value("document.querySelector('.token').click()")
        assert ATTACK.replace(" ", "·") in text(page, "#tip")
    assert page.value("document.querySelectorAll('#turns img, #turns script, #tip img').length") == 0
    assert page.value("window.broken") is None


def test_errors_are_shown_in_the_servers_words(page: Any) -> None:
    ask(page, "Hello", 99999)
    page.wait("!document.getElementById('error').hidden")
    assert "4096" in text(page, "#error") and "(400)" in text(page, "#error")
    assert page.value("document.querySelectorAll('#turns li').length") == 1, "the message stays"
    ask(page, "", 5)
    wait_for_the_end(page)
    assert len(last_answer(page)) == 5, "an empty message tries it again"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_fits(page: Any, tmp_path: Path, theme: str) -> None:
    page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
    ask(page, "A-long-word-" * 40, 60)
    wait_for_the_end(page)
    for width, height in ((390, 844), (1280, 900)):
        page.resize(width, height)
        for mode in ("mode-text", "mode-chat"):
            press(page, mode)
            assert page.value("document.documentElement.scrollWidth") <= width
            page.screenshot(tmp_path / "page.png")
            assert (tmp_path / "page.png").stat().st_size > 10_000
    ground = page.value("getComputedStyle(document.body).backgroundColor")
    press(page, "theme")
    assert page.value("getComputedStyle(document.body).backgroundColor") != ground
    named = "e.labels?.length || e.ariaLabel || e.textContent.trim()"
    controls = "[...document.querySelectorAll('input, textarea, button')]"
    assert page.value(f"{controls}.filter(e => !({named})).map(e => e.outerHTML)") == []


def test_it_asks_this_server_alone(page: Any, chatting: Any) -> None:
    ask(page, "Hello", 3)
    wait_for_the_end(page)
    page.value("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.broken = 1\">')")
    page.value("const s = document.createElement('script'); s.textContent = 'window.broken = 2'; document.body.append(s)")
    page.value("fetch('http://203.0.113.1/').catch(() => { window.refused = true; })")
    page.wait("window.refused")
    assert page.value("window.broken") is None
    assert any("Content Security Policy" in each for each in page.problems)
    assert page.requests
    assert all(each.startswith((chatting.url, "data:")) for each in page.requests if "203.0.113.1" not in each)


def test_continues_text_and_stops(serving: Callable[..., Any], browser: Any) -> None:
    with serving(SLOW) as server:
        browser.open(server.url)
        browser.wait("document.getElementById('model').textContent.startsWith('fake')")
        assert "base model without a chat template" in browser.value("document.body.innerText")
        assert browser.value("document.getElementById('modes').hidden")
        fill(browser, "prompt", "Once")
        fill(browser, "max-tokens", "30")
        fill(browser, "seed", "7")
        press(browser, "go")
        browser.wait("document.getElementById('output').textContent.length > 3")
        assert len(text(browser, "#output")) < 30, "the answer came at once instead of as a stream"
        browser.wait("document.getElementById('stats').textContent.includes('length')")
        first = text(browser, "#output")
        assert len(first) == 30 and "of 5 prompt tokens" in text(browser, "#stats")
        assert browser.value("document.querySelectorAll('#output .token').length") == 30
        press(browser, "go")
        browser.wait("document.getElementById('stats').textContent.includes('length')")
        assert text(browser, "#output") == first, "the same seed gives the same text"

        fill(browser, "max-tokens", "4000")
        press(browser, "go")
        browser.wait("document.getElementById('output').textContent.length > 5")
        press(browser, "stop")
        browser.wait("document.getElementById('stats').textContent.includes('ended by you')")
        browser.wait("document.getElementById('go').disabled === false")
        assert 5 < len(text(browser, "#output")) < 1000
        # Chromium logs every 4xx as a network problem; anything else would be ours.
        assert [each for each in browser.problems if "status of 400" not in each] == []


def test_asks_for_the_key(serving: Callable[..., Any], browser: Any) -> None:
    with serving("fake:{}", "--api-key", "open sesame") as server:
        browser.open(server.url)
        browser.wait("!document.getElementById('key-form').hidden")
        fill(browser, "key", "wrong")
        browser.value("document.getElementById('key-form').requestSubmit()")
        browser.wait("document.getElementById('key-error').textContent.includes('wrong')")
        fill(browser, "key", "open sesame")
        browser.value("document.getElementById('key-form').requestSubmit()")
        browser.wait("document.getElementById('key-form').hidden")
        press(browser, "go")
        browser.wait("document.getElementById('stats').textContent.includes('length')")


def test_chat_with_the_demo(demo_server: Any, browser: Any) -> None:
    browser.open(demo_server.url)
    browser.wait("!document.getElementById('chat').hidden")
    ask(browser, "Count to five.", 8)
    browser.wait("document.querySelector('.assistant .stats')?.textContent.includes('ended by')", seconds=60)
    assert last_answer(browser).strip() and browser.value("document.querySelectorAll('.token').length") > 0
    assert browser.problems == []
