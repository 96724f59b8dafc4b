"""A hostile template cannot leave its sandbox, and cannot exceed its limits, while other requests are not delayed."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from chat_cases import NamedTokenizer, found

from ridgeline.errors import EngineDeadError, ModelFormatError, OverloadedError, RequestError
from ridgeline.text import chat_process
from ridgeline.text.chat import ChatTemplate
from ridgeline.text.chat_content import Conversation
from ridgeline.text.chat_process import Renderer

NOW = (2026, 3, 4, 5, 6, 7)
VARIABLES = {"messages": [{"role": "user", "content": "Hi"}], "tools": None, "add_generation_prompt": True, "bos_token": "<s>"}
MACRO = "{% macro m(x) %}{{ x }}{% endmacro %}"

ESCAPES = {
    "class": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "class by key": "{{ ''['__class__'] }}",
    "class by filter": "{{ ''|attr('__class__') }}",
    "class by built name": "{{ ''|attr('__cla' ~ 'ss__') }}",
    "class by map": "{{ messages|map(attribute='__class__')|list }}",
    "class by format": "{{ '{0.__class__.__mro__}'.format('') }}",
    "class by format_map": "{{ '{a.__class__}'.format_map({'a': 1}) }}",
    "class of a list": "{{ [].__class__.__base__.__subclasses__() }}",
    "cycler": "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "cycler made": "{{ cycler('a').__init__.__globals__ }}",
    "joiner": "{{ joiner.__init__.__globals__ }}",
    "namespace": "{{ namespace.__init__.__globals__ }}",
    "namespace attributes": "{{ namespace(a=1)._Namespace__attrs }}",
    "namespace with a class": "{{ namespace(__class__=1) }}",
    "namespace set to a class": "{% set n = namespace() %}{% set n.__class__ = 1 %}",
    "dict": "{{ dict.__class__ }}",
    "dict made": "{{ dict(a=1).__class__ }}",
    "lipsum": "{{ lipsum.__globals__ }}",
    "lipsum called": "{{ lipsum(n=100000) }}",
    "range": "{{ range.__globals__ }}",
    "own function": "{{ raise_exception.__globals__ }}",
    "own function's code": "{{ raise_exception|attr('__code__') }}",
    "own closure": "{{ strftime_now.__closure__ }}",
    "macro": MACRO + "{{ m._func.__globals__ }}",
    "macro's environment": MACRO + "{{ m._environment }}",
    "self": "{{ self._TemplateReference__context }}",
    "self's globals": "{{ self.__init__.__globals__ }}",
    "loop": "{% for m in messages %}{{ loop._iterable.__class__ }}{% endfor %}",
    "loop's frame": "{% for m in messages %}{{ loop.__init__.__globals__ }}{% endfor %}",
    "generator": "{{ (messages|map('upper')).gi_frame.f_globals }}",
    "method's owner": "{{ ''.join.__self__ }}",
    "undefined": "{{ nothing.__class__ }}",
    "web framework": "{{ request.application.__globals__ }}",
    "include": "{% include '/etc/passwd' %}",
    "import": "{% import '/etc/passwd' as p %}",
    "from import": "{% from 'os' import system %}",
    "extends": "{% extends '/etc/passwd' %}",
    "append": "{{ messages.append(1) }}",
    "update": "{{ messages[0].update(role='system') }}",
    "codec that is a module": "{{ 'a'.encode('idna_no_such') }}",
}
"""Escapes that are known to work in plain Jinja, and changes of the template's input."""

