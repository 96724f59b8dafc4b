"""The flight recorder: what the ledger holds, written to files when a server breaches its objective or loses its engine.

Owns when that happens and how much is kept: one recording in `PAUSE_SECONDS`, `MAX_KEPT` of them, each a folder (0700) of files (0600) that
`whatif`, `sim` and Perfetto open. Lengths, times and numbers, never an id of a token. Written by a thread.
"""

import json
import logging
import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any, Final

from ridgeline.config.groups import EngineConfig
from ridgeline.core.commands import Knob
from ridgeline.engine.executor import ExecutorInfo
from ridgeline.observe.ledger import Ledger, RequestRecord
from ridgeline.observe.logs import with_fields
from ridgeline.observe.metrics import Metrics
from ridgeline.observe.prefixes import PromptLog
from ridgeline.observe.requests import Result
from ridgeline.observe.shares import Distribution, distribution
from ridgeline.planning.objectives import Objective
from ridgeline.planning.served import simulated_settings

WINDOW_SECONDS: Final = 900.0
"""Time before an incident that is written."""
MAX_STEPS: Final = 20_000
PAUSE_SECONDS: Final = 300.0
MAX_KEPT: Final = 8
LOOK_SECONDS: Final = 1.0
BREACH_SECONDS: Final = 30.0
"""Time over which requests are judged."""
BREACH_REQUESTS: Final = 20
BREACH_SHARE: Final = 0.5
"""Share of late requests, of so many at least, with which the objective is breached."""
FOLDER: Final = "incident-"
STEP_FIELDS: Final = ("tokens", "cached", "seconds", "rows")
_log: Final = logging.getLogger("ridgeline.server")


class Recorder:
    """Watches the metrics and writes recordings below `folder`, with the settings of the server then: `whatif`'s today."""

    def __init__(
        self, ledger: Ledger, prompts: PromptLog, folder: Path, outcomes: Callable[[float], dict[str, int]] = lambda since: {}
    ) -> None:
        """Takes `outcomes`: counts of how requests ended since a moment (`observe.outcomes`)."""
        self._ledger = ledger
        self._outcomes = outcomes
        self._served: tuple[ExecutorInfo, EngineConfig, Mapping[Knob, int]] | None = None
        self._prompts = prompts
        self._folder = folder
        self._looks: deque[tuple[float, int, int]] = deque()
        self._written_at = -PAUSE_SECONDS
        self._count = 0

    def serves(self, info: ExecutorInfo, config: EngineConfig, knobs: Mapping[Knob, int]) -> None:
        """Takes note of the engine that answers now. `knobs`: settings of it that are changed while it runs."""
        self._served = info, config, knobs

    def look(self, metrics: Metrics, now: float) -> None:
        """Called often: records where the objective has been breached."""
        if metrics.objective == Objective() or (self._looks and now - self._looks[-1][0] < LOOK_SECONDS):
            return
        late = metrics.results[Result.LATE_FIRST_TOKEN] + metrics.results[Result.SLOW_TOKENS]
        self._looks.append((now, late + metrics.results[Result.GOOD], late))
        while now - self._looks[0][0] > BREACH_SECONDS:
            self._looks.popleft()
        ended, of_them_late = self._looks[-1][1] - self._looks[0][1], self._looks[-1][2] - self._looks[0][2]
        if ended >= BREACH_REQUESTS and of_them_late >= BREACH_SHARE * ended:
            self.record("objective", f"{of_them_late} of {ended} requests were late within {BREACH_SECONDS:g} s", now)

    def record(self, kind: str, reason: str, now: float) -> threading.Thread | None:
        """Writes what led to this moment, unless it has just been done. Returns the thread that does."""
        if now - self._written_at < PAUSE_SECONDS:
            return None
        self._written_at = now
        self._count += 1
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        folder = self._folder / f"{FOLDER}{stamp}-{os.getpid()}-{self._count}-{kind}"
        what = {"kind": kind, "reason": reason, "pid": os.getpid(), "counts": self._outcomes(now - WINDOW_SECONDS), **self._today()}
        writing = threading.Thread(target=self._write, args=(folder, what, now), name="recorder", daemon=True)
        writing.start()
        return writing

    def _today(self) -> dict[str, Any]:
        """Model, settings of the simulator, and seconds of steps as the start measured them; {} before an engine has started."""
        if self._served is None:
            return {}
        info, config, knobs = self._served
        settings = simulated_settings(info, replace(config, step_ms=knobs.get("step_ms", config.step_ms)))
        return {"model": config.model, "settings": settings, "step_seconds": None if info.seconds is None else asdict(info.seconds)}

    def _write(self, folder: Path, what: dict[str, Any], now: float) -> None:
        kind, reason = what["kind"], what["reason"]
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for old in sorted(self._folder.glob(f"{FOLDER}*"))[: -MAX_KEPT + 1]:
                shutil.rmtree(old, ignore_errors=True)
            folder.mkdir(mode=0o700)
            write_incident(self._ledger, self._prompts, folder, what, now)
            _log.warning("incident recorded", extra=with_fields(kind=kind, reason=reason, folder=str(folder)))
        except Exception as error:  # whatever it is, the thread tells of it: nobody waits for its end
            _log.warning("an incident could not be recorded", extra=with_fields(kind=kind, reason=f"{type(error).__name__}: {error}"))


