"""What the page keeps in the browser: conversations that outlive a reload, are renamed, deleted, brought back, exported and imported."""

import json
import time
from pathlib import Path
from typing import Any

from pages import ask, chat, click, count, fill, give, key, last_answer, press, text, visit, wait_for_the_end

TITLES = "[...document.querySelectorAll('#conversations .open')].map(e => e.textContent)"


def saved(browser: Any, folder: Path) -> tuple[str, str]:
    """Name and text of the file that the browser has downloaded, which is removed."""
    end = time.monotonic() + 15
    while not (files := [path for path in folder.iterdir() if path.suffix in (".md", ".json")]):
        assert time.monotonic() < end
        time.sleep(0.02)
    content = files[0].read_text()
    files[0].unlink()
    return files[0].name, content


def menu(browser: Any, action: str, number: int = 0) -> None:
    browser.value(f"document.querySelectorAll('#conversations .open ~ button')[{number}].click()")
    press(browser, action)


def test_conversations_are_listed_renamed_deleted_and_brought_back(page: Any) -> None:
    chat(page, "First things first", 3)
    press(page, "new")
    page.wait("document.querySelectorAll('#turns > li').length === 0")
    chat(page, "Second\nwith a second line", 3)
    page.wait(f"{TITLES}.length === 2")
    assert page.value(TITLES) == ["Second", "First things first"]
    menu(page, "act-rename")
    assert page.value("document.activeElement.value") == "Second"
    page.call("Input.insertText", text="Renamed <b>")
    key(page)
    page.wait(f"{TITLES}[0] === 'Renamed <b>'")
    menu(page, "act-delete", 1)
    page.wait(f"{TITLES}.length === 1")
    assert "“First things first” was deleted" in text(page, "#toast") and count(page, "#turns > li") == 2, "the open one stays"
    click(page, "#toast button")
    page.wait(f"{TITLES}.length === 2")
    page.value("document.querySelectorAll('#conversations .open')[1].click()")
    page.wait("document.querySelector('.user .body').textContent === 'First things first'")
    for number in range(7):
        give(page, json.dumps({"title": f"No. {number}", "messages": [{"role": "user", "content": "x"}]}))
        page.wait(f"{TITLES}.includes('No. {number}')")
    fill(page, "search", "renamed")
    page.wait(f"{TITLES}.length === 1")
    assert page.problems == []


def test_an_answer_goes_on_while_another_conversation_is_open(page: Any) -> None:
    ask(page, "Long", 60)
    page.wait("document.querySelector('.assistant .body')?.textContent.length > 3")
    press(page, "new")
    page.wait("document.querySelectorAll('#turns > li').length === 0")
    assert page.value("document.getElementById('halt').hidden"), "the new one is idle"
    chat(page, "Short", 3)
    page.wait("document.querySelectorAll('#conversations li.busy').length === 0")
    page.value(f"document.querySelectorAll('#conversations .open')[{TITLES}.indexOf('Long')].click()")
    page.wait("document.querySelector('.user .body').textContent === 'Long'")
    wait_for_the_end(page)
    assert "60 tokens" in text(page, ".assistant .stats")


def test_a_deleted_conversation_stays_deleted_and_a_draft_waits(page: Any) -> None:
    ask(page, "To be deleted", 100)
    page.wait("document.querySelector('.assistant .body')?.textContent.length > 3")
    menu(page, "act-delete")
    page.wait("document.querySelectorAll('#turns > li').length === 0")
    chat(page, "Another", 3)
    assert page.value(TITLES) == ["Another"], "the end of its answer does not bring it back"
    fill(page, "message", "half a thought")
    press(page, "new")
    page.wait("document.querySelectorAll('#turns > li').length === 0")
    assert page.value("document.getElementById('message').value") == ""
    click(page, "#conversations .open")
    page.wait("document.querySelectorAll('#turns > li').length === 2")
    assert page.value("document.getElementById('message').value") == "half a thought"
    assert page.problems == []


def test_files_go_out_and_come_back(page: Any, tmp_path: Path) -> None:
    folder = tmp_path / "downloads"
    folder.mkdir()
    context = page.call("Target.getTargetInfo")["targetInfo"]["browserContextId"]
    page.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder), browserContextId=context)
    fill(page, "system", "Be brief.")
    chat(page, "Hello there!", 4)
    answer = page.value("sent")[-1]["messages"]
    page.wait(f"{TITLES}.length === 1")
    menu(page, "act-markdown")
    name, content = saved(page, folder)
    assert name == "hello-there.md" and content.startswith("# Hello there!\n\n> Be brief.\n\n## You\n\nHello there!\n\n## fake")
    menu(page, "act-json")
    name, content = saved(page, folder)
    one = json.loads(content)
    assert name == "hello-there.json" and one["messages"][:2] == answer and one["messages"][2]["role"] == "assistant"
    press(page, "export-all")
    name, content = saved(page, folder)
    assert [each["title"] for each in json.loads(content)] == ["Hello there!"]

    talk = {"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "Q"}, {"role": "assistant", "content": "**A**"}]}
    give(page, json.dumps(talk))
    page.wait("document.querySelector('.user .body')?.textContent === 'Q'")
    assert last_answer(page) == "A" and page.value("document.getElementById('system').value") == "S"
    wrong = [[{}], {"messages": []}, {"messages": [{"role": "user", "content": [1]}]}, {"messages": [{"role": "tool", "content": ""}]}]
    for content in ("{", *map(json.dumps, wrong)):
        page.value("document.getElementById('toast').textContent = ''")
        give(page, content)
        page.wait("document.getElementById('toast').textContent.includes('was not imported')")
    assert page.value(TITLES) == ["Q", "Hello there!"]
    assert page.problems == []


def test_settings_and_drafts_are_kept(page: Any, chat_server: Any) -> None:
    fill(page, "temperature", "0.3")
    fill(page, "system", "Be brief.")
    fill(page, "prompt", "Once upon")
    press(page, "probabilities")
    page.value("const field = document.getElementById('theme'); field.value = 'dark'; field.dispatchEvent(new Event('change'))")
    visit(page, chat_server.url)
    kept = ("temperature", "system", "prompt", "theme")
    assert [page.value(f"document.getElementById('{name}').value") for name in kept] == ["0.3", "Be brief.", "Once upon", "dark"]
    assert page.value("document.getElementById('probabilities').checked && document.documentElement.dataset.theme") == "dark"
