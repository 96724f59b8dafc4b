"""Prompt lookup on and off in turn, in one process: is it faster where text repeats, and not slower elsewhere?

    python tests/speed/lookup.py [MODEL] [--rounds 5] [--tokens 96] [--depth 2] [--host]

Ratios are seconds without drafts over seconds with them, in pairs whose order changes; the tokens of each pair must be equal. With --host
the drafter's own time is read too, in microseconds per row and step: beside a model, whose weights drive it out of the caches at every
step, and hot, beside a model without weights. Five rounds take four minutes with the demo, `--host --rounds 4 --only 1` half a minute.
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
    """Prints microseconds per row of the steps, and forgets them."""
    tenths = [1e6 * each / rows for each in quantiles([sum(step.values()) for step in steps], n=10)]
    parts = ", ".join(f"{name} {1e6 * median(step[name] for step in steps) / rows:.1f}" for name in METHODS)
    print(f"    drafter, µs per row and step: median {tenths[4]:.1f} ({parts}), p90 {tenths[8]:.1f}, of {len(steps)} steps", flush=True)
    steps.clear()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--depth", type=int, default=2, help="steps in flight")
    parser.add_argument("--host", action="store_true")
    parser.add_argument("--only", type=int, default=len(LOADS), help="only the first so many loads")
    options = parser.parse_args()
    steps = time_drafter() if options.host else []
    engines = {
        mode: LLM(options.model, speculative=mode, depth=options.depth, max_model_len=2_048, enable_prefix_caching=False)
        for mode in ("off", "ngram")
    }
    for name, (prompts, temperature) in list(LOADS.items())[: options.only]:
        params = SamplingParams(temperature=temperature, seed=3, max_tokens=options.tokens, ignore_eos=True)
        ratios = []
        for number in range(options.rounds + 1):
            seconds, ids = {}, {}
            for mode in ("off", "ngram") if number % 2 else ("ngram", "off"):
                began = time.perf_counter()
                outputs = engines[mode].generate(prompts, params)
                seconds[mode] = time.perf_counter() - began
                ids[mode] = [output.outputs[0].token_ids for output in outputs]
            assert ids["off"] == ids["ngram"], f"{name}: drafts changed the tokens"
            if number:  # the first pair warms both up
                ratios.append(seconds["off"] / seconds["ngram"])
        print(f"{name}: {median(ratios):.3f} [{min(ratios):.2f}-{max(ratios):.2f}]", flush=True)
        if steps:
            tell(steps, len(prompts))
    if options.host:
        with LLM(HOT, speculative="ngram", depth=options.depth) as hot:
            for _ in range(8):
                hot.generate(["repeat"], SamplingParams(max_tokens=400, temperature=0))
        print("hot: 1 stream that repeats, without weights")
        tell(steps, 1)


if __name__ == "__main__":
    main()
