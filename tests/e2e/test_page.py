"""The page in a real browser: chats, continues text, streams, stops, shows errors and probabilities, loads nothing from elsewhere."""

import hashlib
import json
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from pages import SLOW, answer_with, ask, chat, click, count, fill, key, last_answer, press, replace_answers, stats, text, wait_for_the_end


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
    assert page.value("document.getElementById('message').value") == ""
    for part in ("30 tokens", "tok/s", "first token", "prompt tokens cached", "ended by max tokens"):
        assert part in stats(page)

    chat(page, "More", 5)
    assert "· 0 of" not in stats(page) and "prompt tokens cached" in stats(page)
    system, first, answer, second = page.value("sent")[-1]["messages"]
    assert (system, first, second) == (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello\nagain"},
        {"role": "user", "content": "More"},
    )
    assert answer["role"] == "assistant" and len(answer["content"]) == 30
    assert page.problems == []


def test_where_the_time_of_an_answer_went(page: Any) -> None:
    chat(page, "Hello", 12)
    click(page, '.assistant [aria-label="Where the time went"]')
    page.wait("document.querySelectorAll('.waterfall li').length > 3")
    shown = text(page, ".waterfall")
    assert "to the first token" in shown and "decode" in shown and "prefill" in shown
    ends = "[...document.querySelectorAll('.waterfall .bar')].map((bar) => bar.getBoundingClientRect().right)"
    assert page.value(f"(() => {{ const ends = {ends}; return ends.every((end, at) => at === 0 || end >= ends[at - 1] - 2); }})()")
    assert page.value("document.documentElement.scrollWidth <= innerWidth")
    click(page, '.assistant [aria-label="Where the time went"]')
    page.wait("document.querySelectorAll('.waterfall').length === 0")
    assert page.problems == []


def test_stop_retry_edit_and_new(page: Any) -> None:
    fill(page, "seed", "3")
    press(page, "probabilities")  # tokens as they are, not as Markdown
    ask(page, "Hello", 2000)
    page.wait("document.querySelector('.assistant .body')?.textContent.length > 9")
    key(page, "Escape")
    wait_for_the_end(page)
    stopped = text(page, ".assistant .body")
    assert 9 < len(stopped) < 1000 and "stopped by you" in stats(page)

    fill(page, "max-tokens", "9")
    click(page, '[aria-label="Answer again"]')
    wait_for_the_end(page)
    assert text(page, ".assistant .body") == stopped[:9], "the same seed begins alike"
    chat(page, "And then?", 4)
    assert count(page, "#turns > li") == 4

    page.value("document.getElementById('message').focus()")
    key(page, "ArrowUp")
    assert page.value("document.activeElement.value") == "And then?", "the arrow edits the last message"
    key(page, "Escape")
    assert count(page, ".edit") == 0 and count(page, "#turns > li") == 4
    click(page, '.user [aria-label^="Edit"]')
    assert page.value("document.activeElement.value") == "Hello"
    page.call("Input.insertText", text=", you")
    key(page)
    wait_for_the_end(page)
    assert [message["content"] for message in page.value("sent")[-1]["messages"]] == ["Hello, you"]
    assert count(page, "#turns > li") == 2
    press(page, "new")
    page.wait("document.querySelectorAll('#turns > li').length === 0")
    assert page.problems == []


def test_controls_reach_the_request(page: Any) -> None:
    asked = {
        "temperature": 0.5, "top_p": 0.8, "top_k": 40, "min_p": 0.05, "presence_penalty": 0.5, "frequency_penalty": -0.5,
        "repetition_penalty": 1.1, "seed": 5, "max_tokens": 6,
    }  # fmt: skip
    for name, value in asked.items():
        fill(page, name.replace("_", "-"), str(value))
    fill(page, "stop-strings", "END\nSTOP")
    press(page, "probabilities")
    chat(page, "Hello", 6)
    body = page.value("sent")[-1]
    assert {name: body[name] for name in asked} == asked
    assert body["stop"] == ["END", "STOP"] and (body["logprobs"], body["top_logprobs"]) == (True, 5)
    press(page, "reset")
    press(page, "probabilities")
    chat(page, "Again", 3)
    assert not {*asked, "logprobs", "stop"} & page.value("sent")[-1].keys() - {"max_tokens", "temperature", "top_p"}
    assert page.value("[...document.querySelectorAll('.assistant')].at(-1).querySelectorAll('.token').length") == 0
    fill(page, "seed", "9007199254740993")
    chat(page, "Once more", 3)
    assert "whole number below 2^53" in text(page, "#error")


def test_probabilities_on_hover(page: Any) -> None:
    press(page, "probabilities")
    chat(page, "Hello", 8)
    assert count(page, ".assistant .token") == 8
    x, y = page.value(
        "(() => { const box = document.querySelectorAll('.token')[3].getBoundingClientRect(); return [box.left + 2, box.top + 8]; })()"
    )
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    page.wait("!document.getElementById('tip').hidden")
    shown = page.value("document.getElementById('tip').innerText")
    assert "%" in shown and "log-probability -" in shown
    assert count(page, "#tip tr") == 5
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=5, y=5)
    page.wait("document.getElementById('tip').hidden")
    plain = page.value("getComputedStyle(document.querySelector('.token')).backgroundColor")
    press(page, "colour")
    assert page.value("getComputedStyle(document.querySelector('.token')).backgroundColor") != plain


