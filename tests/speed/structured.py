"""What following a grammar costs, in one process, with and without in turn.

    python tests/speed/structured.py speed [--model demo] [--rounds 5] [--tokens 96] [--streams 1,16,32]
    python tests/speed/structured.py masks [--model demo]
    python tests/speed/structured.py same [--model demo] [--prompts 500]

speed  seconds of decoding steps without a grammar over seconds with one, in pairs whose order changes; CPU time, which other work on the
       machine changes less; and by how much a step is longer at p50 and p99, the median over the pairs: a pause of the machine makes the
       p99 of one pair longer by several milliseconds, on either side. A grammar that takes any text (the tokens of each
       pair must be equal), and lists that never end: of plain objects, and of objects with an e-mail address, whose masks cost most
masks  seconds of single masks over the model's vocabulary along values of six grammars: a grammar's first way, and later ones; before
       that the longest pause of another thread while the vocabulary is read and the first grammar compiled
same   greedy answers with a grammar that takes the free answer and others: equal to the free ones, id for id
"""

import argparse
import json
import time
from collections.abc import Sequence
from hashlib import sha256
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from schemas import PERSON, PLAIN, VALUES, endless

from ridgeline import LLM, SamplingParams, StructuredOutputs
from ridgeline.compute.decoding.grammar import GrammarCompiler
from ridgeline.compute.decoding.llguidance import Matcher, Tokenizer
from ridgeline.core.params import Grammar
from ridgeline.engine.compose import _vocabulary
from ridgeline.text.grammar_sandbox import to_grammar

STORY = "Once upon a time in a village by the sea there lived an old fisherman who had never told anyone"
ANYTHING = StructuredOutputs(regex=r"(.|\n)*")
GRAMMARS = {
    "anything": ANYTHING,
    "plain objects": StructuredOutputs(json=endless(PLAIN)),
    "objects with formats": StructuredOutputs(json=endless(PERSON)),
}
WAYS = 5


class Watched:
    """An engine whose turns are timed. Steps in flight: two, as in service, so that a turn takes as long as a step."""

    def __init__(self, model: str, rows: int) -> None:
        self.llm = LLM(model, max_model_len=2_048, max_num_seqs=rows, enable_prefix_caching=False)
        self._turns: list[tuple[float, float, int]] = []
        engine, turn = self.llm._engine._engine, self.llm._engine._engine.turn

        def timed(*arguments: Any) -> Any:
            found = turn(*arguments)
            self._turns.append((time.perf_counter(), time.process_time(), sum(len(each.ids) for each in found.outputs)))
            return found

        engine.turn = timed  # type: ignore[method-assign]

    def run(self, prompts: Sequence[str], params: SamplingParams) -> tuple[list[float], float, list[Sequence[int]]]:
        """Seconds of the steps in which every prompt decodes, CPU seconds of one in the mean, and the ids of each prompt."""
        self._turns.clear()
        outputs = [output.outputs[0].token_ids for output in self.llm.generate(prompts, params)]
        whole = [(when, spent) for when, spent, tokens in self._turns if tokens == len(prompts)][2:]
        if len(whole) < 2:
            raise SystemExit(f"no two steps in which all {len(prompts)} prompts decode; give more --tokens")
        cpu = (whole[-1][1] - whole[0][1]) / (len(whole) - 1)
        return [after[0] - before[0] for before, after in pairwise(whole)], cpu, outputs


def speed(options: argparse.Namespace) -> None:
    streams = [int(each) for each in options.streams.split(",")]
    engine = Watched(options.model, max(streams))
    engine.llm.generate("x", SamplingParams(max_tokens=1, structured_outputs=ANYTHING))  # the vocabulary is read once
    for name, grammar in GRAMMARS.items():
        for temperature in (0.0, 1.0):
            for count in streams:
                found = paired(engine, grammar, temperature, count, options)
                print(f"{name}, temperature {temperature:g}, {count} streams: {found}", flush=True)


def paired(engine: Watched, grammar: StructuredOutputs, temperature: float, count: int, options: argparse.Namespace) -> str:
    prompts = [f"{STORY} {number}" for number in range(count)]
    ratios: list[float] = []
    costs: list[float] = []
    steps: dict[bool, list[NDArray[np.float64]]] = {False: [], True: []}
    for number in range(options.rounds + 1):
        seconds, spent, ids = {}, {}, {}
        for follows in (False, True) if number % 2 else (True, False):
            structured = grammar if follows else None
            asked = SamplingParams(temperature=temperature, seed=3, max_tokens=options.tokens, structured_outputs=structured)
            seconds[follows], spent[follows], ids[follows] = engine.run(prompts, asked)
        if grammar is ANYTHING:
            assert ids[False] == ids[True], "the grammar changed the tokens"
        if number:  # the first pair warms both up
            ratios.append(sum(seconds[False]) / len(seconds[False]) / (sum(seconds[True]) / len(seconds[True])))
            costs.append(spent[True] / spent[False])
            for follows in steps:
                steps[follows].append(1e3 * np.quantile(seconds[follows], (0.5, 0.99)))
    free, bound = (np.array(steps[follows]) for follows in (False, True))
    told = zip((50, 99), *(np.median(each, axis=0) for each in (free, bound, bound - free)), strict=True)
    longer = ", ".join(f"p{share} {before:.2f} -> {behind:.2f} ms ({more:+.2f})" for share, before, behind, more in told)
    return f"{median(ratios):.3f} [{min(ratios):.3f}-{max(ratios):.3f}], CPU time x {median(costs):.3f}; steps {longer}"


