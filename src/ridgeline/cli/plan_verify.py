"""`ridgeline plan MODEL --verify`: loads the model, times many steps of it and a server's first tokens, and sets them beside the plan; what
is learned is kept."""

import os
import time
from collections.abc import Mapping
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from ridgeline.cli.output import LoadingProgress, print_json, print_notes, print_table

if TYPE_CHECKING:
    from ridgeline.planning.verify import Line, Timed, Verification

DECODE_ROWS: Final = (1, 2, 4, 8, 16, 32)
PREFILL_TOKENS: Final = (64, 128, 256, 512)
ROUNDS: Final = 5
PAUSE_SECONDS: Final = 0.1
DECODES_BEFORE: Final = 3


def run_verify(given: Mapping[str, Any]) -> None:
    """Starts the engine in this process with the flags of `plan` that it knows, and prints the comparison. Raises what a start raises."""
    from ridgeline.cli.plan_front_end import PROMPT_TOKENS, verify_front_end
    from ridgeline.config.env import cache_directory, model_stores
    from ridgeline.config.groups import EngineConfig
    from ridgeline.engine.compose import start_engine
    from ridgeline.facts.hardware.machine import anonymous_bytes
    from ridgeline.facts.headers.read import describe_model
    from ridgeline.planning.verify import speed_lines, verify_start

    config = EngineConfig(model=given["model"], kv_dtype=given["kv_dtype"] or "auto", max_model_len=given["context"])
    with LoadingProgress() as loading:
        engine, decisions = start_engine(config, loading.show)
    try:
        executor: Any = engine.executor
        timed = _time(executor)
        process = anonymous_bytes(os.getpid())
    finally:
        engine.executor.close()
    facts, info = describe_model(given["model"], model_stores()), executor.info
    found = verify_start(facts, decisions, info, process, cache_directory(), timed)
    assert found is not None, "an engine with a backend times its steps"
    after = [each.error for each in speed_lines(found.deployment, timed)]
    if info.generates and info.max_model_len >= 2 * PROMPT_TOKENS:
        flags = [given["model"], "--kv-dtype", config.kv_dtype, *(("--max-model-len", str(given["context"])) if given["context"] else ())]
        found, errors = verify_front_end(found, flags, cache_directory())
        after += errors
    _report(found, after, given["as_json"])


def _time(executor: Any) -> "list[Timed]":
    """Steps of many sizes, each the median of some rounds, begun in turn so that a disturbance does not fall on one alone. As in a server
    there is a pause in front of a prompt, in which threads sleep, and some like it in front of a decode step: right behind another one it
    takes a tenth more."""
    info = executor.info
    longest = min(info.tokens, info.max_model_len)
    steps = [(rows, 1) for rows in DECODE_ROWS if rows <= min(info.rows, info.tokens)]
    steps += [(1, tokens) for tokens in PREFILL_TOKENS if tokens <= longest]
    found: dict[tuple[int, int], list[float]] = {step: [] for step in steps}
    for _ in range(ROUNDS):
        for rows, tokens in steps:
            if tokens > 1:
                time.sleep(PAUSE_SECONDS)
            else:
                for _ in range(DECODES_BEFORE):
                    executor.backend.seconds([tokens] * rows, [1] * rows)
            found[rows, tokens].append(executor.backend.seconds([tokens] * rows, [1] * rows))
    return [(rows, tokens, median(seconds)) for (rows, tokens), seconds in found.items()]


def _report(found: "Verification", after: list[float], as_json: bool) -> None:
    speed = [line for line in found.lines if line.unit == "s"]
    memory = [line for line in found.lines if line.unit == "B"]
    corrections = dict(zip((line.name for line in speed), after, strict=True))
    rows = [{"name": line.name, "unit": line.unit, "predicted": line.predicted, "measured": line.measured, "error": line.error,
             "error_from_now_on": corrections.get(line.name)} for line in (*memory, *speed)]  # fmt: skip
    if as_json:
        print_json({"model": found.deployment.model.name, "device": found.deployment.device.name, "lines": rows})
        return
    print_notes(f"{found.deployment.model.name} on {found.deployment.device.name}", "")
    heads = ["what", "predicted", "measured", "error", "from now on"]
    print_table("Predicted and measured", heads, [_row(line, corrections) for line in (*memory, *speed)])
    sizes = [abs(each) for each in after]
    print_notes("", f"Speed, from now on: {median(sizes):.0%} median error, {max(sizes):.0%} at most. Kept for plans, `sim` and `whatif`.")


def _row(line: "Line", after: Mapping[str, float]) -> list[str]:
    later = f"{after[line.name]:+.0%}" if line.name in after else ""
    return [line.name, *line.told, later]
