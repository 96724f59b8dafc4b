"""What speculation brings real models on prompts of four kinds, one stream: acceptance, and speed against none, in turn.

    python tests/speed/pairs.py [MODEL ...] [--prompts 100] [--tokens 64] [--drafters ngram suffix] [--draft-model MODEL]

Each prompt is answered without drafts and with them, in an order that changes; both must be the same ids. Ratios are of seconds, and of
processor seconds, which say more beside other programs. Asked: never below 0.98. A hundred prompts of 64 tokens take the demo four minutes
per drafter on two quiet cores.
"""

import argparse
import time
from statistics import median
from typing import Any

from ridgeline import LLM, SamplingParams
from ridgeline.core.plan import Plan, Result
from ridgeline.core.sequence import Sequence

THINGS = (
    "lamp", "river", "clock", "garden", "letter", "bridge", "violin", "harbour", "ladder", "orchard", "candle", "window", "mirror",
    "basket", "engine",
)  # fmt: skip
PLACES = (
    "Bern", "Lisbon", "Oslo", "Prague", "Turin", "Ghent", "Split", "Cork", "Porto", "Graz", "Lyon", "Bath", "Kiel", "Pisa", "Umea",
)  # fmt: skip


def prompts(count: int) -> dict[str, list[str]]:
    """Prompts of four kinds: free text; code that is written again; a text that is quoted; records that go on."""
    kinds: dict[str, list[str]] = {"story": [], "code": [], "quote": [], "records": []}
    for number in range(-(-count // len(kinds))):
        thing, place = THINGS[number % len(THINGS)], PLACES[(number * 7 + number // 15) % len(PLACES)]
        kinds["story"].append(f"Once upon a time in {place}, an old {thing} was found by a child who had never")
        loop = f"    for item in items:\n        if item.kind == '{thing}':\n            total += item.number\n"
        body = f"def count_{thing}(items):\n    total = 0\n{loop}"
        kinds["code"].append(f"{body}    return total\n\n# the same function for {place.lower()}\ndef count_{place.lower()}(items):\n")
        said = f"The {thing} of {place} was built by nine people in {1700 + number}, and the town has kept it ever since."
        kinds["quote"].append(f"Text: {said} Nobody knows who paid for it.\nFirst sentence of the text: The")
        rows = "".join(f"{row},{THINGS[(number + row) % 15]},{PLACES[(number * 3 + row) % 15]},open\n" for row in range(1, 6))
        kinds["records"].append(f"number,thing,place,state\n{rows}")
    return kinds


class Counted:
    """A drafter whose drafts are counted."""

    def __init__(self, drafter: Any) -> None:
        self._drafter = drafter
        self.drafted = self.accepted = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._drafter, name)

    def on_commit(self, sequences: list[Sequence], plan: Plan, result: Result) -> None:
        self._drafter.on_commit(sequences, plan, result)
        if plan.drafts:
            self.drafted += sum(plan.sample) - len(plan.sample)
            self.accepted += sum(map(len, result.sampled)) - len(result.sampled)


def answer(llm: LLM, prompt: str, tokens: int) -> tuple[list[int], float, float]:
    """Ids, seconds and processor seconds of one answer."""
    began, used = time.perf_counter(), time.process_time()
    (output,) = llm.generate([prompt], SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True), use_tqdm=False)
    return list(output.outputs[0].token_ids), time.perf_counter() - began, time.process_time() - used


def compare(llm: LLM, kinds: dict[str, list[str]], tokens: int, name: str) -> None:
    scheduler = llm._engine._engine.scheduler  # type: ignore[attr-defined]
    own = scheduler.drafter
    for kind, asked in kinds.items():
        counted, ratios, spent = Counted(own), [], [0.0, 0.0]
        for number, prompt in enumerate(asked):
            ids, seconds = {}, {}
            for drafts in (False, True) if number % 2 else (True, False):
                scheduler.drafter = counted if drafts else None
                ids[drafts], seconds[drafts], cpu = answer(llm, prompt, tokens)
                spent[drafts] += cpu
            assert ids[False] == ids[True], f"drafts changed the answer to {prompt!r}"
            ratios.append(seconds[False] / seconds[True])
        share = counted.accepted / max(1, counted.drafted)
        print(
            f"| {name} | {kind} | {len(asked)} | {counted.drafted / len(asked) / tokens:.2f} | {share:.2f} | {median(ratios):.2f} "
            f"| {spent[False] / spent[True]:.2f} |",
            flush=True,
        )
    scheduler.drafter = own


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["demo"])
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--drafters", nargs="+", default=["ngram", "suffix"])
    parser.add_argument("--draft-model")
    options = parser.parse_args()
    print("| model, drafter | prompts | number | drafts per token | right | times as fast | by processor time |")
    print("|---|---|---|---|---|---|---|")
    for model in options.models:
        for drafter in options.drafters:
            draft = {"draft_model": options.draft_model} if drafter in ("draft", "auto") else {}
            with LLM(model, speculative=drafter, max_model_len=1_024, enable_prefix_caching=False, **draft) as llm:
                answer(llm, "Warm up", 16)
                compare(llm, prompts(options.prompts), options.tokens, f"{model.rpartition('/')[2]}, {drafter}")


if __name__ == "__main__":
    main()
