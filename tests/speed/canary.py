"""How soon a canary that is worse is stopped: `python tests/speed/canary.py [--rate 20] [--share 0.1] [--seconds 60]`.

Fake servers behind a router: three that are alike, and in turn a canary that is sound, slower in everything by a factor, or as fast to the
first byte and slower behind it. Requests come at random, at a rate, half of them streams; printed is the time from the first of them to the
one behind which the canary gets nothing, how many it got, and what failed. A sound one must stay. Some ten answers of the canary decide: at
two requests a second and a tenth of them that takes most of a minute.
"""

import argparse
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

from processes import SOURCE, ServerProcess

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(SOURCE)}
STEP_SECONDS, TOKEN_SECONDS, PROMPT, TOKENS = 0.01, 0.0002, 200, 40
CANARIES = {
    "sound": (1.0, 1.0), "3 times as slow": (3.0, 3.0), "6 times as slow": (6.0, 6.0),
    "3 times as slow behind its first byte": (3.0, (TOKEN_SECONDS * PROMPT - 2 * STEP_SECONDS) / (TOKEN_SECONDS * PROMPT)),
}  # fmt: skip
"""Factors of what a step takes, and of what each of its tokens does beside that."""


def fake(step: float, token: float) -> str:
    return "fake:" + json.dumps({"step_seconds": STEP_SECONDS * step, "token_seconds": TOKEN_SECONDS * token, "rows": 64})


def ask(url: str, number: int) -> bool:
    """True if a request is answered to its end."""
    connection = HTTPConnection(url.partition("://")[2], timeout=60)
    try:
        body = {"prompt": f"{number:08} " * (PROMPT // 9), "max_tokens": TOKENS, "ignore_eos": True, "stream": number % 2 == 0}
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        found = answer.read()
        return answer.status == 200 and (number % 2 == 1 or found.endswith(b"data: [DONE]\n\n"))
    except OSError:
        return False
    finally:
        connection.close()


def is_stopped(router: ServerProcess) -> bool:
    return any(each["stopped"] for each in json.loads(router.get("/router")[1])["replicas"])


def watch(urls: list[str], canary: str, share: float, rate: float, seconds: float) -> tuple[float | None, int, int]:
    """(seconds until the canary was stopped, None for never; requests; those that failed)."""
    router = ServerProcess([*(word for url in urls for word in ("--replica", url)), "--canary", f"{canary}={share}"], ENVIRONMENT, "route")
    rng, answers, stopped = Random(1), [], None
    try:
        with ThreadPoolExecutor(64) as pool:
            began = looked = time.monotonic()
            while stopped is None and time.monotonic() < began + seconds:
                answers.append(pool.submit(ask, router.url, len(answers)))
                time.sleep(rng.expovariate(rate))
                if time.monotonic() > looked + 0.25:
                    looked = time.monotonic()
                    stopped = looked - began if is_stopped(router) else None
        return stopped, len(answers), sum(not each.result() for each in answers)
    finally:
        router.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=20.0)
    parser.add_argument("--share", type=float, default=0.1)
    parser.add_argument("--seconds", type=float, default=60.0)
    arguments = parser.parse_args()
    with ExitStack() as stack:
        usual = [ServerProcess([fake(1.0, 1.0)], ENVIRONMENT) for _ in range(3)]
        for each in usual:
            stack.callback(each.stop)
        for name, factors in CANARIES.items():
            canary = ServerProcess([fake(*factors)], ENVIRONMENT)
            stack.callback(canary.stop)
            stopped, requests, failed = watch([each.url for each in usual], canary.url, arguments.share, arguments.rate, arguments.seconds)
            told = "stays" if stopped is None else f"is stopped after {stopped:.1f} s"
            got = round(canary.metric("vllm:request_success_total"))
            print(f"a canary that is {name} {told}; {requests} requests, {got} of them its own, {failed} failed", flush=True)


if __name__ == "__main__":
    main()