BOMBS = {
    "range": "{{ range(10**9)|list|length }}",
    "loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "three loops": "{% for i in range(999) %}{% for j in range(9999) %}{% for k in range(9999) %}{% endfor %}{% endfor %}{% endfor %}",
    "silent loops": "{% for i in range(99999) %}{% set x = range(99999)|list %}{% endfor %}",
    "product": "{{ 'a' * 10**9 }}",
    "product from the left": "{{ 10**9 * 'a' }}",
    "product of products": "{{ ('a' * 10**6) * 10**6 }}",
    "product of lists": "{{ ([0] * 10**9)|length }}",
    "power": "{{ 9**(9**9) }}",
    "power of a float": "{{ 2.5**(10**9) }}",
    "negative power": "{{ 2**(0 - 10**9) }}",
    "squares": "{% set n = namespace(x=9) %}{% for i in range(60) %}{% set n.x = n.x * n.x %}{% endfor %}{{ n.x }}",
    "doubled string": "{% set n = namespace(s='a') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
    "added string": "{% set n = namespace(s='a') %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}",
    "doubled list": "{% set n = namespace(s=[0]) %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}",
    "nested list": "{% set n = namespace(s=[0]) %}{% for i in range(90000) %}{% set n.s = [n.s] %}{% endfor %}{{ n.s|tojson }}",
    "shared list": "{% set n = namespace(s=[0]) %}{% for i in range(60) %}{% set n.s = [n.s, n.s] %}{% endfor %}{{ n.s|tojson }}",
    "joined": "{% set n = namespace(s='a') %}{% for i in range(60) %}{% set n.s = [n.s, n.s]|join(n.s) %}{% endfor %}",
    "replaced": "{% set n = namespace(s='aa') %}{% for i in range(60) %}{% set n.s = n.s|replace('a', n.s) %}{% endfor %}",
    "recursive macro": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "macros by turns": "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{{ a() }}{% endmacro %}{{ a() }}",
    "fibonacci": "{% macro f(n) %}{% if n > 1 %}{{ f(n - 1) }}{{ f(n - 2) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "recursive loop": "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "percent width": "{{ '%0999999999d'|format(1) }}",
    "format width": "{{ '{:0999999999d}'.format(1) }}",
    "ljust": "{{ 'a'.ljust(10**9) }}",
    "zfill": "{{ '1'.zfill(10**9) }}",
    "center": "{{ 'a'|center(10**9) }}",
    "indent": "{{ 'a\nb'|indent(10**9) }}",
    "expandtabs": "{{ 'a\tb'.expandtabs(10**9) }}",
    "wide JSON": "{{ [[1]]|tojson(indent=10**9) }}",
    "batch": "{{ [1]|batch(10**9, 'x')|list }}",
    "round": "{{ 1.5|round(10**8, 'floor') }}",
    "huge output": "{% for i in range(99999) %}{{ 'abcdefghijkl' }}{% endfor %}",
    "endless output": "{% for i in range(99999) %}{% for j in range(99999) %}{{ 'abcdefghijkl' }}{% endfor %}{% endfor %}",
    "output of a macro": "{% macro m() %}{% for i in range(99999) %}{{ 'a' * 100000 }}{% endfor %}{% endmacro %}{{ m() }}",
    "joiner of length": "{% set j = joiner('a' * 10**6) %}{% for i in range(99999) %}{{ j() }}{% endfor %}",
    "endless cycler": "{% set c = cycler('a') %}{% for i in range(99999) %}{% for j in range(999) %}{{ c.next() }}{% endfor %}{% endfor %}",
    "sort": "{% for i in range(99999) %}{% set x = range(99999)|sort(reverse=true) %}{% endfor %}",
    "slices": "{% for i in range(99999) %}{% set x = range(99999)|slice(9999)|list %}{% endfor %}",
    "words": "{% set s = 'a ' * 500000 %}{% for i in range(999) %}{% set x = s|wordwrap(1)|wordcount %}{% endfor %}",
}
UNCOMPILED = {
    "syntax": "{% if %}",
    "unknown tag": "{% exec 'id' %}",
    "unknown filter": "{{ 1|no_such_filter }}",
    "open block": "{% for m in messages %}",
    "deep blocks": "{% if 1 %}" * 3_000 + "{% endif %}" * 3_000,
    "deep brackets": "{{ " + "(" * 20_000 + "1" + ")" * 20_000 + " }}",
    "folded product": "{{ 'a'|center(1000000000) }}{% if %}",
}


def pids_of(renderer: Renderer) -> tuple[int, int]:
    """The process in use and the spare."""
    return renderer._current.pid, renderer._spare.pid


@pytest.fixture(scope="module")
def renderer() -> Iterator[Renderer]:
    made = Renderer({**ESCAPES, **BOMBS, "fine": "{{ messages[0].content }}", "refusing": "{{ raise_exception('No\tway' ~ 'y' * 500) }}"})
    yield made
    made.close()


def timed(renderer: Renderer, name: str) -> tuple[RequestError, float]:
    start = time.monotonic()
    with pytest.raises(RequestError) as refused:
        renderer.render(name, VARIABLES, NOW)
    return refused.value, time.monotonic() - start


def refused_in_time(renderer: Renderer, name: str) -> RequestError:
    """In less than 0.5 s; tried again, five times at most, where another process had the CPU."""
    seconds = []
    while len(seconds) < 6 and min(seconds, default=9.0) >= 0.5:
        error, taken = timed(renderer, name)
        seconds.append(taken)
    assert min(seconds) < 0.5, seconds
    assert (error.status, error.param) == (400, "messages") and error.code in ("template_failed", "template_budget")
    return error


def test_the_corpora_are_large_enough() -> None:
    assert len(ESCAPES) + len(BOMBS) >= 80


