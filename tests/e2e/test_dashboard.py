"""The dashboard in a real browser, beside a server that works: it fills, it fits a telephone, it asks nobody else, it keeps its key."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from pages import SLOW, text

LOADED = "document.getElementById('board') && !document.getElementById('board').hidden && !!document.querySelector('#tokens svg path')"

FIGURES = "Object.fromEntries([...document.querySelectorAll('#figures div')].map(each => [...each.children].map(e => e.textContent)))"
LATENCIES = ("TTFT p50 · p90 · p99", "ITL p50 · p90 · p99")
"""Of the figures below the verdict."""
KV = ("held", "free")


def ask(url: str, done: threading.Event) -> None:
    """One request after the other."""
    body = json.dumps({"prompt": "Hello there", "max_tokens": 40, "ignore_eos": True}).encode()
    while not done.is_set():
        with urlopen(Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"}), timeout=60) as answer:
            answer.read()


def test_under_load_on_a_telephone_and_a_desk(serving: Callable[..., Any], browser: Any, tmp_path: Path) -> None:
    with serving(SLOW) as server:
        done = threading.Event()
        load = [threading.Thread(target=ask, args=(server.url, done)) for _ in range(8)]
        for each in load:
            each.start()
        browser.resize(390, 844)
        browser.open(f"{server.url}/dashboard")
        browser.wait(LOADED)
        browser.wait("/batch [1-8]/.test(document.getElementById('verdict').textContent)")
        assert text(browser, "#model") == "fake"
        browser.wait(f"!{[*LATENCIES]}.some(name => ({FIGURES})[name] === '–')")
        shown = browser.value(FIGURES)
        assert shown["running"].split()[0] in map(str, range(1, 9)) and shown["waiting"].isdecimal(), shown
        assert float(shown["decode"].split()[0]) > 0 and all(len(shown[name].split(" · ")) == 3 for name in LATENCIES), shown
        held, free = (browser.value(f"document.querySelector('#kv-map').textContent.match(/{part}[^0-9]*([0-9,]+)/)") for part in KV)
        assert held and free, text(browser, "#kv-map")
        assert browser.value("document.querySelectorAll('#rows svg path').length") >= 2
        for width, height in ((390, 844), (1280, 900)):
            browser.resize(width, height)
            browser.wait(f"document.querySelector('#tokens svg').viewBox.baseVal.width <= {width}")
            assert browser.value("document.documentElement.scrollWidth") <= width
            browser.screenshot(tmp_path / f"{width}.png")
        browser.wait("document.querySelectorAll('#slowest button').length > 0")
        name = browser.value("document.querySelector('#slowest button').click() || document.querySelector('#slowest button').textContent")
        browser.wait("document.querySelectorAll('#request .waterfall li .bar').length > 2")
        assert "decode" in text(browser, "#request") and len(name) == 8
        before = browser.value("document.querySelector('#tokens path.c0').getAttribute('d')")
        browser.wait(f"document.querySelector('#tokens path.c0').getAttribute('d') !== {json.dumps(before)}")
        assert browser.value("document.getElementById('tenants-panel').hidden"), "nobody has a key"
        done.set()
        for each in load:
            each.join()
        assert not browser.problems
        assert all(url.startswith(server.url) for url in browser.requests)


def test_a_key_is_asked_for_and_never_stored(serving: Callable[..., Any], browser: Any) -> None:
    with serving(SLOW, "--api-key", "secret-key") as server:
        browser.open(f"{server.url}/dashboard")
        browser.wait("!document.getElementById('key-form').hidden")
        assert browser.value("document.getElementById('board').hidden")
        browser.value("(document.getElementById('key').value = 'secret-key', document.getElementById('key-form').requestSubmit())")
        browser.wait("!document.getElementById('board').hidden")
        assert browser.value("JSON.stringify(localStorage)").find("secret-key") < 0
