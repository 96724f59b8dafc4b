"""Prompts that go where their blocks are held, as real servers tell: whoever sent them there."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from processes import ServerProcess

from ridgeline.core.prefix_cache import block_keys, root_key
from ridgeline.router.holdings import EXPECTED_SECONDS, Held, Holdings
from ridgeline.router.prompts import Prompt
from ridgeline.server.blocks import BlockChanges
from ridgeline.server.routers import BLOCKS_PATH, PREFIX_HEADER, ids_digest

LONG = "A prefix that many requests share, sentence after sentence. " * 12
FAKE = 'fake:{"blocks": 400, "step_seconds": 0.002}'
TEMPLATE = Path(__file__).parents[1] / "gold" / "templates" / "Qwen-Qwen3-0.6B.jinja"


@pytest.fixture
def start(environment: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., ServerProcess]]:
    """Starts a server, or a router, with the key that all of them share."""
    with ExitStack() as stack:

        def begin(*arguments: str, verb: str = "serve") -> ServerProcess:
            made = ServerProcess([*arguments, "--router-key-file", str(tmp_path / "key")], environment, verb)
            stack.callback(lambda: made.process.poll() is None and made.stop())
            return made

        yield begin


def ask(server: ServerProcess, path: str, body: dict[str, Any], key: str = "") -> tuple[int, int]:
    """(status, cached tokens) of a request, and no header of it is a router's."""
    connection = HTTPConnection(server.url.partition("://")[2], timeout=60)
    try:
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        connection.request("POST", path, json.dumps({"max_tokens": 1, **body}), headers)
        answer = connection.getresponse()
        said = json.loads(answer.read())
        assert answer.getheader(PREFIX_HEADER) is None
        return answer.status, said["usage"]["prompt_tokens_details"]["cached_tokens"] if answer.status == 200 else 0
    finally:
        connection.close()


def completion(text: str) -> tuple[str, dict[str, Any]]:
    return "/v1/completions", {"prompt": text}


def chat(text: str) -> tuple[str, dict[str, Any]]:
    return "/v1/chat/completions", {"messages": [{"role": "user", "content": text}]}


def to(servers: list[ServerProcess]) -> list[str]:
    return [word for each in servers for word in ("--replica", each.url)]


def get(server: ServerProcess, path: str, key: str) -> tuple[int, bytes]:
    connection = HTTPConnection(server.url.partition("://")[2], timeout=60)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {key}"} if key else {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def blocks(router: ServerProcess, key: str = "") -> list[int]:
    """Blocks that each replica has told of."""
    return [each["blocks"] for each in json.loads(get(router, "/router", key)[1])["replicas"]]


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize("form", [completion, chat])
def test_a_prompt_goes_where_others_have_sent_it(start: Callable[..., ServerProcess], tmp_path: Path, form: Callable[..., Any]) -> None:
    shared = ["--chat-template", str(TEMPLATE)]
    replicas = [start(FAKE, *shared, "--cache-secret-file", str(tmp_path / "secret")) for _ in range(2)]
    router = start(*to(replicas), "--exact-affinity", "fake:{}", *shared, verb="route")
    assert ask(replicas[1], *form(LONG + "first"))[0] == 200
    wait_for(lambda: blocks(router)[0] == 0 < blocks(router)[1])
    assert ask(router, *form("what prefix keys begin with is told in an answer"))[0] == 200
    assert ask(router, *form(LONG + "second"))[1] >= len(LONG) - 16, "the replica that was sent it by somebody else has it"
    assert ask(router, *form(LONG + "third"))[1] >= len(LONG) - 16
    before = blocks(router)[1]
    for number in range(40):
        ask(replicas[1], *completion(f"{number} something else " * 60))
    wait_for(lambda: blocks(router)[1] != before)
    os.kill(replicas[1].engine_pid(), signal.SIGKILL)
    wait_for(lambda: replicas[1].get("/readyz")[0] == 200 and blocks(router)[1] == 0)
    assert ask(replicas[1], *form(LONG))[0] == 200
    wait_for(lambda: blocks(router)[1] > 0)


