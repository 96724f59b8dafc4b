"""A full server over HTTP, with clients that come whether or not it has room: `python tests/speed/overload.py loads`, two minutes.

    loads   Poisson arrivals at 0.8, 1, 2 and 4 times what the server can do: goodput, times to first token, how soon a 429 comes
    burst   4 times for 20 s, then 0.5 times, by clients that come again when they are told to: how often they are refused (2 minutes)
    abuser  a tenant beside one that asks 20 times as much, against one that asks as much, the total being the same; shares by weight (4)
    ladder  2 times, half of it by a key that agrees to shorter answers: goodput with --brown-out and without, in turn (2 minutes)

The engine is a fake one of 16 rows whose steps take 10 ms, so that front end and queue are measured; 8 requests may wait, a third of a
second's work, and its answers have 60 tokens in the mean, exponentially distributed. What it can do is measured first, by 32 clients in a
closed loop. Times are the client's.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "helpers"))
from processes import SOURCE, ServerProcess

FAKE = "fake:" + json.dumps({"rows": 16, "blocks": 4096, "max_model_len": 4096, "step_seconds": 0.01, "token_seconds": 0.00002})
QUEUE, MEAN_TOKENS, MOST_TOKENS = 8, 60, 500
TTFT, TPOT = 1.0, 0.05
WARM_SECONDS = 3.0


@dataclass
class Answer:
    """Seconds since the client came; `first` of the first token, of the last try; `refusals`: times of 429s, of all tries."""

    key: str
    came: float
    asked: int
    refusals: list[float]
    first: float = 0.0
    ended: float = 0.0
    tokens: int = 0

    @property
    def is_good(self) -> bool:
        return self.tokens > 0 and self.first <= TTFT and (self.ended - self.first) / max(1, self.tokens - 1) <= TPOT


class Load:
    """Clients of one server. Its keys and their tenants are those of `KEYS`."""

    def __init__(self, url: str, seed: int) -> None:
        self._address = urlsplit(url)
        self._rng = Random(seed)

    def tokens(self) -> int:
        return min(MOST_TOKENS, 1 + int(self._rng.expovariate(1 / MEAN_TOKENS)))

    async def ask(self, key: str, tokens: int, tries: int = 1) -> Answer:
        found = Answer(key, time.perf_counter(), tokens, [])
        for _ in range(tries):
            began = time.perf_counter()
            seconds = await self._try(found, began)
            if seconds is None:
                break
            found.refusals.append(time.perf_counter() - began)
            await asyncio.sleep(seconds + self._rng.uniform(0, 0.1))
        return found

    async def _try(self, found: Answer, began: float) -> float | None:
        """Seconds after which to come again; None: it was answered."""
        reader, writer = await asyncio.open_connection(self._address.hostname, self._address.port)
        body = json.dumps({"prompt": "p" * 40, "max_tokens": found.asked, "ignore_eos": True, "stream": True}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer {found.key}\r\n"
        writer.write(head.encode() + b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        try:
            answer = (await reader.readuntil(b"\r\n\r\n")).decode()
            if " 429 " in answer.partition("\r\n")[0]:
                await reader.read()
                return float(answer.lower().partition("retry-after: ")[2].partition("\r\n")[0])
            assert " 200 " in answer.partition("\r\n")[0], answer
            while data := await reader.read(1 << 16):
                found.first = found.first or time.perf_counter() - began
                found.tokens += data.count(b"data: {")
            found.ended = time.perf_counter() - began
        finally:
            writer.close()
        return None

    async def closed(self, clients: int, seconds: float) -> float:
        """Requests answered per second, in a closed loop."""
        end, ended = time.perf_counter() + seconds + 1, 0

        async def client() -> None:
            nonlocal ended
            while (now := time.perf_counter()) < end:
                await self.ask("a", self.tokens())
                ended += now > end - seconds

        await asyncio.gather(*(client() for _ in range(clients)))
        return ended / seconds

    async def open(self, rates: dict[str, float], seconds: float, tries: int = 1) -> list[Answer]:
        """Answers to clients that come at these rates per second, by key."""
        tasks, total, began = [], sum(rates.values()), time.perf_counter()
        due = began
        while (due := due + self._rng.expovariate(total)) < began + seconds:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            [key] = self._rng.choices(list(rates), list(rates.values()))
            tasks.append(asyncio.create_task(self.ask(key, self.tokens(), tries)))
        found = await asyncio.gather(*tasks)
        return [each for each in found if each.came - began >= min(WARM_SECONDS, seconds / 4)]


KEYS = ("a", "b", "c", "d")


class Server:
    """A server whose keys a … d are of a tenant each, with these options."""

    def __init__(self, *flags: str, queue: int = QUEUE, **options: str) -> None:
        self._folder = TemporaryDirectory()
        keys = Path(self._folder.name) / "keys"
        keys.write_text("".join(f"{key} {key} tenant={key} {options.get(key, '')}\n" for key in KEYS))
        keys.chmod(0o600)
        flags = ("--max-num-queued-reqs", str(queue), "--api-key-file", str(keys), *flags)
        self.process = ServerProcess([FAKE, *flags], {**os.environ, "PYTHONPATH": str(SOURCE)})
        self.load = Load(self.process.url, 1)

    def __enter__(self) -> Load:
        return self.load

    def __exit__(self, *_: object) -> None:
        self.process.stop()
        self._folder.cleanup()


def share(values: Sequence[float], part: float) -> float:
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(part * len(ranked)))] if ranked else float("nan")


def goodput(found: Sequence[Answer], seconds: float) -> float:
    return sum(each.is_good for each in found) / (seconds - min(WARM_SECONDS, seconds / 4))


async def capacity(load: Load) -> float:
    found = await load.closed(32, 8.0)
    print(f"in a closed loop of 32 clients: {found:.1f} requests/s", flush=True)
    return found


async def loads(seconds: float) -> None:
    with Server() as load:
        most, by_load, ttft = await capacity(load), {}, {}
        for factor in (0.8, 1.0, 2.0, 4.0):
            found = await load.open({"a": factor * most}, seconds)
            refused = [each for answer in found for each in answer.refusals]
            by_load[factor], ttft[factor] = goodput(found, seconds), share([each.first for each in found if each.tokens], 0.99)
            print(
                f"{factor} ×: goodput {by_load[factor]:.1f}/s, TTFT p99 {ttft[factor] * 1e3:.0f} ms, "
                f"{len(refused)} of {len(found)} refused, "
                f"429 p50 {share(refused, 0.5) * 1e3:.1f} ms, p99 {share(refused, 0.99) * 1e3:.1f}", flush=True
            )  # fmt: skip
        print(f"goodput at 4 × over its peak: {by_load[4.0] / max(by_load.values()):.3f}; TTFT p99 over 0.8 ×: {ttft[4.0] / ttft[0.8]:.2f}")


async def burst(seconds: float) -> None:
    with Server() as load:
        most = await capacity(load)

        async def calm() -> list[Answer]:
            await asyncio.sleep(20)
            return await load.open({"a": 0.5 * most}, seconds, 100)

        found = [each for part in await asyncio.gather(load.open({"a": 4 * most}, 20, 100), calm()) for each in part]
        refused = [len(each.refusals) for each in found if each.refusals]
        once = sum(each <= 2 for each in refused) / len(refused)
        print(f"{len(refused)} of {len(found)} clients were refused; {once:.1%} of them once more at most, one {max(refused)} times")


async def abuser(seconds: float) -> None:
    with Server(a="weight=1", b="weight=2", c="weight=4", d="weight=1") as load:
        most = await capacity(load)
        for total in (0.9, 2.0):
            for other in ("equal", "20 ×"):
                rates = (total / 2, total / 2) if other == "equal" else (total / 21, 20 * total / 21)
                found = await load.open({"a": rates[0] * most, "d": rates[1] * most}, seconds)
                mine = [each for each in found if each.key == "a"]
                times, refused = [each.first for each in mine if each.tokens], sum(not each.tokens for each in mine)
                told = f"TTFT p95 {share(times, 0.95) * 1e3:.0f} ms, {refused} of {len(mine)} refused"
                print(f"{total} × in all, beside {other}: {told}", flush=True)
        found = await load.open(dict.fromkeys(KEYS, most), seconds)
        weights = dict(zip(KEYS, (1, 2, 4, 1), strict=True))
        shares = [sum(each.tokens for each in found if each.key == key) / weight for key, weight in weights.items()]
        jain = sum(shares) ** 2 / (len(shares) * sum(each * each for each in shares))
        print(f"4 × by four tenants of weights 1:2:4:1, tokens over weight: {[round(each) for each in shares]}, Jain {jain:.3f}")


async def ladder(seconds: float) -> None:
    ratios, options = [], {"b": "sheddable=yes brown_out_tokens=16"}
    with Server() as load:
        most = await capacity(load)
    for number in range(3):
        rates = {}
        for flags in ((), ("--brown-out", "0.3")):
            with Server(*flags, queue=2 * QUEUE, **options) as load:
                rates[flags] = goodput(await load.open({"a": most, "b": most}, seconds), seconds)
        without, with_ladder = rates.values()
        ratios.append(with_ladder / without)
        print(f"{number}: goodput {without:.1f}/s without, {with_ladder:.1f} with: {ratios[-1]:.3f}", flush=True)
    print(f"median {median(ratios):.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("loads", "burst", "abuser", "ladder"))
    parser.add_argument("--seconds", type=float, help="of one load [20; burst 60; abuser 40]")
    asked = parser.parse_args()
    work = {"loads": loads, "burst": burst, "abuser": abuser, "ladder": ladder}[asked.what]
    uvloop.run(work(asked.seconds or {"burst": 60.0, "abuser": 40.0}.get(asked.what, 20.0)))


if __name__ == "__main__":
    main()
