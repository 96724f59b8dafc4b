"""A full server over HTTP, with clients that come whether or not it has room: `python tests/speed/overload.py loads`, two minutes.

    loads   Poisson arrivals at 0.8, 1, 2 and 4 times what the server can do: goodput, times to first token, how soon a 429 comes
    target  the same with --ttft-target, twice the TTFT p99 that 0.8 times has without it: who would be late is refused (3 minutes)
    burst   4 times for 20 s, then 0.5 times, by clients that come again when they are told to: how often they are refused (2 minutes)
    lasting 1.3 and 2 times by such clients: the wait that the server tells of, against that of those who are taken (3 minutes)
    slo     chats and a long prompt in ten at the knee, --scheduling-policy slo and fcfs side by side: goodput, tokens per second (4)
    abuser  a tenant beside one that asks 20 times as much, against one that asks as much, the total being the same; shares by weight (5).
            Where the tenant asks for little it is watched for longer, until it has asked for 100 answers
    ladder  2 times, half of it by a key that agrees to shorter answers: goodput with --brown-out and without, side by side (2 minutes)

The engine is a fake one of 16 rows whose steps take 10 ms, so that front end and queue are measured; 8 requests may wait, a third of a
second's work (`target` 32, `lasting` 64), and its answers have 60 tokens in the mean, exponentially distributed. `slo` has 32 rows and
prompts that take time: chats of some 200 tokens, documents of some 6,000. What a server can do is measured first, by clients in a closed
loop. Times are the client's. Servers that are compared side by side get the same requests at the same moments: what else the machine does
they have in common.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory
from types import MappingProxyType
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "helpers"))
from processes import SOURCE, ServerProcess

ROWS = 16
FAKE = "fake:" + json.dumps({"rows": ROWS, "blocks": 4096, "max_model_len": 4096, "step_seconds": 0.01, "token_seconds": 0.00002})
MIXED = "fake:" + json.dumps({"rows": 32, "blocks": 16384, "max_model_len": 32768, "step_seconds": 0.01, "token_seconds": 0.0001})
QUEUE, MEAN_TOKENS, MOST_TOKENS = 8, 60, 500
TTFT, TPOT = 1.0, 0.05
WARM_SECONDS = 3.0
WATCHED = 100
"""Requests of `abuser`'s victim whose 95th percentile is taken."""
KNEE = 0.9
"""Share of what a closed loop gets at which the goodput of `mixed` turns: `tests/sim/test_slo.py` has it at 7 of 7.8 requests/s."""


@dataclass
class Job:
    """What a client asks for. `ttft`, `tpot`: seconds within which its answer is good; `names_target`: the server is told the first."""

    tokens: int
    prompt: str = "p" * 40
    ttft: float = TTFT
    tpot: float = TPOT
    names_target: bool = True


def short(rng: Random) -> Job:
    return Job(min(MOST_TOKENS, 1 + int(rng.expovariate(1 / MEAN_TOKENS))))


def mixed(rng: Random) -> Job:
    """Nine chats and one document of ten, as `tests/sim/test_slo.py` has them; no two prompts begin alike."""
    prompt, output, ttft = (8.7, 4.3, 10.0) if rng.random() < 0.1 else (5.2, 4.6, 0.5)
    length = max(1, min(16_000, int(rng.lognormvariate(prompt, 0.5))))
    text = f"{rng.getrandbits(64):016x}" + "p" * max(0, length - 16)
    return Job(max(1, min(1_000, int(rng.lognormvariate(output, 0.5)))), text, ttft, 0.06)


@dataclass
class Answer:
    """Seconds since the client came; `first` of the first token, of the last try; `refusals`: times of 429s, of all tries."""

    key: str
    came: float
    job: Job
    refusals: list[float]
    first: float = 0.0
    ended: float = 0.0
    tokens: int = 0
    taken: float = 0.0
    """When its last try began, by the clock of `came`."""

    @property
    def is_good(self) -> bool:
        return self.tokens > 0 and self.first <= self.job.ttft and (self.ended - self.first) / max(1, self.tokens - 1) <= self.job.tpot


