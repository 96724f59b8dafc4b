"""Speculation with planted acceptance: an oracle that errs at random drafts, so that only costs and the choice of depth are measured.

    python tests/speed/llama_file.py 1b.gguf && python tests/speed/planted.py 1b.gguf [--streams 1 4] [--tokens 128] [--rounds 5] [--cpu]
    python tests/speed/planted.py 1b.gguf --verify [--context 1024]

The first prints per number of streams and acceptance the decoding tokens/s (prompts apart) with drafts over those without, in turn, the
most that any fixed depth could give, E(d) / c(1 + d), and the share of it that was reached; asked: ≥ 0.92 at 1 and 4 streams (and ≥ 1.8 ×
at 1 stream and acceptance 0.8), ≥ 0.98 × at 32, where no depth pays. c(m) is the cost of a step of m tokens of each row over one of one
token, with what greedy rows need of the head. It is measured in every round, each size in turn: where the speed of a machine moves, so
does c(m). At one stream also how much of that share goes to the depths, and how much to time beside the products. 1 and 4 streams take the
1B shape four minutes on two quiet cores, 32 streams (`--streams 32 --tokens 48 --rounds 2`) three. `--verify` compares a step of 4 tokens
of one row with one of 4 rows, at the same context; asked: ≤ 0.95. `--cpu` counts processor seconds, beside other programs.
"""

import time
from argparse import ArgumentParser, Namespace
from collections import Counter
from random import Random
from statistics import median
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ridgeline import LLM, SamplingParams
from ridgeline.compute.dummy import dummy_step
from ridgeline.core.drafts.acceptance import Acceptance
from ridgeline.core.drafts.model import PRIOR_ACCEPTANCE
from ridgeline.core.drafts.prompt_lookup import PromptLookupDrafter
from ridgeline.core.sequence import Sequence

clock = time.perf_counter
DEPTH = 8
MOST_STREAMS = 8
"""With more no depth is thought to pay."""


class Oracle:
    """Predicts what will come, and errs with the chance 1 - `acceptance` at each id. What is thought of one begins with what all
    have shown, as with a draft model."""

    match, due, reach = 0, 0, DEPTH

    def __init__(self, sequence: Sequence, answer: list[int], acceptance: float, overall: Acceptance) -> None:
        self._sequence, self._answer, self._planted = sequence, answer, acceptance
        self._record, self._overall = Acceptance(), overall
        self._expected, self._seen = (), len(sequence.known)
        self.acceptance = overall.estimate(PRIOR_ACCEPTANCE)

    def update(self) -> None:
        known, right = self._sequence.known, 0
        for token, expected in zip(known[self._seen :], self._expected, strict=False):
            if token != expected:
                break
            right += 1
        if self._expected:
            for record in (self._record, self._overall):
                record.record(min(len(known) - self._seen, len(self._expected)), right)
        self._seen, done = len(known), len(known) - self._sequence.prompt_tokens
        draw = Random(self._seen * 1_000_003 + self._sequence.request.seed)
        coming = self._answer[done : done + DEPTH]
        self._expected = tuple(token if draw.random() < self._planted else token ^ 1 for token in coming)
        self.acceptance = self._record.estimate(self._overall.estimate(PRIOR_ACCEPTANCE))

    def propose(self, count: int) -> tuple[int, ...]:
        return self._expected[:count]


class Planted(PromptLookupDrafter):
    """Drafts of oracles that know the answers by prompt."""

    answers: ClassVar[dict[tuple[int, ...], list[int]]] = {}
    planted = 0.0
    overall = Acceptance()
    drafted = steps = 0
    tokens: ClassVar[Counter[int]] = Counter()
    """Steps by their tokens, of those that decode."""
    between: ClassVar[list[float]] = []
    """Seconds from the end of a step to the start of the next, which verifies drafts."""
    _committed = 0.0

    def _new_predictor(self, sequence: Sequence) -> Any:
        return Oracle(sequence, self.answers[sequence.request.prompt], self.planted, self.overall)

    def on_commit(self, sequences: list[Sequence], plan: Any, result: Any) -> None:
        now = clock()
        if plan.drafts:
            self.drafted += sum(plan.sample) - len(plan.sample)
            self.between.append(now - self._committed - result.timings.run)
        self._committed = now
        self.steps += 1
        if sum(plan.sample) == len(plan.tokens):
            self.tokens[len(plan.tokens)] += 1
        super().on_commit(sequences, plan, result)


def expected(acceptance: float, depth: int) -> float:
    """Ids of a step of `depth` drafts: Leviathan et al. 2023."""
    return sum(acceptance**number for number in range(depth + 1))


