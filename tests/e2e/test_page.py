"""The page in a real browser: completes text, streams, stops, shows errors, asks for a key, loads nothing from elsewhere."""

from collections.abc import Callable
from typing import Any

SLOW = 'fake:{"step_seconds": 0.02}'


def text(browser: Any, name: str) -> str:
    return browser.value(f"document.getElementById('{name}').textContent")


def fill(browser: Any, name: str, value: str) -> None:
    browser.value(f"document.getElementById('{name}').value = {value!r}")


def press(browser: Any, name: str) -> None:
    browser.value(f"document.getElementById('{name}').click()")


def test_completes_streams_and_stops(serving: Callable[..., Any], browser: Any) -> None:
    with serving(SLOW) as server:
        browser.open(server.url)
        browser.wait("document.getElementById('model').textContent.startsWith('fake')")
        assert "base model without a chat template" in browser.value("document.body.innerText")
        fill(browser, "prompt", "Once")
        fill(browser, "max-tokens", "30")
        fill(browser, "seed", "7")
        press(browser, "go")
        browser.wait("document.getElementById('made').textContent.length > 3")
        assert len(text(browser, "made")) < 30, "the answer came at once instead of as a stream"
        browser.wait("document.getElementById('reason').textContent === 'length'")
        first = text(browser, "made")
        assert len(first) == 30
        assert text(browser, "completion-tokens") == "30"
        assert text(browser, "prompt-tokens") == "5"
        assert 20 < float(text(browser, "speed")) < 60
        press(browser, "go")
        browser.wait("document.getElementById('reason').textContent === 'length'")
        assert text(browser, "made") == first, "the same seed gives the same text"

        fill(browser, "max-tokens", "4000")
        press(browser, "go")
        browser.wait("document.getElementById('made').textContent.length > 5")
        press(browser, "stop")
        browser.wait("document.getElementById('reason').textContent === 'you'")
        end_running = "document.getElementById('go').disabled === false"
        browser.wait(end_running)
        assert 5 < len(text(browser, "made")) < 1000

        fill(browser, "max-tokens", "99999")
        browser.value("document.getElementById('max-tokens').removeAttribute('max')")
        press(browser, "go")
        browser.wait("!document.getElementById('error').hidden")
        assert "4096" in text(browser, "error")
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
        browser.wait("document.getElementById('reason').textContent === 'length'")


def test_the_policy_lets_nothing_else_run(serving: Callable[..., Any], browser: Any) -> None:
    with serving("fake:{}") as server:
        browser.open(server.url)
        browser.wait("document.getElementById('model').textContent.startsWith('fake')")
        browser.value("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.broken = 1\">')")
        browser.value("const s = document.createElement('script'); s.textContent = 'window.broken = 2'; document.body.append(s)")
        assert browser.value("window.broken") is None
        assert any("Content Security Policy" in each for each in browser.problems)