class Load:
    """Clients of one server, who ask for what `jobs` draws. Its keys and their tenants are those of `KEYS`."""

    def __init__(self, url: str, seed: int, jobs: Callable[[Random], Job] = short) -> None:
        self._url = url
        self._address = urlsplit(url)
        self._rng = Random(seed)
        self._jobs = jobs

    async def metric(self, name: str) -> float:
        asked = Request(f"{self._url}/metrics", headers={"Authorization": "Bearer a"})
        text = (await asyncio.to_thread(lambda: urlopen(asked, timeout=10).read())).decode()
        return float(next(line for line in text.splitlines() if line.startswith(f"{name}{{")).rpartition(" ")[2])

    async def ask(self, key: str, job: Job, tries: int = 1) -> Answer:
        found = Answer(key, time.perf_counter(), job, [])
        for left in range(tries - 1, -1, -1):
            began = time.perf_counter()
            found.taken = began
            seconds = await self._try(found, began)
            if seconds is None:
                break
            found.refusals.append(time.perf_counter() - began)
            if left:
                await asyncio.sleep(seconds + self._rng.uniform(0, 0.1))
        return found

    async def _try(self, found: Answer, began: float) -> float | None:
        """Seconds after which to come again; None: it was answered."""
        reader, writer = await asyncio.open_connection(self._address.hostname, self._address.port)
        job = found.job
        asked: dict[str, object] = {"prompt": job.prompt, "max_tokens": job.tokens}
        if job.names_target:
            asked["ttft_ms"] = round(1e3 * job.ttft)
        body = json.dumps({**asked, "ignore_eos": True, "stream": True}).encode()
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
        """Requests answered per second, in a closed loop of no more clients than the server takes: a refusal is no answer."""
        end, ended = time.perf_counter() + seconds + 1, 0

        async def client() -> None:
            nonlocal ended
            while (now := time.perf_counter()) < end:
                found = await self.ask("a", self._jobs(self._rng))
                assert not found.refusals
                ended += now > end - seconds

        await asyncio.gather(*(client() for _ in range(clients)))
        return ended / seconds

    async def open(self, rates: dict[str, float], seconds: float, tries: int = 1) -> list[Answer]:
        """Answers to clients that come at these rates per second, by key."""
        total, due, plan = sum(rates.values()), 0.0, []
        while (due := due + self._rng.expovariate(total)) < seconds:  # drawn first: no answer changes what comes
            plan.append((due, self._rng.choices(list(rates), list(rates.values()))[0], self._jobs(self._rng)))
        tasks, began = [], time.perf_counter()
        for due, key, job in plan:
            await asyncio.sleep(max(0.0, began + due - time.perf_counter()))
            tasks.append(asyncio.create_task(self.ask(key, job, tries)))
        found = await asyncio.gather(*tasks)
        return [each for each in found if each.came - began >= min(WARM_SECONDS, seconds / 4)]


KEYS = ("a", "b", "c", "d")


