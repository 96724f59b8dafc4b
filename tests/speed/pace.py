"""The pace at the start and after some hundred steps, and what mixed steps take: `python tests/speed/pace.py [MODEL] [STARTS]`.

Each start is an engine of its own, so that the noise of the first measurement shows beside what is learned from steps.
"""

import sys
from statistics import quantiles

from ridgeline.config.groups import EngineConfig
from ridgeline.core.commands import Admit, Command
from ridgeline.core.events import Scheduled, StepLate, StepTimed
from ridgeline.core.params import Admitted
from ridgeline.engine.compose import start_engine

DECODING, PROMPTS, PROMPT_TOKENS = 4, 8, 768
"""Rows that decode throughout, and prompts that come meanwhile."""


def run(model: str) -> str:
    """One engine's line."""
    config = EngineConfig(model, max_num_seqs=8, max_model_len=2048, enable_prefix_caching=False)
    engine, _ = start_engine(config, lambda stage, fraction: None)
    at_start = engine.scheduler.limits.mixed_tokens
    commands: list[Command] = [Admit(Admitted(f"d{number}", (5, 6, 7), 1200, number)) for number in range(DECODING)]
    ids = tuple(5 + number * 7919 % 4000 for number in range(PROMPT_TOKENS))
    commands += [Admit(Admitted(f"p{number}", (number, *ids), 2, number)) for number in range(PROMPTS)]
    mixed: list[float] = []
    late, is_mixed = 0, {}
    while commands or len(engine.scheduler.lifecycle.open) > DECODING:
        turn = engine.turn(commands)
        commands = []
        late += sum(isinstance(event, StepLate) for event in turn.events)
        is_mixed |= {event.step: 1 in event.count and max(event.count) > 1 for event in turn.events if isinstance(event, Scheduled)}
        mixed += [event.timings.run for event in turn.events if isinstance(event, StepTimed) and is_mixed[event.step]]
    engine.executor.close()
    tenths = quantiles([1e3 * seconds for seconds in mixed], n=100)
    return (
        f"mixed_tokens {at_start} at the start, {engine.scheduler.limits.mixed_tokens} at the end; {len(mixed)} steps with prompts: "
        f"p50 {tenths[49]:.0f} ms, p90 {tenths[89]:.0f} ms, p99 {tenths[98]:.0f} ms of {config.step_ms}; {late} late"
    )


if __name__ == "__main__":
    for _ in range(int(sys.argv[2]) if len(sys.argv) > 2 else 3):
        print(run(sys.argv[1] if len(sys.argv) > 1 else "demo"), flush=True)
