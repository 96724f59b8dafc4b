"""The engine process from outside: it serves, dies, hangs, is orphaned; no client waits for ever."""

import asyncio
import os
import signal
import subprocess
import sys
import time

import pytest
from engine_process import FAST, SLOW, alive, read, request, run, serving, until

from ridgeline.config.groups import EngineConfig
from ridgeline.core.commands import Close
from ridgeline.core.events import Closed, Event, Finish, Rejected
from ridgeline.core.params import Admitted
from ridgeline.engine.child import Link
from ridgeline.engine.client import EngineClient, State, restart_delay
from ridgeline.engine.messages import Frame, WireError
from ridgeline.engine.open_requests import OpenRequests
from ridgeline.engine.streams import MAX_UNREAD_OUTPUTS
from ridgeline.errors import ConfigError, EngineDeadError, OverloadedError, RequestError


def test_requests_are_answered_and_counted() -> None:
    events: list[Event] = []
    stages: list[str] = []

    async def main() -> None:
        async with serving(FAST, on_events=events.extend, on_progress=lambda stage, fraction: stages.append(stage)) as client:
            streams = [client.submit(await request(client, f"r{i}", max_tokens=10 + i, n=2)) for i in range(12)]
            for i, (ids, closed) in enumerate(await asyncio.gather(*map(read, streams))):
                assert len(ids) == 2 * (10 + i)
                assert [(c.reason, c.usage.completion_tokens) for c in closed] == [(Finish.LENGTH, 10 + i)] * 2
            assert client.open_requests == 0 and client.is_ready

    run(main())
    assert sum(isinstance(event, Closed) for event in events) == 24


def test_two_phase_close_and_abort() -> None:
    async def main() -> None:
        async with serving(SLOW) as client:
            stream = client.submit(await request(client, "a", max_tokens=1000, stop=("x",)))
            other = client.submit(await request(client, "b", max_tokens=1000))
            seen = 0
            async for item in stream:
                if isinstance(item, Closed):
                    assert (item.reason, item.usage.completion_tokens) == (Finish.STOP, 3)
                    break
                seen += 1
                if seen == 5:
                    client.send(Close("a", 0, 3, Finish.STOP))
            client.abort("b")
            _, closed = await read(other)
            assert [c.reason for c in closed] == [Finish.ABORT]
            client.abort("b")
            assert client.open_requests == 0

    run(main())


def test_what_the_engine_refuses() -> None:
    async def main() -> None:
        async with serving(FAST) as client:
            first = await request(client, "same", max_tokens=2000)
            client.submit(first)
            with pytest.raises(RequestError, match="same"):
                await read(client.submit(first))

    run(main())


def test_a_full_queue_says_when_to_come_again() -> None:
    async def main() -> None:
        requests = OpenRequests()
        stream = requests.add(Admitted("r", (1,), 1, 0), None)
        requests.deliver(Frame(1, 0.0, (), (Rejected("r", "full", 0.4),)))
        with pytest.raises(OverloadedError, match="full") as caught:
            await read(stream)
        assert caught.value.retry_after_seconds == 1

    run(main())


def test_a_client_that_does_not_read_is_aborted() -> None:
    async def main() -> None:
        async with serving(FAST) as client:
            idle = client.submit(await request(client, "idle", max_tokens=MAX_UNREAD_OUTPUTS + 500))
            ids, _ = await read(client.submit(await request(client, "busy", max_tokens=MAX_UNREAD_OUTPUTS + 500)))
            assert len(ids) == MAX_UNREAD_OUTPUTS + 500
            with pytest.raises(RequestError, match="not read in time"):
                await read(idle)

    run(main())


@pytest.mark.alone
def test_kill_under_load() -> None:
    """Readiness is gone at once, and the next engine goes on with every open request, and with one that came meanwhile."""

    async def main() -> None:
        async with serving(SLOW) as client:
            streams = [client.submit(await request(client, f"r{i}", max_tokens=25)) for i in range(32)]
            late = await request(client, "late", max_tokens=5)
            begun = list((await anext(streams[0])).ids)  # type: ignore[union-attr]
            first, killed = client.pid, time.monotonic()
            assert first is not None
            os.kill(first, signal.SIGKILL)
            await until(lambda: not client.is_ready, 1)
            streams.append(client.submit(late))
            await asyncio.wait_for(client.ready(), 10)
            assert time.monotonic() - killed < 3 and client.pid != first and client.starts == 2
            results = [ids for ids, _ in await asyncio.gather(*map(read, streams))]
            again = [await read(client.submit(await request(client, f"again{n}", max_tokens=n))) for n in (25, 5)]
            assert [begun + results[0], *results[1:]] == [again[0][0]] * 32 + [again[1][0]]
            assert [stream.continued for stream in streams] == [1] * 32 + [0]

    run(main())