@pytest.mark.parametrize("name", ESCAPES)
def test_escapes_are_refused(renderer: Renderer, name: str) -> None:
    pid = pids_of(renderer)[0]
    message = refused_in_time(renderer, name).message
    assert "root:" not in message and "uid=" not in message and len(message) < 320
    assert pids_of(renderer)[0] == pid, "an escape that ends the process is an escape"


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_in_time(renderer: Renderer, name: str) -> None:
    refused_in_time(renderer, name)
    assert renderer.render("fine", VARIABLES, NOW) == "Hi"


def test_a_spare_process_of_any_age_takes_over(renderer: Renderer) -> None:
    renderer.render("fine", VARIABLES, NOW)
    renderer._spare._started -= 60
    refused_in_time(renderer, "loops")
    assert renderer.render("fine", VARIABLES, NOW) == "Hi"


@pytest.mark.parametrize("name", UNCOMPILED)
def test_templates_that_do_not_compile_are_refused_with_the_reason(name: str) -> None:
    with pytest.raises(ModelFormatError, match=r"does not compile: \w+"):
        Renderer({"default": UNCOMPILED[name]})


def test_a_refusal_is_the_template_s_own_text_shortened(renderer: Renderer) -> None:
    error, _ = timed(renderer, "refusing")
    assert error.code == "template_refused" and error.message.startswith("No wayyy") and len(error.message) == 200


def test_a_conversation_too_deep_or_too_large_is_refused(renderer: Renderer) -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    for value, said in ((deep, "cannot be sent as JSON"), ("a" * (33 << 20), "34603")):
        with pytest.raises(RequestError, match=said):
            renderer.render("fine", {**VARIABLES, "messages": value}, NOW)
    while deep:
        deep = deep.pop()  # type: ignore[assignment]


def test_a_process_that_dies_is_replaced(renderer: Renderer) -> None:
    first, spare = pids_of(renderer)
    os.kill(first, signal.SIGKILL)
    error, _ = timed(renderer, "fine")
    assert error.code == "template_budget"
    assert renderer.render("fine", VARIABLES, NOW) == "Hi" and pids_of(renderer)[0] == spare


def test_who_waits_too_long_is_told_to_try_again(monkeypatch: pytest.MonkeyPatch, renderer: Renderer) -> None:
    monkeypatch.setattr(chat_process, "QUEUE_SECONDS", 0.05)
    with renderer._lock, pytest.raises(OverloadedError, match="try again") as busy:
        renderer.render("fine", VARIABLES, NOW)
    assert busy.value.retry_after_seconds == 1


def test_closing_ends_both_processes() -> None:
    renderer = Renderer({"default": "x"})
    pids = pids_of(renderer)
    renderer.close()
    renderer.close()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    with pytest.raises(EngineDeadError):
        renderer.render("default", {}, NOW)


# ── rendering from the event loop ───────────────────────────────────────────────────────────────────────────────────


async def rendered(renderer: Renderer, name: str) -> str:
    """As the server renders: from the loop, or in a thread where that cannot be."""
    text = await renderer.render_from_loop(name, VARIABLES, NOW)
    return await asyncio.to_thread(renderer.render, name, VARIABLES, NOW) if text is None else text


@pytest.mark.parametrize("name", ["loops", "huge output", "slices"])
def test_bombs_from_the_loop_are_refused_and_hold_nobody_up(renderer: Renderer, name: str) -> None:
    async def scene() -> tuple[list[float], list[BaseException | str]]:
        gaps, over = [], asyncio.Event()

        async def stream() -> None:
            last = time.monotonic()
            while not over.is_set():
                await asyncio.sleep(0.005)
                gaps.append(time.monotonic() - last)
                last = time.monotonic()

        ticker = asyncio.create_task(stream())
        ends = await asyncio.gather(rendered(renderer, name), rendered(renderer, "fine"), rendered(renderer, name), return_exceptions=True)
        over.set()
        await ticker
        return gaps, list(ends)

    gaps, (first, fine, second) = asyncio.run(scene())
    for each in (first, second):
        assert isinstance(each, RequestError) and each.code in ("template_failed", "template_budget")
    assert fine == "Hi"
    assert sorted(gaps)[-3:][0] < 0.1, sorted(gaps)[-5:]


def test_a_process_that_dies_under_the_loop_is_replaced(renderer: Renderer) -> None:
    renderer.render("fine", VARIABLES, NOW)
    first, spare = pids_of(renderer)
    os.kill(first, signal.SIGKILL)
    with pytest.raises(RequestError) as refused:
        asyncio.run(renderer.render_from_loop("fine", VARIABLES, NOW))
    assert refused.value.code == "template_budget"
    assert asyncio.run(rendered(renderer, "fine")) == "Hi" and pids_of(renderer)[0] == spare


