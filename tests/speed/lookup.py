"""Prompt lookup on and off in turn, in one process: is it faster where text repeats, and not slower elsewhere?

    python tests/speed/lookup.py [MODEL] [--starts 4] [--rounds 3] [--tokens 96] [--depth 2] [--loads 0,1,2,3] [--host]

Ratios are seconds without drafts over seconds with them, in pairs whose order changes; the tokens of each pair must be equal. Where an
engine's memory lies is worth some per cent and stays as long as it lives: so both are made anew for some rounds each. With --host the
drafter's own time is read too, in microseconds per row and step: beside a model, whose weights drive it out of the caches at every step,
and hot, beside a model without weights. Four starts take four minutes with the demo, `--host --starts 1 --loads 0` half a minute.
"""

import argparse
import time
from statistics import median, quantiles
from typing import Any

from ridgeline import LLM, SamplingParams
from ridgeline.core.drafts.prompt_lookup import PromptLookupDrafter

CODE = """def area(shape):
    if shape.kind == "circle":
        return 3.14159 * shape.radius * shape.radius
    if shape.kind == "square":
        return shape.side * shape.side
    raise ValueError(shape.kind)

"""
STORY = "Once upon a time in a village by the sea there lived an old fisherman who had never told anyone"
REPEATING = CODE * 3 + "def area(shape):\n"
LOADS = {
    "1 stream, code that repeats": ([REPEATING], 0.0),
    "1 stream, a story": ([STORY], 1.0),
    "8 streams, 2 repeat": ([REPEATING] * 2 + [f"{STORY} {number}" for number in range(6)], 0.0),
    "32 streams, stories": ([f"{STORY} {number}" for number in range(32)], 0.0),
}
"""Prompts and temperature."""


HOT = 'fake:{"script": [["repeat", "%s"]]}' % ("abcdefghijk" * 40)
"""A model without weights that repeats itself."""
METHODS = ("should_wait", "propose", "on_commit")


def time_drafter() -> list[dict[str, float]]:
    """Returns a list that gets the seconds of the drafter's methods for each step from now on."""
    steps, spent = [], dict.fromkeys(METHODS, 0.0)

    def timed(name: str) -> Any:
        method = getattr(PromptLookupDrafter, name)

        def call(*arguments: Any) -> Any:
            nonlocal spent
            began = time.perf_counter()
            found = method(*arguments)
            seconds = time.perf_counter() - began
            spent[name] += seconds
            if name == "on_commit":  # the last of a step
                steps.append(spent)
                spent = dict.fromkeys(METHODS, 0.0)
            return found

        return call

    for name in METHODS:
        setattr(PromptLookupDrafter, name, timed(name))
    return steps


def tell(steps: list[dict[str, float]], rows: int) -> None:
    """Prints microseconds per row of the steps."""
    tenths = [1e6 * each / rows for each in quantiles([sum(step.values()) for step in steps], n=10)]
    parts = ", ".join(f"{name} {1e6 * median(step[name] for step in steps) / rows:.1f}" for name in METHODS)
    print(f"    drafter, µs per row and step: median {tenths[4]:.1f} ({parts}), p90 {tenths[8]:.1f}, of {len(steps)} steps", flush=True)


def paired(engines: dict[str, LLM], name: str, rounds: int, tokens: int) -> list[float]:
    """Seconds without drafts over seconds with them, of each round behind a first one, which warms both up."""
    prompts, temperature = LOADS[name]
    params = SamplingParams(temperature=temperature, seed=3, max_tokens=tokens, ignore_eos=True)
    ratios = []
    for number in range(rounds + 1):
        seconds, ids = {}, {}
        for mode in ("off", "ngram") if number % 2 else ("ngram", "off"):
            began = time.perf_counter()
            outputs = engines[mode].generate(prompts, params)
            seconds[mode] = time.perf_counter() - began
            ids[mode] = [output.outputs[0].token_ids for output in outputs]
        assert ids["off"] == ids["ngram"], f"{name}: drafts changed the tokens"
        ratios.append(seconds["off"] / seconds["ngram"])
    return ratios[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--starts", type=int, default=4, help="of both engines")
    parser.add_argument("--rounds", type=int, default=3, help="per start and load")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--depth", type=int, default=2, help="steps in flight")
    parser.add_argument("--host", action="store_true")
    parser.add_argument("--loads", default="0,1,2,3", help="numbers of those to run")
    options = parser.parse_args()
    timed = time_drafter() if options.host else []
    ratios: dict[str, list[float]] = {list(LOADS)[int(number)]: [] for number in options.loads.split(",")}
    steps: dict[str, list[dict[str, float]]] = {name: [] for name in ratios}
    for start in range(options.starts):
        engines = {
            mode: LLM(options.model, speculative=mode, depth=options.depth, max_model_len=2_048, enable_prefix_caching=False)
            for mode in (("off", "ngram") if start % 2 else ("ngram", "off"))
        }
        for name in ratios:
            ratios[name] += paired(engines, name, options.rounds, options.tokens)
            steps[name] += timed
            timed.clear()
        for engine in engines.values():
            engine.close()
    for name, found in ratios.items():
        print(f"{name}: {median(found):.3f} [{min(found):.2f}-{max(found):.2f}]", flush=True)
        if options.host:
            tell(steps[name], len(LOADS[name][0]))
    if options.host:
        with LLM(HOT, speculative="ngram", depth=options.depth) as hot:
            for _ in range(8):
                hot.generate(["repeat"], SamplingParams(max_tokens=400, temperature=0))
        print("hot: 1 stream that repeats, without weights")
        tell(timed, 1)


if __name__ == "__main__":
    main()
