"""Speculation against that of llama.cpp's server at the same acceptance: one stream, greedy, the same ids, the same two threads.

    python tests/speed/llama_file.py ring.gguf --period 32 && python tests/speed/peer_drafts.py ring.gguf [--tokens 192] [--rounds 2]

The peer is the server of PyPI's `xllamacpp` (`pip install xllamacpp`: llama.cpp as a wheel). Greedy texts of this file repeat themselves,
so that its lookup of n-grams, which costs nothing, is right from the first token on; which of its drafts count is planted by its own
`--spec-synth-rates`, ours by an oracle that errs as often (`tests/speed/planted.py`). The peer runs without drafts and with each number of
them, a new process each in turn, and its best run counts; its tokens per second are those that it tells of decoding, ours the seconds of
an answer less those of its first token. Asked: 2 × at acceptance 0.8. Five minutes on two quiet cores.
"""

import json
import os
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any
from urllib.request import Request, urlopen

from planted import DEPTH, Planted, run

from ridgeline import LLM

DRAFTS = (0, 1, 2, 3, 4, 6)
RING = 32
FIRST = 300


def peer(model: str, threads: int, drafts: int, acceptance: float) -> None:
    """A server of llama.cpp that says where it listens, and lives until its input ends."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.port, params.n_parallel, params.n_ctx, params.warmup = model, 0, 1, 1024, True
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    if drafts:
        kinds, speculative = xllamacpp.common_speculative_type, params.speculative
        speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
        speculative.ngram_simple.size_n, speculative.ngram_simple.size_m, speculative.draft.n_max = 2, drafts, drafts
        speculative.synth_rates = [acceptance ** (number + 1) for number in range(drafts)]
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()


@contextmanager
def peer_at(options: Namespace, drafts: int) -> Iterator[str]:
    """Address of a new server of the peer."""
    command = [sys.executable, __file__, options.model, "--peer", str(drafts), "--acceptance", str(options.acceptance)]
    with subprocess.Popen(
        [*command, "--threads", str(options.threads)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        address = next((line.strip() for line in process.stdout if line.startswith("http")), "")
        if not address:
            raise SystemExit(f"the peer ended with {process.wait()} before it listened")
        yield address
        process.kill()


def answer(address: str, prompt: list[int], tokens: int) -> dict[str, Any]:
    asked = {"prompt": prompt, "n_predict": tokens, "temperature": 0, "cache_prompt": False, "ignore_eos": True, "return_tokens": True}
    with urlopen(Request(f"{address}/completion", json.dumps(asked).encode(), {"Content-Type": "application/json"})) as response:
        found: dict[str, Any] = json.load(response)
    return found


def of_peer(options: Namespace, prompt: list[int], drafts: int, expected: list[int]) -> float:
    """Decoding tokens/s of the peer with `drafts`, the quicker of two answers; says so where it gave other ids."""
    with peer_at(options, drafts) as address:
        answer(address, prompt, 8)
        found = [answer(address, prompt, options.tokens) for _ in range(2)]
    if any(each["tokens"] != expected for each in found):
        same = next((n for n, (a, b) in enumerate(zip(found[0]["tokens"], expected, strict=False)) if a != b), len(expected))
        print(f"    its ids with {drafts} drafts are others from {same} of {len(expected)} on")
    timings = found[0]["timings"]
    if drafts:
        print(f"    {drafts} drafts: {timings.get('draft_n_accepted')} of {timings.get('draft_n')} accepted", flush=True)
    return float(max(each["timings"]["predicted_per_second"] for each in found))


def ours(llm: LLM, prompt: list[int], options: Namespace, planted: Planted | None) -> tuple[float, list[int]]:
    """Decoding tokens/s, the quicker of two answers, and its ids."""
    llm._engine._engine.scheduler.drafter = planted  # type: ignore[attr-defined]
    seconds = []
    for _ in range(2):
        first, _ = run(llm, [prompt], 1)
        whole, (ids,) = run(llm, [prompt], options.tokens)
        seconds.append(whole - first)
    return (options.tokens - 1) / min(seconds), ids


def main() -> None:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--acceptance", type=float, default=0.8)
    parser.add_argument("--tokens", type=int, default=192)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--peer", type=int)
    options = parser.parse_args()
    if options.peer is not None:
        peer(options.model, options.threads, options.peer, options.acceptance)
        return
    prompt = [FIRST - FIRST % RING + number % RING for number in range(2 * RING + 8)]
    found: dict[str, list[float]] = {}
    with LLM(
        options.model, max_num_seqs=1, max_model_len=1024, threads=options.threads, speculative="ngram", num_speculative_tokens=DEPTH,
        enable_prefix_caching=False,
    ) as llm:  # fmt: skip
        planted = Planted(DEPTH, llm._engine.info.price, barrier=llm.config.depth > 1)  # type: ignore[attr-defined]
        planted.planted = options.acceptance
        _, ids = ours(llm, prompt, options, None)
        planted.answers = {tuple(prompt): ids}
        for _ in range(options.rounds):
            for name, drafter in (("ours, none", None), ("ours, drafts", planted)):
                rate, given = ours(llm, prompt, options, drafter)
                assert given == ids, "drafts changed the tokens"
                found.setdefault(name, []).append(rate)
            for drafts in DRAFTS:
                found.setdefault(f"llama.cpp, {drafts}", []).append(of_peer(options, prompt, drafts, ids))
    rates = {name: median(each) for name, each in found.items()}
    for name, each in found.items():
        print(f"{name:14} {rates[name]:6.1f} tokens/s ({min(each):.1f} … {max(each):.1f})")
    best = max((name for name in rates if name.startswith("llama")), key=rates.__getitem__)
    over, plain = rates["ours, drafts"] / rates[best], rates["ours, none"] / rates[best]
    print(f"ours with drafts over its best ({best}): {over:.2f} ×, without {plain:.2f} ×")


if __name__ == "__main__":
    main()
