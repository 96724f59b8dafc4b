"""Runs loads that it is asked for on one installation of the package: a line of JSON in, a line of figures out. See compare.py.

Uses only what every commit has: `start_engine`, the engine's turns, admission, and `bench.scheduler`, whose function had another name once.
"""

import gc
import json
import random
import sys
import time
from statistics import median
from typing import Any

from ridgeline.bench import scheduler
from ridgeline.config.groups import EngineConfig
from ridgeline.core.commands import Admit
from ridgeline.core.params import SamplingParams
from ridgeline.engine.admit import ModelLimits, admit
from ridgeline.engine.compose import start_engine

measure_decode = getattr(scheduler, "measure_decode", None) or scheduler.steady
FIRST_ID = 16
"""Ids below it are often control tokens."""


class Probe:
    """An engine that is loaded once. step_ms: prompts are computed as fast as they can be, for nobody waits meanwhile."""

    def __init__(self, model: str) -> None:
        config = EngineConfig(model, max_num_seqs=64, max_model_len=2_176, enable_prefix_caching=False, step_ms=60_000)
        self.engine, _ = start_engine(config, lambda stage, fraction: None)
        self.draws = random.Random(0)
        self.number = 0

    def requests(self, streams: int, prompt: int, output: int) -> list[Admit]:
        info = self.engine.executor.info
        limits = ModelLimits(info.vocab, info.max_model_len, frozenset(), info.kv)
        params = SamplingParams(temperature=0.0, max_tokens=output, ignore_eos=True)
        made = []
        for _ in range(streams):
            ids = [self.draws.randrange(min(FIRST_ID, info.vocab - 1), info.vocab) for _ in range(prompt)]
            self.number += 1
            made.append(Admit(admit(ids, params, limits, request_id=str(self.number), draw_seed=lambda: 0)))
        return made

    def run(self, streams: int, prompt: int, output: int) -> tuple[list[tuple[float, float, int]], float, float]:
        """(when, CPU seconds, tokens) at the end of each turn, and both clocks at the beginning."""
        requests = self.requests(streams, prompt, output)
        gc.collect()
        began, spent, turns = time.perf_counter(), time.process_time(), []
        turn = self.engine.turn(requests)
        while True:
            turns.append((time.perf_counter(), time.process_time(), sum(len(each.ids) for each in turn.outputs)))
            if self.engine.idle:
                return turns, began, spent
            turn = self.engine.turn()

    def decode(self, streams: int) -> dict[str, float]:
        """Seconds and CPU seconds of a token, from the step in which all have their first one on."""
        turns, _, _ = self.run(streams, 64, 48)
        totals, total = [], 0
        for _, _, tokens in turns:
            total += tokens
            totals.append(total)
        start = next(at for at, each in enumerate(totals) if each >= streams)
        tokens = totals[-1] - totals[start]
        return {"seconds": (turns[-1][0] - turns[start][0]) / tokens, "cpu": (turns[-1][1] - turns[start][1]) / tokens}

    def prefill(self, prompt: int) -> dict[str, float]:
        """Seconds and CPU seconds of a token of one prompt."""
        turns, began, spent = self.run(1, prompt, 2)
        first = next(turn for turn in turns if turn[2])
        return {"seconds": (first[0] - began) / prompt, "cpu": (first[1] - spent) / prompt}

    def host(self, rows: int) -> dict[str, float]:
        """CPU seconds of schedule and commit, for a step in which so many rows decode."""
        gc.collect()
        seconds = median(measure_decode(rows, 128, 2))
        return {"seconds": seconds, "cpu": seconds}


def main() -> None:
    answers = sys.stdout
    sys.stdout = sys.stderr
    probe = Probe(sys.argv[1])
    for line in sys.stdin:
        asked: dict[str, Any] = json.loads(line)
        figures = getattr(probe, asked["load"])(asked["size"])
        print(json.dumps(figures), file=answers, flush=True)


if __name__ == "__main__":
    main()