def masks(options: argparse.Namespace) -> None:
    with LLM(options.model, max_model_len=256, max_num_seqs=1) as llm:
        vocab, encode = llm.limits.vocab, llm.tokenizer.encode
    vocabulary = _vocabulary(options.model, vocab)
    seconds, longest = paused(GrammarCompiler(lambda: _vocabulary(options.model, vocab), vocab))
    print(f"{vocab:,} ids, read in {seconds:.2f} s beside another thread, which paused for {1e3 * longest:.1f} ms at most", flush=True)
    tokenizer = Tokenizer(vocabulary.pieces, vocabulary.control, vocabulary.ends)
    found = np.zeros(-(-vocab // 32), np.uint32)
    together: list[float] = []
    for name, asked, value in VALUES:
        kind = next(kind for kind in ("json", "json_object", "regex", "choice") if getattr(asked, kind))
        began = time.perf_counter()
        beginning = Matcher.of(tokenizer, to_grammar(kind, getattr(asked, kind), None))
        compiled = time.perf_counter() - began
        text, seconds = json.dumps(value), []
        for _ in range(WAYS):
            matcher = beginning.copy()
            seconds.append([timed_mask(matcher, found, token) for token in encode(text, add_bos=False)])
        later = [each for way in seconds[1:] for each in way]
        together += later
        print(f"{name}: compiled in {1e3 * compiled:.1f} ms; first way {quantiles(seconds[0])}; later {quantiles(later)}")
    print(f"all: {quantiles(together)}")


def paused(compiler: GrammarCompiler) -> tuple[float, float]:
    """Seconds until the compiler is ready, and the longest in which this thread, which wakes every half millisecond, did not run."""
    text = to_grammar("regex", str(ANYTHING.regex), None)
    began = now = time.perf_counter()
    longest = 0.0
    compiler.compile(Grammar(sha256(text.encode()).digest(), text))
    while not compiler.take():
        time.sleep(0.0005)
        before, now = now, time.perf_counter()
        longest = max(longest, now - before)
    compiler.close()
    return now - began, longest


def timed_mask(matcher: Matcher, found: np.ndarray, token: int) -> float:
    """Seconds of the mask in front of a token, which it must take."""
    began = time.perf_counter()
    matcher.mask(found)
    taken = time.perf_counter() - began
    assert found[token // 32] >> np.uint32(token % 32) & 1, "the value does not follow its grammar"
    matcher.consume([token])
    return taken


def quantiles(seconds: Sequence[float]) -> str:
    p50, p99, most = (1e6 * float(np.quantile(seconds, share)) for share in (0.5, 0.99, 1))
    return f"p50 {p50:.0f}, p99 {p99:.0f}, max {most:.0f} us"


def same(options: argparse.Namespace) -> None:
    words = json.dumps([value for _, _, value in VALUES]).replace('"', " ").split()
    prompts = [f"{STORY} of {words[number % len(words)]} {number}:" for number in range(options.prompts)]
    with LLM(options.model, max_model_len=512, max_num_seqs=16) as llm:
        asked = SamplingParams(temperature=0.0, max_tokens=40)
        free = [output.outputs[0] for output in llm.generate(prompts, asked)]
        # A text that ends inside a character, or has a control token, is not text that a grammar could take.
        kept = [each for each in zip(prompts, free, strict=True) if whole(llm, each[1])]
        for name in ("any text", "a choice of the free answer and others"):
            grammars = [ANYTHING if name == "any text" else among(answer.text, free) for _, answer in kept]
            params = [SamplingParams(temperature=0.0, max_tokens=40, structured_outputs=each) for each in grammars]
            answers = [output.outputs[0].token_ids for output in llm.generate([prompt for prompt, _ in kept], params)]
            equal = sum(ids == answer.token_ids for ids, (_, answer) in zip(answers, kept, strict=True))
            print(f"{name}: {equal} of {len(kept)} have the free answer's ids; {len(prompts) - len(kept)} were no whole text", flush=True)


def whole(llm: LLM, answer: Any) -> bool:
    return "�" not in answer.text and bool(answer.text) and not any(llm.tokenizer.is_control(token) for token in answer.token_ids[:-1])


def among(text: str, answers: Sequence[Any]) -> StructuredOutputs:
    return StructuredOutputs(choice=list(dict.fromkeys([text, *(answer.text for answer in answers[:5] if answer.text), "yes", "no"])))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("speed", "masks", "same"))
    parser.add_argument("--model", default="demo")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--streams", default="1,16,32")
    parser.add_argument("--prompts", type=int, default=500)
    options = parser.parse_args()
    {"speed": speed, "masks": masks, "same": same}[options.what](options)


if __name__ == "__main__":
    main()