MARKDOWN = """# Title

Some **bold**, *slanted* and `code`, a [link](https://example.com/a) and https://example.com/b.

```python
print("<b>1</b>")
```

3. three
   - nested

| a | b |
|--:|:-:|
| 1 | 2 |

> quoted

![a picture](https://example.com/p.png) and main.py
"""


def test_markdown_is_shown_and_code_is_copied(page: Any) -> None:
    answer_with(page, *(MARKDOWN[at : at + 7] for at in range(0, len(MARKDOWN), 7)))
    chat(page, "Write")
    body = ".assistant .markdown"
    for selector in ("h1", "strong", "em", "p > code", "pre code", "ol[start='3'] ul li", "td.right", "th.center", "blockquote p", ".wide"):
        assert count(page, f"{body} {selector}") == 1, selector
    assert text(page, f"{body} pre") == 'print("<b>1</b>")' and text(page, f"{body} .code-head span") == "python"
    links = page.value(f"[...document.querySelectorAll('{body} a')].map(a => [a.textContent, a.href, a.rel, a.target])")
    how = ["noopener noreferrer nofollow", "_blank"]
    assert links == [
        ["link", "https://example.com/a", *how],
        ["https://example.com/b", "https://example.com/b", *how],
        ["a picture", "https://example.com/p.png", *how],
    ]
    page.value("window.copied = []; navigator.clipboard.writeText = async (text) => { copied.push(text); }")
    click(page, f"{body} .code button")
    click(page, ".assistant .actions button")
    assert page.value("copied") == ['print("<b>1</b>")', MARKDOWN]
    answer_with(page, "<think>First this.", "\nThen that.</think>\n\nThe **answer**")
    assert chat(page, "Think") == "The answer" and text(page, "#turns > li:last-child .thinking .plain") == "First this.\nThen that."
    answer_with(page, "It ", "is so.", thoughts=("Hm", "m."))
    assert chat(page, "Again") == "It is so." and text(page, "#turns > li:last-child .thinking .plain") == "Hmm."
    assert page.problems == []


def test_errors_are_shown_and_tried_again(page: Any) -> None:
    chat_error = "document.getElementById('error')"
    ask(page, "Hello", 99999)
    page.wait(f"!{chat_error}.hidden")
    assert "4096" in text(page, "#error") and "(400)" in text(page, "#error")
    assert count(page, "#turns > li") == 1, "the message stays"
    fill(page, "max-tokens", "5")
    press(page, "try-again")
    wait_for_the_end(page)
    assert "5 tokens" in stats(page) and page.value(f"{chat_error}.hidden")

    busy = json.dumps({"error": {"message": "80 requests wait", "type": "overloaded_error", "param": None, "code": "overloaded"}})
    reply = f"new Response({json.dumps(busy)}, {{status: 429, headers: {{'Retry-After': '2'}}}})"
    replace_answers(page, reply)
    ask(page, "Again", 5)
    page.wait(f"!{chat_error}.hidden")
    assert "80 requests wait (429)" in text(page, "#error-text") and "Try again in 2 s" in text(page, "#try-again")
    assert page.value("document.getElementById('try-again').disabled")
    page.value("window.fetch = realFetch")
    page.wait("!document.getElementById('try-again').disabled")
    press(page, "try-again")
    wait_for_the_end(page)
    assert count(page, "#turns > li") == 4 and page.value(f"{chat_error}.hidden")

    answer_with(page, "Half an answ", tail="")
    assert chat(page, "Tell me") == "Half an answ"
    assert "in the middle" in text(page, "#error") and "not complete" in text(page, "#turns > li:last-child .note")
    page.value("window.fetch = async () => { throw new TypeError('Failed to fetch'); }")
    press(page, "try-again")
    page.wait("document.getElementById('error').textContent.includes('does not answer')")
    assert last_answer(page) == "Half an answ", "what was there stays"
    page.wait("document.getElementById('status').textContent.includes('trying again')")
    page.value("window.fetch = realFetch")
    page.wait("document.getElementById('status').hidden")
    press(page, "try-again")
    wait_for_the_end(page)
    assert count(page, "#turns > li") == 6 and "20 tokens" in stats(page) and text(page, "#turns > li:last-child .note") == ""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_fits(page: Any, tmp_path: Path, theme: str) -> None:
    page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
    answer_with(page, MARKDOWN, "\n```\n" + "wide " * 60 + "\n```\n" + "W" * 300, "\n\n|" + "wide|" * 60 + "\n|" + "-|" * 60)
    chat(page, "A-long-word-" * 40)
    for width, height in ((390, 844), (1280, 900)):
        page.resize(width, height)
        for mode in ("mode-text", "mode-chat"):
            press(page, mode)
            for panel in ("settings-toggle", "settings-close"):
                press(page, panel)
                assert page.value("document.documentElement.scrollWidth") <= width
                assert page.value("[...document.querySelectorAll('#scroll, #text-mode')].every(e => e.scrollWidth <= e.clientWidth)")
        page.screenshot(tmp_path / "page.png")
        assert (tmp_path / "page.png").stat().st_size > 10_000
    ground = page.value("getComputedStyle(document.body).backgroundColor")
    other = "dark" if theme == "light" else "light"
    page.value(f"const field = document.getElementById('theme'); field.value = '{other}'; field.dispatchEvent(new Event('change'))")
    assert page.value("getComputedStyle(document.body).backgroundColor") != ground
    named = "e.labels?.length || e.ariaLabel || e.textContent.trim()"
    controls = "[...document.querySelectorAll('input, textarea, button, select, summary')]"
    assert page.value(f"{controls}.filter(e => !({named})).map(e => e.outerHTML)") == []