def test_what_a_loop_must_not_wait_for_is_a_threads(renderer: Renderer) -> None:
    renderer.render("fine", VARIABLES, NOW)
    large = {**VARIABLES, "padding": "a" * chat_process.QUICK_BYTES}
    assert asyncio.run(renderer.render_from_loop("fine", large, NOW)) is None
    with renderer._lock:
        assert asyncio.run(renderer.render_from_loop("fine", VARIABLES, NOW)) is None
    assert asyncio.run(renderer.render_from_loop("fine", VARIABLES, NOW)) == "Hi"


def test_who_waits_too_long_in_the_loop_is_told_to_try_again(monkeypatch: pytest.MonkeyPatch, renderer: Renderer) -> None:
    monkeypatch.setattr(chat_process, "QUEUE_SECONDS", 0.05)

    async def scene() -> list[str | BaseException | None]:
        before = asyncio.create_task(renderer.render_from_loop("loops", VARIABLES, NOW))
        await asyncio.sleep(0.01)  # the process is asked for it alone
        return await asyncio.gather(renderer.render_from_loop("fine", VARIABLES, NOW), before, return_exceptions=True)

    renderer.render("fine", VARIABLES, NOW)
    late, before = asyncio.run(scene())
    assert isinstance(late, OverloadedError) and late.retry_after_seconds == 1
    assert isinstance(before, RequestError) and before.code == "template_budget"


def test_the_process_ends_with_its_parent_even_while_it_is_busy() -> None:
    program = (
        "import os, sys\nfrom ridgeline.text import chat_process\nchat_process.RENDER_SECONDS = 60\n"
        "import ridgeline.text.chat_process as p\nfrom threading import Thread\n"
        "r = p.Renderer({'bomb': '{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}'})\n"
        "print(r._current.pid, r._spare.pid, flush=True)\nThread(target=r.render, args=('bomb', {}, (2026, 1, 1))).start()\n"
        "import time\ntime.sleep(0.2)\nos.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    ended = list(map(int, done.stdout.split()))
    assert len(ended) == 2, done.stderr
    until = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in ended) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{pid}").exists() for pid in ended)


def test_the_sealed_process_can_open_and_start_nothing() -> None:
    program = (
        "import sys, os, socket\nfrom ridgeline.text import chat_sandbox\nchat_sandbox._drop_privileges()\n"
        "answers = []\n"
        "for attempt in (lambda: open('/etc/passwd'), lambda: os.fork(), lambda: os.system('id'), lambda: socket.socket(),\n"
        "                lambda: __import__('ctypes'), lambda: compile('1', '', 'eval'), lambda: os.listdir('/')):\n"
        "    try:\n        attempt()\n        answers.append('done')\n"
        "    except Exception as error:\n        answers.append(type(error).__name__)\n"
        "print(*answers)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert done.stdout.split() == ["SecurityError"] * 7, done.stdout + done.stderr


@pytest.mark.alone
def test_twenty_bombs_leave_others_their_pace() -> None:
    names = list(BOMBS)[:20]
    renderer = Renderer({name: BOMBS[name] for name in names})

    async def scene() -> tuple[list[float], list[BaseException | str]]:
        gaps, over = [], asyncio.Event()

        async def stream() -> None:
            last = time.monotonic()
            while not over.is_set():
                await asyncio.sleep(0.005)
                now = time.monotonic()
                gaps.append(now - last)
                last = now

        ticker = asyncio.create_task(stream())
        ends = []
        for pair in zip(names[::2], names[1::2], strict=True):
            ends += await asyncio.gather(
                *(asyncio.to_thread(renderer.render, name, VARIABLES, NOW) for name in pair), return_exceptions=True
            )
        over.set()
        await ticker
        return gaps, ends

    try:
        gaps, ends = asyncio.run(scene())
    finally:
        renderer.close()
    assert len(ends) == 20 and all(isinstance(end, RequestError) for end in ends)
    assert max(gaps) < 0.1, sorted(gaps)[-5:]


def test_a_model_s_template_that_runs_away_disables_chat_and_nothing_else() -> None:
    template = ChatTemplate(found(BOMBS["loops"]), NamedTokenizer(["</s>"], eos=["</s>"]))
    try:
        (finding,) = template.findings
        assert finding.severity == "error" and "more than 0.4 s" in finding.cause and "--chat-template" in finding.fix
        start = time.monotonic()
        with pytest.raises(RequestError, match="chat is not possible"):
            template.render(Conversation([{"role": "user", "content": "Hi"}]))
        assert time.monotonic() - start < 0.05
    finally:
        template.close()