def step_seconds(llm: LLM, rows: int, tokens: int, context: int, rounds: int) -> float:
    """Seconds of the quickest step of `rows` rows, each of `tokens` tokens that all sample, behind `context` others."""
    backend = llm._engine._engine.executor.backend  # type: ignore[attr-defined]
    groups, size = len(backend._shape.groups), backend._shape.block_tokens
    width = -(-(context + tokens) // size)
    given = [tokens] * rows
    inputs = dummy_step(given, groups=groups, block_tokens=size, starts=[context] * rows, samples=given, row_blocks=width)
    found, keep = [], np.ones(len(inputs.select), np.int32)  # as greedy rows have it
    for _ in range(rounds + 1):
        began = clock()
        backend._runner.run(inputs, backend._kv, keep=keep)
        found.append(clock() - began)
    return min(found[1:])


def verify(llm: LLM, options: Namespace) -> None:
    """A step of m tokens of one row against one of m rows, in turn."""
    for count in (2, 4, 8):
        ratios, seconds = [], []
        for _ in range(options.rounds * 2):
            one = step_seconds(llm, 1, count, options.context, 2)
            seconds.append(one)
            ratios.append(one / step_seconds(llm, count, 1, options.context, 2))
        print(
            f"{count} tokens of a row at {options.context}: {median(ratios):.3f} × {count} rows; {median(seconds) * 1e3:.1f} ms", flush=True
        )


def run(llm: LLM, prompts: list[list[int]], tokens: int) -> tuple[float, list[list[int]]]:
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    began = clock()
    outputs = llm.generate(prompts, params)
    return clock() - began, [list(output.outputs[0].token_ids) for output in outputs]


def costs_of(llm: LLM, streams: int) -> dict[int, float]:
    """Seconds of a step by the drafts of each row."""
    depths = range(DEPTH + 1) if streams <= MOST_STREAMS else (0,)
    return {depth: step_seconds(llm, streams, 1 + depth, 64, 1) for depth in depths}


class Round(NamedTuple):
    """Without drafts and with them, in turn: how many times as fast; seconds of a step by the drafts of each row, measured between the
    two; steps by their tokens."""

    ratio: float
    seconds: dict[int, float]
    steps: Counter[int]


def rounds_of(llm: LLM, planted: Planted, prompts: list[list[int]], answers: list[list[int]], options: Namespace) -> list[Round]:
    """Rounds behind one that warms up."""
    scheduler, found = llm._engine._engine.scheduler, []  # type: ignore[attr-defined]
    for number in range(options.rounds + 1):
        scheduler.drafter, seconds, costs = None, {}, {}
        prefill, _ = run(llm, prompts, 1)
        planted.tokens.clear()
        for drafts in (False, True) if number % 2 else (True, False):
            scheduler.drafter = planted if drafts else None
            seconds[drafts], ids = run(llm, prompts, options.tokens)
            assert ids == answers, "drafts changed the tokens"
            costs = costs or costs_of(llm, len(prompts))
        found.append(Round((seconds[False] - prefill) / (seconds[True] - prefill), costs, planted.tokens.copy()))
    return found[1:]


def compare(llm: LLM, streams: int, options: Namespace) -> None:
    """Tokens per second with and without drafts, in turn; the best fixed depth by the costs of this run."""
    price = llm._engine.info.price  # type: ignore[attr-defined]
    draw = Random(streams)
    prompts = [[draw.randrange(300, 9_000) for _ in range(24)] for _ in range(streams)]
    llm._engine._engine.scheduler.drafter = None  # type: ignore[attr-defined]
    _, answers = run(llm, prompts, options.tokens)
    if streams == 1:
        print("at the start: " + ", ".join(f"{tokens} {seconds / price[0][2]:.2f}" for tokens, _, seconds in price))
    for acceptance in (0.8, 0.3):
        planted = Planted(DEPTH, price, barrier=llm.config.depth > 1)
        planted.planted, planted.overall = acceptance, Acceptance()
        planted.between.clear()
        planted.answers = {tuple(prompt): answer for prompt, answer in zip(prompts, answers, strict=True)}
        rounds = rounds_of(llm, planted, prompts, answers, options)
        tell(streams, acceptance, rounds, planted.drafted / max(1, planted.steps) / streams, options.tokens)


def tell(streams: int, acceptance: float, rounds: list[Round], depth: float, tokens: int) -> None:
    """Prints costs, what the best fixed depth could give by them, and what was reached."""
    costs = {depth: median([each.seconds[depth] / each.seconds[0] for each in rounds]) for depth in rounds[0].seconds}
    best, deep = max((expected(acceptance, depth) / cost, depth) for depth, cost in costs.items())
    ratios = [each.ratio for each in rounds]
    got = median(ratios)
    print(
        f"{streams} streams, acceptance {acceptance}: {got:.2f} × ({min(ratios):.2f} … {max(ratios):.2f}), best fixed depth "
        f"({deep}) {best:.2f} ×, reached {got / best:.2f}; {depth:.1f} drafts a row and step",
    )
    print("    c(m): " + ", ".join(f"{1 + depth} {cost:.2f}" for depth, cost in costs.items()), flush=True)
    if streams == 1:  # had the steps taken nothing beside their products
        steps = median([(tokens - 1) / sum([count * costs[size - 1] for size, count in each.steps.items()]) for each in rounds])
        share = f"of the bound {steps / best:.2f} by depths, {got / steps:.2f} by time"
        print(f"    its steps by c(m) alone {steps:.2f} ×: {share}", flush=True)
    if Planted.between:
        print(f"    in front of a step with drafts the device waits {median(Planted.between) * 1e3:.2f} ms", flush=True)


def main() -> None:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--verify", action="store_true")
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args()
    if options.cpu:
        global clock
        clock = time.process_time
    rows = max(8, *options.streams)
    length = options.context + 64 if options.verify else 512
    drafts = {"speculative": "ngram", "num_speculative_tokens": DEPTH, "enable_prefix_caching": False}
    with LLM(options.model, max_num_seqs=rows, max_model_len=length, **drafts) as llm:
        if options.verify:
            verify(llm, options)
        else:
            for streams in options.streams:
                compare(llm, streams, options)


if __name__ == "__main__":
    main()