def write_incident(ledger: Ledger, prompts: PromptLog, folder: Path, what: dict[str, Any], now: float) -> None:
    """Writes the files of one incident: `incident.json`, `trace.jsonl` (requests, for `whatif` and `sim`), `steps.jsonl` (for
    `--set step_time=FILE`), `perfetto.json`. Raises OSError."""
    log = ledger.steps
    first = max(log.first, log.end - MAX_STEPS, log.index_at(now - WINDOW_SECONDS))
    steps = [(index, step) for index in range(first, log.end) if (step := log[index]).ended < float("inf")]
    records = ledger.arrived_since(now - WINDOW_SECONDS)
    begin = min([*(each.arrived for each in records), *(step.planned for _, step in steps)], default=now)
    arrivals = [*_arrivals(records, prompts, begin)]
    _dump(folder / "trace.jsonl", (json.dumps(each) for each in arrivals))
    sizes = (log.sizes(index) for index, _ in steps)
    _dump(folder / "steps.jsonl", (json.dumps(dict(zip(STEP_FIELDS, size, strict=True))) for size in sizes if size[0]))
    # Event by event: the C encoder holds the interpreter's lock for as long as one call takes.
    _dump(folder / "perfetto.json", _listed(json.dumps(each) for each in chain(_spans(steps, begin), _request_spans(records, begin))))
    ended = [each for each in records if not each.open_choices]
    for name, to_first in (("ttft", True), ("total", False)):
        what[name] = _as_told(distribution(ledger, ended, to_first=to_first))
    what |= {"requests": len(records), "steps": len(steps), "seconds": round(now - begin, 3), "begin": time.time() - (now - begin)}
    _dump(folder / "incident.json", [json.dumps(what)])


def _as_told(found: Distribution | None) -> dict[str, Any] | None:
    """A distribution as the admin socket tells it, without what texts say."""
    if found is None:
        return None
    causes = [{"cause": cause, "median_ms": 1e3 * median, "slow_ms": 1e3 * slow} for cause, (median, slow) in found.causes.items()]
    return {"requests": found.requests, "p50_ms": 1e3 * found.p50, "p95_ms": 1e3 * found.p95, "causes": causes}


def _dump(path: Path, lines: Iterable[str]) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)


def _listed(events: Iterator[str]) -> Iterator[str]:
    """The lines of a JSON file of Chrome's trace format. There is one event at least."""
    yield f'{{"traceEvents": [{next(events)}'
    for event in events:
        yield f",{event}"
    yield "]}"


def _arrivals(records: list[RequestRecord], prompts: PromptLog, begin: float) -> Iterator[dict[str, float]]:
    """Requests as a trace has them. One that has not ended is as long as half of the others, or as it may be."""
    ended = [each.output_tokens for record in records for each in list(record.choices.values()) if each.times is not None]
    usual = max(1, int(median(ended))) if ended else None
    for record in records:
        done = [each.output_tokens for each in list(record.choices.values()) if each.times is not None]
        output = max(done, default=min(record.max_tokens, usual or record.max_tokens))
        line: dict[str, float] = {"time": round(record.arrived - begin, 6), "prompt": record.prompt_tokens, "output": max(1, output)}
        followed = prompts.followed.get(record.request_id)
        if followed is not None:
            line |= {"prefix": followed.family, "shared": min(followed.shared, record.prompt_tokens)}
        yield line


def _spans(steps: list[tuple[int, Any]], begin: float) -> Iterator[dict[str, Any]]:
    """Steps, one behind the other, and the queue's length, as Chrome's trace format has them, in microseconds."""
    yield {"ph": "M", "name": "process_name", "pid": 1, "tid": 1, "args": {"name": "engine"}}
    for index, step in steps:
        run = step.run or step.ended - step.planned
        what = {"step": index, "decode": step.decode, "prefill": step.prefill, "lack": step.lack, "free_blocks": step.free_blocks}
        name = "prefill and decode" if step.prefill and step.decode else "prefill" if step.prefill else "decode"
        yield {"ph": "X", "name": name, "pid": 1, "tid": 1, "ts": 1e6 * (step.ended - run - begin), "dur": 1e6 * run, "args": what}
        yield {"ph": "C", "name": "waiting", "pid": 1, "ts": 1e6 * (step.ended - begin), "args": {"requests": step.waiting}}


def _request_spans(records: list[RequestRecord], begin: float) -> Iterator[dict[str, Any]]:
    """Queue, prefill and decode of each choice that has ended."""
    yield {"ph": "M", "name": "process_name", "pid": 2, "tid": 1, "args": {"name": "requests"}}
    for record in records:
        for number, choice in list(record.choices.items()):
            times = choice.times
            if times is None:
                continue
            moments = (times.arrived, times.started or times.ended, times.first_token_at or times.ended, times.ended)
            for name, since, until in zip(("queue", "prefill", "decode"), moments[:-1], moments[1:], strict=True):
                common = {"cat": "request", "id": f"{record.request_id}-{number}", "pid": 2, "tid": 1, "name": name}
                yield common | {"ph": "b", "ts": 1e6 * (since - begin), "args": {"prompt_tokens": record.prompt_tokens}}
                yield common | {"ph": "e", "ts": 1e6 * (until - begin)}
