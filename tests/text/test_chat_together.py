"""Conversations of a moment are rendered together, and each has its own answer."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from ridgeline.errors import RequestError
from ridgeline.text import chat_process
from ridgeline.text.chat_process import Renderer, TemplateProcess

NOW = (2026, 3, 4, 5, 6, 7)
VARIABLES = {"messages": [{"role": "user", "content": "Hi"}]}
TEMPLATES = {"fine": "{{ messages[0].content }}", "refusing": "{{ raise_exception('No') }}", "product": "{{ 'a' * 10**9 }}"}


@pytest.fixture(scope="module")
def renderer() -> Iterator[Renderer]:
    made = Renderer(TEMPLATES)
    yield made
    made.close()


def pids_of(renderer: Renderer) -> tuple[int, int]:
    """The process in use and the spare."""
    return renderer._current.pid, renderer._spare.pid


def said(text: str) -> dict[str, Any]:
    """Variables of a conversation of one message."""
    return {"messages": [{"role": "user", "content": text}]}


def test_many_render_from_the_loop_together(monkeypatch: pytest.MonkeyPatch, renderer: Renderer) -> None:
    frames = []
    ask = TemplateProcess.ask_from_loop

    async def counted(process: TemplateProcess, request: bytes, seconds: float) -> dict[str, Any] | None:
        frames.append(len(request))
        return await ask(process, request, seconds)

    async def scene() -> list[str | None]:
        found = await asyncio.gather(*(renderer.render_from_loop("fine", said(f"{at} " + "a" * 900), NOW) for at in range(20)))
        assert await asyncio.to_thread(renderer.render, "fine", VARIABLES, NOW) == "Hi"
        return found

    monkeypatch.setattr(TemplateProcess, "ask_from_loop", counted)
    assert renderer.render("fine", VARIABLES, NOW) == "Hi"  # a process that has just taken another's place is a thread's
    assert asyncio.run(scene()) == [f"{at} " + "a" * 900 for at in range(20)]
    assert len(frames) == 2 and max(frames) < chat_process.QUICK_BYTES + 100


def test_those_that_are_refused_together_have_errors_of_their_own(renderer: Renderer) -> None:
    async def scene() -> list[str | BaseException | None]:
        names = ("fine", "refusing", "product", "fine")
        return await asyncio.gather(*(renderer.render_from_loop(each, VARIABLES, NOW) for each in names), return_exceptions=True)

    renderer.render("fine", VARIABLES, NOW)
    first, refused, exceeded, last = asyncio.run(scene())
    assert (first, last) == ("Hi", "Hi")
    assert isinstance(refused, RequestError) and refused.code == "template_refused"
    assert isinstance(exceeded, RequestError) and exceeded.code in ("template_failed", "template_budget")


def test_who_has_gone_holds_up_nobody_and_costs_no_process(renderer: Renderer) -> None:
    async def scene() -> str | None:
        leaving, staying = (asyncio.create_task(renderer.render_from_loop("fine", said(text), NOW)) for text in ("left", "stayed"))
        await asyncio.sleep(0)  # both are asked for
        leaving.cancel()
        found = await staying
        assert leaving.cancelled()
        return found

    renderer.render("fine", VARIABLES, NOW)
    pids = pids_of(renderer)
    assert asyncio.run(scene()) == "stayed" and pids_of(renderer) == pids


def test_a_loop_that_ends_in_the_middle_leaves_no_answer_to_the_next_one(renderer: Renderer) -> None:
    async def scene() -> None:
        asked = asyncio.create_task(renderer.render_from_loop("fine", said("of the first"), NOW))
        while renderer._task is None or not renderer._lock.locked():
            await asyncio.sleep(0)
        asked.cancel()

    renderer.render("fine", VARIABLES, NOW)
    asyncio.run(scene())
    assert renderer.render("fine", VARIABLES, NOW) == "Hi"
