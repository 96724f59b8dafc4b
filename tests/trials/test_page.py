"""The page as a newcomer meets it (a base model, a key, a reload), and answers that want to run or to phone home."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pages import chat, fill, give, last_answer, press, text, visit

HELPERS = Path(__file__).parents[1] / "helpers"


def test_n4_a_base_model_opens_as_completion_and_says_why(serving: Callable[..., Any], browser: Any) -> None:
    with serving("fake:{}") as server:
        browser.open(server.url)
        browser.wait("document.getElementById('status')?.hidden")
        assert browser.value("document.getElementById('chat').hidden && !document.getElementById('text-mode').hidden")
        assert text(browser, "#kind") == "base model"
        shown = browser.value("document.body.innerText")
        assert "This is a base model (its files hold no chat template): it was trained to continue texts, not to answer" in shown
        press(browser, "mode-chat")
        assert "This is a base model" in browser.value("document.getElementById('chat').innerText"), "both tabs remain"


@pytest.mark.parametrize("width", [390, 1280])
def test_n18_a_locked_page_shows_one_card(serving: Callable[..., Any], browser: Any, width: int) -> None:
    with serving("fake:{}", "--api-key", "open sesame") as server:
        browser.resize(width, 800)
        browser.open(server.url)
        browser.wait("!document.getElementById('key-form').hidden")
        left, right, top, bottom = browser.value(
            "(box => [box.left, box.right, box.top, box.bottom])(document.getElementById('key-form').getBoundingClientRect())"
        )
        assert 0 <= left < right <= width and 0 <= top < bottom <= 800
        shown = "[...document.querySelectorAll('#content :is(input, textarea, button)')].filter(e => e.checkVisibility())"
        names = set(browser.value(f"{shown}.map(e => e.id || e.type)"))
        assert names <= {"side-toggle", "settings-toggle", "key", "submit"}, "what needs the key is not shown"
        fill(browser, "key", "wrong")
        browser.value("document.getElementById('key-form').requestSubmit()")
        browser.wait("document.getElementById('key-error').textContent.includes('wrong')")
        fill(browser, "key", "open sesame")
        browser.value("document.getElementById('key-form').requestSubmit()")
        browser.wait("document.getElementById('key-form').hidden && !document.getElementById('text-mode').hidden")
        press(browser, "go")
        browser.wait("document.getElementById('stats').textContent.includes('max tokens')")
        browser.call("Page.reload")
        browser.wait("document.getElementById('text-mode')?.hidden === false")
        assert browser.value("Object.values(localStorage).join().includes('sesame')") is False, "the key is not kept on disk"


def test_n19_a_reload_keeps_the_conversation_and_code_is_not_cut(page: Any, chat_server: Any) -> None:
    chat(page, "Remember me", 12)
    answer = last_answer(page)
    page.call("Page.reload")
    page.wait("document.getElementById('status')?.hidden && document.querySelectorAll('#turns > li').length === 2")
    assert text(page, ".user .body") == "Remember me" and last_answer(page) == answer
    visit(page, chat_server.url)
    assert "Remember me" in page.value("document.getElementById('conversations').innerText"), "listed where the page is opened anew"
    for width in (390, 1280):
        page.resize(width, 800)
        page.value("document.getElementById('code').click()")
        fits = "e.scrollWidth <= e.clientWidth && e.scrollHeight <= e.clientHeight + 1"
        whole = f"[...document.querySelectorAll('dialog pre')].every(e => {fits})"
        assert page.value(whole) and chat_server.url in text(page, "#python")
        page.value("document.getElementById('code-dialog').close()")


WATCH = (HELPERS / "xss.js").read_text()
ANSWERS = [each for family in json.loads((HELPERS / "xss_answers.json").read_text()).values() for each in family]
"""Each calls `pwn()` and sets `window.broken` if it runs, or names evil.test if it loads something."""


def test_a_hundred_hostile_answers_run_nothing_and_ask_for_nothing(page: Any, chat_server: Any) -> None:
    """Rendered as they stream, by the page's own function; then each as an answer of a conversation that is sent, kept and loaded."""
    assert len(ANSWERS) >= 100 and len(set(ANSWERS)) == len(ANSWERS)
    page.value(WATCH)
    page.requests.clear()
    assert page.value(f"renderAll({json.dumps(ANSWERS)})") == []
    talk = [{"role": role, "content": answer} for answer in ANSWERS for role in ("user", "assistant")]
    give(page, json.dumps({"title": ANSWERS[0], "messages": talk}))
    page.wait(f"document.querySelectorAll('#turns > li.assistant').length === {len(ANSWERS)}")
    assert page.value("new Promise((resolve) => setTimeout(() => resolve(harm), 300))") == []
    assert page.value("window.broken") is None
    own = {f"{chat_server.url}/ui/{name}" for name in ("markdown.js", "dom.js", "icon.svg")}
    assert set(page.requests) <= own, "no other request"
    assert page.problems == []


@pytest.mark.parametrize("answer", [ANSWERS[1], ANSWERS[29], "<img src='https://evil.test/p.png'>"])
def test_the_watch_of_that_test_sees_harm(browser: Any, answer: str) -> None:
    """Inserted as HTML, on a page without the policy."""
    browser.open("data:text/html,<ol id=turns></ol>")
    browser.value(WATCH)
    browser.value(f"document.getElementById('turns').innerHTML = {json.dumps(answer)}; new Promise((resolve) => setTimeout(resolve, 200))")
    assert browser.value("harm")
