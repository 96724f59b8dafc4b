"""An engine driven by hand: waves of requests, their answers, and what happened on the way."""

import select
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ridgeline.config.groups import EngineConfig
from ridgeline.core.commands import Admit
from ridgeline.core.events import Finish, Preempted, PrefixHit
from ridgeline.core.params import Adapter, Admitted
from ridgeline.core.plan import TokenLogprobs
from ridgeline.engine.compose import start_engine
from ridgeline.engine.engine import Engine

SETTINGS: dict[str, object] = {"kv_dtype": "f32"}
"""What `serve` sets unless its caller does."""

Answer = tuple[tuple[int, ...], tuple[TokenLogprobs, ...]]


class Run:
    """Answers and how they ended by (request, choice), scores of prompts by request, and how often something happened."""

    def __init__(self) -> None:
        self.answers: dict[tuple[str, int], Answer] = {}
        self.ends: dict[tuple[str, int], Finish] = {}
        self.scores: dict[str, tuple[TokenLogprobs, ...]] = {}
        self.preempted = self.hit_tokens = self.host_tokens = self.peak_rows = 0


def serve(model: Path, waves: list[list[Admitted]], prepare: Callable[[Engine], None] | None = None, **settings: object) -> Run:
    """Gives the engine one wave of requests after the other, each when it has finished the one before. `settings` over `SETTINGS`;
    `prepare` is called once, before the first."""
    config = EngineConfig(str(model), **{**SETTINGS, **settings})  # type: ignore[arg-type]
    engine, _ = start_engine(config, lambda stage, fraction: None)
    if prepare is not None:
        prepare(engine)
    run = Run()
    for wave in waves:
        turn = engine.turn(engine.prepare([Admit(each) for each in wave]))
        while True:
            for output in turn.outputs:
                ids, logprobs = run.answers.get((output.request_id, output.choice), ((), ()))
                if output.prompt_logprobs is not None:
                    run.scores[output.request_id] = run.scores.get(output.request_id, ()) + output.prompt_logprobs
                run.answers[output.request_id, output.choice] = (ids + output.ids, logprobs + (output.logprobs or ()))
                if output.end is not None:
                    run.ends[output.request_id, output.choice] = output.end
            for event in turn.events:
                run.preempted += isinstance(event, Preempted)
                if isinstance(event, PrefixHit):
                    run.hit_tokens += event.tokens
                    run.host_tokens += event.from_host
            if not turn.progressed:
                break
            turn = engine.turn()
    engine.executor.close()
    return run


def read_adapters(engine: Engine, adapters: list[Adapter]) -> None:
    """The engine is driven without waiting, so they are there before the first request."""
    store: Any = engine.executor.adapters
    if not adapters:
        return
    for each in adapters:
        store.load(each)
    store.begin(())
    while store.pending:
        assert select.select([store.fileno()], [], [], 20)[0], "nothing is reported"
        assert [error for _, error in store.take() if error] == []