def test_a_stopped_engine_is_replaced() -> None:
    async def main() -> None:
        async with serving(SLOW) as client:
            stream = client.submit(await request(client, "a", max_tokens=30))
            await anext(stream)
            first = client.pid
            assert first is not None
            os.kill(first, signal.SIGSTOP)
            await asyncio.wait_for(read(stream), 5)
            assert client.pid != first and stream.continued == 1
            await until(lambda: not alive(first), 1)

    run(main())


@pytest.mark.alone
def test_a_long_step_is_no_hang() -> None:
    """A step of three times the limit, which moves."""

    async def main() -> None:
        async with serving(EngineConfig('fake:{"step_seconds": 1.5}', step_timeout_seconds=0.5)) as client:
            ids, _ = await read(client.submit(await request(client, "a", max_tokens=1)))
            assert len(ids) == 1 and client.starts == 1

    run(main())


@pytest.mark.parametrize("how", ["lock", "spin"])
def test_an_engine_that_hangs_is_replaced(how: str, caplog: pytest.LogCaptureFixture) -> None:
    """Its step waits for a lock that nobody frees, or is in an endless loop, which uses a core and moves nothing."""

    async def main() -> None:
        async with serving(EngineConfig(f'fake:{{"hang": "{how}"}}', step_timeout_seconds=0.8)) as client:
            first, stream = client.pid, client.submit(await request(client, "a", max_tokens=2000))
            await anext(stream)
            began = time.monotonic()
            await until(lambda: not client.is_ready, 3)
            assert 0.5 < time.monotonic() - began < 3
            client.abort("a")
            await read(stream)
            await asyncio.wait_for(client.ready(), 10)
            assert client.pid != first and client.last_failure is not None and "has not moved for 0.8 s" in client.last_failure
            ids, _ = await read(client.submit(await request(client, "b", max_tokens=3)))
            assert len(ids) == 3

    run(main())
    (told,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "started again" in told.getMessage() and "the engine hung" in told.__dict__["fields"]["reason"]


def test_a_request_that_ends_engines_is_found_and_the_others_go_on() -> None:
    """The model fails at position 12: only one request gets that far."""

    async def main() -> None:
        async with serving(EngineConfig('fake:{"hang": "raise"}')) as client:
            asked = [await request(client, f"r{i}", max_tokens=2000 if i == 3 else 8) for i in range(6)]
            results = await asyncio.gather(*(read(client.submit(each)) for each in asked), return_exceptions=True)
            (failed,) = [each for each in results if isinstance(each, BaseException)]
            assert results[3] is failed and isinstance(failed, RequestError) and failed.code == "engine_failed"
            assert [len(each[0]) for each in results if not isinstance(each, BaseException)] == [8] * 5
            assert client.starts in (4, 5) and client.last_failure is not None and "no answer at position 12" in client.last_failure
            await asyncio.wait_for(client.ready(), 10)
            ids, _ = await read(client.submit(await request(client, "after", max_tokens=3)))
            assert len(ids) == 3

    run(main())


@pytest.mark.alone
def test_a_long_answer_is_no_hang() -> None:
    async def main() -> None:
        async with serving(SLOW) as client:
            ids, _ = await read(client.submit(await request(client, "a", max_tokens=60)))
            assert len(ids) == 60 and client.starts == 1

    run(main())


@pytest.mark.alone
def test_an_idle_engine_may_be_silent() -> None:
    async def main() -> None:
        async with serving(SLOW) as client:
            pid = client.pid
            await read(client.submit(await request(client, "a", max_tokens=2)))
            held = client.submit(await request(client, "b", max_tokens=2, stop=("x",)))
            await asyncio.sleep(1.2)
            assert client.pid == pid and client.is_ready
            client.send(Close("b", 0, 2, Finish.LENGTH))
            ids, closed = await read(held)
            assert len(ids) == 2 and closed

    run(main())


def test_a_write_may_find_the_end_of_an_engine_first() -> None:
    async def main() -> None:
        link = Link(lambda data: None)
        link.connection_lost(BrokenPipeError())
        await link.ended

    run(main())


def test_bytes_that_cannot_be_read_end_the_connection_and_nothing_behind_them_is() -> None:
    read: list[bytes] = []

    def on_data(data: bytes) -> None:
        read.append(data)
        raise WireError("no")

    async def main() -> None:
        link = Link(on_data)
        link.data_received(b"a")
        link.data_received(b"b")
        link.connection_lost(None)
        with pytest.raises(WireError):
            await link.ended

    run(main())
    assert read == [b"a"]


def test_delays_grow_to_half_a_minute() -> None:
    assert [restart_delay(n) for n in range(8)] == [0, 1, 2, 4, 8, 16, 30, 30]


def test_an_engine_that_cannot_start_is_tried_again_ever_later() -> None:
    asked: list[int] = []

    async def main() -> None:
        client = EngineClient(EngineConfig('fake:{"blocks": 100000000000000}'), delay=lambda failures: asked.append(failures) or 0.0)
        await client.start()
        await until(lambda: len(asked) == 3, 10)
        assert not client.is_ready and client.last_failure is not None and "MemoryError" in client.last_failure
        await client.shutdown()

    run(main())
    assert asked[:3] == [1, 2, 3]


def test_engines_that_do_not_last_are_a_crash_loop_too() -> None:
    asked: list[int] = []

    def delay(failures: int) -> float:
        asked.append(failures)
        return 0.0

    async def main() -> None:
        async with serving(FAST, delay=delay) as client:
            for _ in range(3):
                assert client.pid is not None
                os.kill(client.pid, signal.SIGKILL)
                await until(lambda: client.state is State.DEAD or client.state is State.RESTARTING, 1)
                await asyncio.wait_for(client.ready(), 5)

    run(main())
    assert asked == [1, 2, 3]


def test_an_engine_that_got_a_request_further_is_followed_at_once() -> None:
    """However soon it ends: a stream waits for the next one, and a request that gets none of them further is told apart by its blame."""
    asked: list[int] = []

    async def main() -> None:
        async with serving(SLOW, delay=lambda failures: asked.append(failures) or 0.0) as client:
            stream = client.submit(await request(client, "a", max_tokens=2000))
            for ended in range(1, 4):
                await anext(stream)
                os.kill(client.pid or 0, signal.SIGKILL)
                await until(lambda count=ended: len(asked) == count, 5)
                while stream.pop() is not None:  # what the engine that has ended left
                    pass

    run(main())
    assert asked == [0, 0, 0]


@pytest.mark.parametrize("config", [EngineConfig('fake:{"wheels": 4}'), EngineConfig("fake:{}", scheduling_policy="lottery")])
def test_settings_that_cannot_work_end_the_attempt(config: EngineConfig) -> None:
    async def main() -> None:
        client = EngineClient(config)
        await client.start()
        with pytest.raises(ConfigError, match=r"wheels|lottery"):
            await asyncio.wait_for(client.ready(), 10)
        assert client.starts == 1 and client.state is State.DEAD
        await client.shutdown()
        await client.shutdown()

    run(main())


def test_shutdown_leaves_no_process_and_no_waiter() -> None:
    async def main() -> None:
        async with serving(SLOW) as client:
            pid = client.pid
            assert pid is not None
            stream = client.submit(await request(client, "a", max_tokens=2000))
            await anext(stream)
            await client.shutdown()
            assert not alive(pid)
            with pytest.raises(EngineDeadError):
                await read(stream)

    run(main())


def test_a_shutdown_between_two_engines_ends_what_is_open() -> None:
    async def main() -> None:
        async with serving(SLOW, delay=lambda failures: 60.0) as client:
            stream = client.submit(await request(client, "a", max_tokens=2000))
            await anext(stream)
            os.kill(client.pid or 0, signal.SIGKILL)
            await until(lambda: client.state is State.DEAD, 5)
            await client.shutdown()
            with pytest.raises(EngineDeadError):
                await read(stream)

    run(main())


PARENT = """
import asyncio, sys
from ridgeline.config.groups import EngineConfig
from ridgeline.core.params import SamplingParams
from ridgeline.engine.admit import ModelLimits, admit
from ridgeline.engine.client import EngineClient
async def main():
    client = EngineClient(EngineConfig('fake:{"step_seconds": %s}'))
    await client.start()
    if sys.argv[1] != "starting":
        await client.ready()
    if sys.argv[1] == "busy":
        limits = ModelLimits(512, 64, frozenset(), (await client.ready()).info.kv)
        client.submit(admit((5,), SamplingParams(), limits, request_id="a", draw_seed=lambda: 7))
        await asyncio.sleep(0.2)
    while client.pid is None:
        await asyncio.sleep(0.01)
    print(client.pid, flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


@pytest.mark.parametrize(("moment", "seconds"), [("ready", 0.01), ("starting", 0.01), ("busy", 30)])
def test_the_engine_does_not_outlive_its_parent(moment: str, seconds: float) -> None:
    """Idle, while it loads, and in the middle of a step of half a minute."""
    with subprocess.Popen([sys.executable, "-c", PARENT % seconds, moment], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert alive(pid)
        parent.kill()
        began = time.monotonic()
        while alive(pid):
            assert time.monotonic() - began < 10
            time.sleep(0.01)


def test_ctrl_c_is_the_parents_business() -> None:
    async def main() -> None:
        async with serving(FAST) as client:
            assert client.pid is not None
            for number in (signal.SIGINT, signal.SIGTERM):
                os.kill(client.pid, number)
            ids, _ = await read(client.submit(await request(client, "a", max_tokens=3)))
            assert len(ids) == 3 and client.starts == 1

    run(main())