def test_nobody_else_is_told_and_tenants_share_nothing(start: Callable[..., ServerProcess], tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("one key-of-one tenant=one\ntwo key-of-two tenant=two scope=admin\n")
    keys.chmod(0o600)
    shared = ["--api-key-file", str(keys)]
    replicas = [start(FAKE, *shared, "--cache-secret-file", str(tmp_path / "secret")) for _ in range(2)]
    router = start(*to(replicas), "--exact-affinity", "fake:{}", *shared, verb="route")
    for server in (*replicas, router):
        for key in ("", "key-of-one", "key-of-two"):
            status, said = get(server, BLOCKS_PATH, key)
            assert status in (401, 403) and b"added" not in said, said
    assert ask(replicas[1], *completion(LONG), "key-of-one")[0] == 200
    wait_for(lambda: blocks(router, "key-of-two")[1] > 0)
    for key in ("key-of-one", "key-of-two"):
        assert ask(router, *completion("what prefix keys begin with is told in an answer"), key)[0] == 200
    assert ask(router, *completion(LONG + "2"), "key-of-two")[1] == 0
    assert ask(router, *completion(LONG + "1"), "key-of-one")[1] > 0


def test_a_router_needs_a_key_to_be_told(environment: dict[str, str]) -> None:
    with pytest.raises(AssertionError, match="--exact-affinity needs a key that router and servers share"):
        ServerProcess(["--replica", "http://127.0.0.1:1", "--exact-affinity", "fake:{}"], environment, "route")


def test_the_demo_is_tokenised_alike(start: Callable[..., ServerProcess], tmp_path: Path, demo_file: Path) -> None:
    """A chat and a text, by the model's own tokenizer and template: whoever has tokenised otherwise would be told."""
    replica = start("demo", "--max-model-len", "1024")
    router = start(*to([replica]), "--exact-affinity", "demo", verb="route")
    wait_for(lambda: blocks(router) == [0] or blocks(router)[0] > 0)
    for form in (chat, completion):
        for number in range(2):
            status, cached = ask(router, *form("Once upon a time there was a little girl. " * 8 + str(number)))
            assert status == 200 and (cached > 0) == (number == 1)
    wait_for(lambda: blocks(router)[0] > 4)
    assert "tokenises otherwise" not in router.output()
    assert router.metric("ridgeline_router_known_blocks") > 4


# ── what is known of blocks ─────────────────────────────────────────────────────────────────────────────────────────

ROOT = root_key(b"fingerprint", b"domain", None)
IDS = list(range(64))
PROMPT = Prompt(64, (), ids=IDS, scope=b"scope")
DIGESTS = b"".join(key[:8] for key in block_keys(ROOT, IDS, 16))


def told(added: bytes = b"", removed: bytes = b"", *, is_whole: bool = False, family: str = "f", block_tokens: int = 16) -> BlockChanges:
    return BlockChanges("e", 0, is_whole, block_tokens, family, added, removed)


def head(root: bytes = ROOT, ids: list[int] = IDS) -> list[tuple[bytes, bytes]]:
    return [(PREFIX_HEADER.encode(), f"{root.hex()} {ids_digest(ids).hex()}".encode())]


def holdings(*changes: BlockChanges) -> Holdings:
    found = Holdings()
    for number, each in enumerate(changes):
        found.apply(number, each)
    return found


def test_a_hit_is_what_is_held_without_a_gap_and_guesses_stay_where_nothing_is_known() -> None:
    found = holdings(told(DIGESTS[:8] + DIGESTS[16:]), told(DIGESTS), told(DIGESTS, family="other"))
    assert found.refine(PROMPT, {0: 7, 2: 9}, 0.0) == {0: 7, 2: 9}
    found.hear(PROMPT, 0, head())
    assert found.refine(PROMPT, {0: 7, 2: 9}, 0.0) == {0: 16, 1: 64, 2: 9}
    assert found.refine(PROMPT._replace(scope=b"of another tenant"), {0: 7}, 0.0) == {0: 7}
    found.apply(1, told(removed=DIGESTS[24:]))
    assert found.refine(PROMPT, {}, 0.0)[1] == 48
    found.apply(1, told(DIGESTS[:16], is_whole=True))
    assert found.refine(PROMPT, {}, 0.0)[1] == 32
    found.forget(1)
    assert 1 not in found.refine(PROMPT, {}, 0.0)


def test_a_prompt_that_was_sent_counts_until_it_should_be_there() -> None:
    found = holdings(told())
    found.hear(PROMPT, 0, head())
    assert found.refine(PROMPT, {}, 0.0) == {0: 0}
    found.expect(PROMPT, 0, 1.0)
    assert found.refine(PROMPT, {}, 0.9 + EXPECTED_SECONDS) == {0: 64}
    assert found.refine(PROMPT, {}, 1.0 + EXPECTED_SECONDS) == {0: 0}


def test_who_tokenises_otherwise_is_not_believed() -> None:
    found = holdings(told(DIGESTS))
    found.hear(PROMPT, 0, head())
    found.hear(PROMPT, 0, head(ids=[1, *IDS]))
    assert found.refine(PROMPT, {0: 3}, 0.0) == {0: 3} and found.disagreements == 1
    for value in (b"", b"x", b"g" * 64 + b" " + b"0" * 16, head()[0][1] + b"0"):
        found.hear(PROMPT, 0, [(PREFIX_HEADER.encode(), value)])
    assert found.refine(PROMPT, {0: 3}, 0.0) == {0: 3} and found.disagreements == 1


@pytest.mark.parametrize("wrong", [told(b"1234567"), told(removed=b"1"), told(block_tokens=-1), told(block_tokens=1 << 30)])
def test_what_are_no_digests_is_refused(wrong: BlockChanges) -> None:
    with pytest.raises(ValueError, match="cut"):
        Held().apply(wrong)