class Server:
    """A server whose keys a … d are of a tenant each, with these options. Clients ask for what `jobs` draws from `seed`."""

    def __init__(
        self, *flags: str, queue: int = QUEUE, model: str = FAKE, jobs: Callable[[Random], Job] = short, seed: int = 1,
        options: Mapping[str, str] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        self._folder = TemporaryDirectory()
        keys = Path(self._folder.name) / "keys"
        keys.write_text("".join(f"{key} {key} tenant={key} {options.get(key, '')}\n" for key in KEYS))
        keys.chmod(0o600)
        flags = ("--max-num-queued-reqs", str(queue), "--api-key-file", str(keys), *flags)
        self.process = ServerProcess([model, *flags], {**os.environ, "PYTHONPATH": str(SOURCE)})
        self.load = Load(self.process.url, seed, jobs)

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


def over(one: float, other: float) -> float:
    """Their ratio; infinite where a short or overloaded run has nothing to divide by."""
    return one / other if other else float("inf")


async def capacity(load: Load, clients: int = ROWS + QUEUE, seconds: float = 8.0) -> float:
    found = await load.closed(clients, seconds)
    print(f"in a closed loop of {clients} clients: {found:.1f} requests/s", flush=True)
    return found


async def at(load: Load, factor: float, most: float, seconds: float) -> tuple[float, float]:
    """Goodput and p99 of TTFT at a load."""
    found = await load.open({"a": factor * most}, seconds)
    refused = [each for answer in found for each in answer.refusals]
    good, ttft = goodput(found, seconds), share([each.first for each in found if each.tokens], 0.99)
    print(
        f"{factor} ×: goodput {good:.1f}/s, TTFT p99 {ttft * 1e3:.0f} ms, {len(refused)} of {len(found)} refused, "
        f"429 p50 {share(refused, 0.5) * 1e3:.1f} ms, p99 {share(refused, 0.99) * 1e3:.1f}", flush=True
    )  # fmt: skip
    return good, ttft


async def loads(seconds: float) -> None:
    with Server() as load:
        most = await capacity(load)
        found = {factor: await at(load, factor, most, seconds) for factor in (0.8, 1.0, 2.0, 4.0)}
    peak = max(good for good, _ in found.values())
    print(f"goodput at 4 × over its peak: {found[4.0][0] / peak:.3f}; TTFT p99 over 0.8 ×: {found[4.0][1] / found[0.8][1]:.2f}")


async def target(seconds: float) -> None:
    with Server(queue=4 * QUEUE) as load:
        most = await capacity(load)
        _, ttft = await at(load, 0.8, most, 2 * seconds)

    def asked(rng: Random) -> Job:
        return Job(short(rng).tokens, ttft=2 * ttft, names_target=False)

    with Server("--ttft-target", f"{2 * ttft:.3f}", queue=4 * QUEUE, jobs=asked) as load:
        found = {factor: await at(load, factor, most, seconds) for factor in (0.8, 1.0, 1.3, 2.0, 4.0)}
    peak = max(good for good, _ in found.values())
    print(f"goodput at 4 × over its peak: {found[4.0][0] / peak:.3f}; TTFT p99 at 4 × over that at 0.8: {found[4.0][1] / ttft:.2f}")


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


async def lasting(seconds: float) -> None:
    """Who is taken while all places are, waits as long as the server said just before: its Retry-After is made of the same pace."""
    with Server(queue=8 * QUEUE) as load:
        most = await capacity(load, ROWS + 8 * QUEUE)
        for factor in (1.3, 2.0):
            told: list[tuple[float, float]] = []

            async def watch(told: list[tuple[float, float]] = told) -> None:
                while True:
                    told.append((time.perf_counter(), await load.metric("ridgeline_expected_wait_seconds")))
                    await asyncio.sleep(0.2)

            watching = asyncio.create_task(watch())
            found = await load.open({"a": factor * most}, seconds, 3)
            watching.cancel()
            moments, errors = [moment for moment, _ in told], []
            for each in found:
                place = bisect(moments, each.taken) - 1
                if each.tokens and place >= 0 and (wait := told[place][1]) > 0:
                    errors.append(abs(wait / each.first - 1))
            print(f"{factor} ×: {len(errors)} of {len(found)} waited; the wait that was told is off by {share(errors, 0.5):.1%} (median)")


async def slo(seconds: float) -> None:
    gains, throughputs = [], []
    with Server(queue=256, model=MIXED, jobs=mixed) as load:
        most = await capacity(load, 64, 2 * 8.0)
    for number in range(3):
        goods, tokens, refused = {}, {}, {}
        with (
            Server("--scheduling-policy", "fcfs", queue=256, model=MIXED, jobs=mixed, seed=number) as fcfs,
            Server("--scheduling-policy", "slo", queue=256, model=MIXED, jobs=mixed, seed=number) as by_slack,
        ):
            both = await asyncio.gather(*(each.open({"a": KNEE * most}, seconds) for each in (fcfs, by_slack)))
        for policy, found in zip(("fcfs", "slo"), both, strict=True):
            ended = max(each.came + each.ended for each in found) - min(each.came for each in found)
            goods[policy], tokens[policy] = goodput(found, seconds), sum(each.tokens for each in found) / ended
            refused[policy] = sum(not each.tokens for each in found)
        gains.append(over(goods["slo"], goods["fcfs"]))
        throughputs.append(over(tokens["slo"], tokens["fcfs"]))
        told = ", ".join(f"{name} {goods[name]:.2f}/s, {tokens[name]:.0f} tokens/s, {refused[name]} refused" for name in goods)
        print(f"{number}: {told}: goodput {gains[-1]:.3f}, throughput {throughputs[-1]:.3f}", flush=True)
    print(f"slo over fcfs, medians: goodput {median(gains):.3f}, throughput {median(throughputs):.3f}")


async def abuser(seconds: float) -> None:
    ratios = []
    with Server(options={"a": "weight=1", "b": "weight=2", "c": "weight=4", "d": "weight=1"}) as load:
        most = await capacity(load)
        for total in (0.9, 2.0):
            late = []
            for other in ("equal", "20 ×"):
                rates = (total / 2, total / 2) if other == "equal" else (total / 21, 20 * total / 21)
                length = max(seconds, WATCHED / (rates[0] * most) + WARM_SECONDS)
                found = await load.open({"a": rates[0] * most, "d": rates[1] * most}, length)
                mine = [each for each in found if each.key == "a"]
                times, refused = [each.first for each in mine if each.tokens], sum(not each.tokens for each in mine)
                late.append(share(times, 0.95))
                told = f"TTFT p95 {late[-1] * 1e3:.0f} ms, {refused} of {len(mine)} refused"
                print(f"{total} × in all, beside {other}: {told}", flush=True)
            ratios.append(over(late[1], late[0]))
        print(f"p95 beside 20 × over that beside an equal one: {ratios[0]:.2f}, {ratios[1]:.2f}", flush=True)
        found = await load.open({"a": most / 2, "d": 10 * most}, seconds)
        own, whole = (sum(each.tokens for each in found if each.key in keys) for keys in ("a", "ad"))
        print(f"asks for its fair half, the other for 20 times that: has {own / whole / 0.5:.1%} of it", flush=True)
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
        with (
            Server(queue=2 * QUEUE, options=options, seed=number) as plain,
            Server("--brown-out", "0.3", queue=2 * QUEUE, options=options, seed=number) as browned,
        ):
            both = await asyncio.gather(*(each.open({"a": most, "b": most}, seconds) for each in (plain, browned)))
        without, with_ladder = (goodput(found, seconds) for found in both)
        ratios.append(over(with_ladder, without))
        print(f"{number}: goodput {without:.1f}/s without, {with_ladder:.1f} with: {ratios[-1]:.3f}", flush=True)
    print(f"median {median(ratios):.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    work = {each.__name__: each for each in (loads, target, burst, lasting, slo, abuser, ladder)}
    parser.add_argument("what", choices=work)
    parser.add_argument("--seconds", type=float, help="of one load [20; burst, lasting 60; slo 40]")
    asked = parser.parse_args()
    seconds = {"burst": 60.0, "lasting": 60.0, "slo": 40.0}
    uvloop.run(work[asked.what](asked.seconds or seconds.get(asked.what, 20.0)))


if __name__ == "__main__":
    main()