def test_keys_reach_what_a_person_needs_in_order(page: Any) -> None:
    page.resize(1280, 900)
    page.value("document.activeElement.blur()")
    reached = []
    for _ in range(14):
        key(page, "Tab")
        reached.append(page.value("document.activeElement.id || document.activeElement.textContent.slice(0, 7)"))
    order = ["side-close", "new", "import", "mode-chat", "code", "settings-toggle", "Explain", "message", "send"]
    assert [each for each in reached if each in order][: len(order)] == order


def test_it_asks_this_server_alone(page: Any, chat_server: Any) -> None:
    chat(page, "Hello", 3)
    refused = page.value("(() => { try { document.body.innerHTML += '<img src=x>'; } catch (error) { return error.name; } })()")
    assert refused == "TypeError", "no HTML is made of a text"
    page.value("const i = new Image(); i.src = 'http://203.0.113.1/a.png'; i.onerror = () => { window.unseen = true; }")
    page.wait("window.unseen")
    page.value("fetch('http://203.0.113.1/').catch(() => { window.refused = true; })")
    page.wait("window.refused")
    assert any("Content Security Policy" in each for each in page.problems)
    assert page.requests
    assert all(each.startswith(chat_server.url) for each in page.requests if "203.0.113.1" not in each)


def test_the_page_is_small_and_its_library_is_the_one_that_was_checked(page: Any, chat_server: Any) -> None:
    ui = files("ridgeline.server") / "ui"
    for line in (ui / "vendor" / "SHA256SUMS").read_text().splitlines():
        expected, name = line.split()
        assert hashlib.sha256((ui / "vendor" / name).read_bytes()).hexdigest() == expected, name
    loaded = page.value("performance.getEntriesByType('resource').map(e => [e.name, e.decodedBodySize])")
    scripts = {name.removeprefix(chat_server.url): size for name, size in loaded}
    assert "/ui/vendor/markdown-it.umd.min.js" in scripts and "/ui/markdown.js" in scripts
    assert sum(scripts.values()) < 190_000, scripts


def test_continues_text_and_stops(serving: Callable[..., Any], browser: Any) -> None:
    with serving(SLOW) as server:
        browser.open(server.url)
        browser.wait("document.getElementById('model').textContent.startsWith('fake')")
        assert "This is a base model" in browser.value("document.body.innerText")
        fill(browser, "prompt", "Once")
        fill(browser, "max-tokens", "30")
        fill(browser, "seed", "7")
        press(browser, "probabilities")
        press(browser, "go")
        browser.wait("document.getElementById('output').textContent.length > 3")
        assert len(text(browser, "#output")) < 30, "the answer came at once instead of as a stream"
        browser.wait("document.getElementById('stats').textContent.includes('max tokens')")
        first = text(browser, "#output")
        assert len(first) == 30 and "of 5 prompt tokens" in text(browser, "#stats")
        assert count(browser, "#output .token") == 30
        press(browser, "go")
        browser.wait("document.getElementById('stats').textContent.includes('max tokens')")
        assert text(browser, "#output") == first, "the same seed gives the same text"
        press(browser, "more")
        browser.wait("document.getElementById('stats').textContent.includes('max tokens')")
        assert text(browser, "#input-text") == f"Once{first}"

        fill(browser, "max-tokens", "4000")
        press(browser, "go")
        browser.wait("document.getElementById('output').textContent.length > 5")
        press(browser, "stop")
        browser.wait("document.getElementById('stats').textContent.includes('stopped by you')")
        assert 5 < len(text(browser, "#output")) < 1000
        press(browser, "mode-chat")
        assert "no chat template" in browser.value("document.body.innerText")
        assert browser.value("document.getElementById('composer').hidden")
        assert browser.problems == []


def test_chat_with_the_demo(demo_server: Any, browser: Any) -> None:
    browser.open(demo_server.url)
    browser.wait("document.getElementById('status')?.hidden")
    press(browser, "mode-chat")
    fill(browser, "seed", "3")  # other draws may be blank
    ask(browser, "Count to five.", 8)
    browser.wait("document.querySelector('.assistant .stats')?.textContent.includes('tok/s')", seconds=60)
    assert last_answer(browser).strip()
    assert browser.problems == []
