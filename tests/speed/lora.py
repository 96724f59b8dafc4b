"""Adapters against none, in turn, in one run: `python tests/speed/lora.py speed|slots|loads [MODEL] [ROUNDS]`.

speed  16 requests at once: without adapters, and each with its own of 16 (rank 16, bf16, on all linear layers of the attention and the
       feed-forward part). Tokens per second, their ratio, and that of processor time, which says more beside other programs; half a minute
       on two cores
slots  160 requests of unlike lengths over 64 adapters with 8 slots, drawn by Zipf's law, against the same without adapters; then how many
       of these answers are others than where every adapter has a slot. One round takes the demo two minutes
loads  gaps between the tokens of 8 streams while every fifth of a second another adapter is read from its files, against requests of an
       adapter that is there: short rounds in turn, so that what the machine does meanwhile is in both. A minute
"""

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

import httpx
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "helpers"))
from processes import ServerProcess

from ridgeline import LLM, SamplingParams
from ridgeline.config.env import model_stores
from ridgeline.facts.headers.read import read_model_facts
from ridgeline.facts.hub.source import resolve_model
from ridgeline.facts.model import ModelFacts
from ridgeline.models.table import ARCHITECTURES

RANK, OUTPUTS, ZIPF, ADAPTERS = 16, 48, 1.0, 64
STREAMS, LOAD_SECONDS, LOADS = 8, 0.2, 8


def write(facts: ModelFacts, path: Path, seed: int) -> None:
    """A random adapter as a GGUF file, which any architecture has names for."""
    import gguf

    random = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, facts.architecture)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 16.0)
    fused = {part for parts in ARCHITECTURES[facts.architecture].fused.values() for part in parts}
    for name, tensor in facts.tensors.items():
        if name.startswith("blk.") and len(tensor.shape) == 2 and name.split(".")[2] not in fused:
            for part, shape in (("a", (RANK, tensor.shape[1])), ("b", (tensor.shape[0], RANK))):
                bits = (random.standard_normal(shape) * 0.02).astype(np.float32).view(np.uint32) >> 16
                writer.add_tensor(f"{name}.lora_{part}", bits.astype(np.uint16), raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def seconds(llm: LLM, names: Sequence[str | None], lengths: Sequence[int]) -> tuple[float, float, list[tuple[int, ...]]]:
    """Wall and processor seconds of one request for each name, all at once; ids of their answers."""
    params = [SamplingParams(temperature=0, max_tokens=length, ignore_eos=True) for length in lengths]
    prompts = [[2, *range(100 + number, 132 + number)] for number in range(len(names))]
    began, used = time.perf_counter(), time.process_time()
    found = llm.generate(prompts, params, lora=list(names))
    return time.perf_counter() - began, time.process_time() - used, [tuple(each.outputs[0].token_ids) for each in found]


def compare(llm: LLM, title: str, names: Sequence[str], lengths: Sequence[int], rounds: int) -> list[tuple[int, ...]]:
    """Answers of the last round with adapters."""
    none = [None] * len(names)
    seconds(llm, names[:16], lengths[:16])
    pairs = [(seconds(llm, none, lengths), seconds(llm, names, lengths)) for _ in range(rounds)]
    wall, used = (sorted(plain[at] / own[at] for plain, own in pairs)[rounds // 2] for at in (0, 1))
    plain, own = (sum(lengths) / min(each[which][0] for each in pairs) for which in (0, 1))
    print(f"{title}: {plain:.0f} tokens/s without, {own:.0f} with; median ratio {wall:.2f}, of processor time {used:.2f}", flush=True)
    return pairs[-1][1][2]


def opened(model: str, paths: dict[str, Path], slots: int) -> LLM:
    """A model that takes all adapters, with so many slots for them."""
    given = [f"{name}={path}" for name, path in paths.items()]
    return LLM(model, lora=given, max_loras=slots, max_cpu_loras=ADAPTERS, max_num_seqs=16, max_model_len=512, enable_prefix_caching=False)


def speed(model: str, paths: dict[str, Path], rounds: int) -> None:
    with opened(model, paths, 16) as llm:
        compare(llm, "16 adapters in 16 slots", list(paths), [OUTPUTS] * 16, rounds)


def slots(model: str, paths: dict[str, Path], rounds: int) -> None:
    draw, weights = Random(1), [1 / (1 + number) ** ZIPF for number in range(ADAPTERS)]
    names, lengths = draw.choices(list(paths), weights, k=160), [draw.randint(OUTPUTS // 2, 3 * OUTPUTS // 2) for _ in range(160)]
    with opened(model, paths, 8) as llm:
        paged = compare(llm, "64 adapters in 8 slots, Zipf", names, lengths, rounds)
    with opened(model, paths, ADAPTERS) as llm:
        whole = seconds(llm, names, lengths)[2]
    print(f"other answers than with {ADAPTERS} slots: {sum(a != b for a, b in zip(paged, whole, strict=True))} of {len(whole)}", flush=True)


async def gaps(url: str, others: Sequence[str]) -> list[float]:
    """Seconds between tokens of `STREAMS` streams, while a request of one token for each of `others` comes every `LOAD_SECONDS`."""
    found: list[float] = []
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:

        async def stream() -> None:
            body = {"model": "a0", "prompt": "Once upon a time", "max_tokens": 4_000, "ignore_eos": True, "stream": True}
            async with client.stream("POST", "/v1/completions", json=body) as answer:
                last = None
                async for line in answer.aiter_lines():
                    now = time.perf_counter()
                    if line.startswith("data: {"):
                        found.extend([] if last is None else [now - last])
                        last = now

        streams = [asyncio.create_task(stream()) for _ in range(STREAMS)]
        await asyncio.sleep(1)
        found.clear()
        for name in others:
            await asyncio.sleep(LOAD_SECONDS)
            body = {"model": name, "prompt": "It was", "max_tokens": 1}
            streams.append(asyncio.create_task(client.post("/v1/completions", json=body)))  # type: ignore[arg-type]
        await asyncio.gather(*streams[STREAMS:])
        for each in streams[:STREAMS]:
            each.cancel()
        await asyncio.gather(*streams, return_exceptions=True)
    return sorted(found)


def loads(model: str, paths: dict[str, Path], rounds: int) -> None:
    """Requests that name an adapter for the first time, against as many that name one that is held, in turn; each adapter is read once."""
    names = list(paths)
    given = [word for name, path in paths.items() for word in ("--lora", f"{name}={path}")]
    server = ServerProcess([model, *given, "--max-num-seqs", "16", "--max-cpu-loras", str(ADAPTERS)], dict(os.environ))
    ratios: list[tuple[float, float]] = []
    found: dict[bool, list[float]] = {False: [], True: []}
    try:
        asyncio.run(gaps(server.url, names[:1]))
        for number in range(rounds):
            unread, marks = names[1 + LOADS * number :][:LOADS], {}
            for reads in (False, True) if number % 2 else (True, False):
                these = asyncio.run(gaps(server.url, unread if reads else names[:1] * LOADS))
                marks[reads] = percentiles(these)
                found[reads] += these
            ratios.append((marks[True][0] / marks[False][0], marks[True][1] / marks[False][1]))
    finally:
        server.stop()
    for reads, title in ((False, "without loads"), (True, "with")):
        p50, p99 = percentiles(sorted(found[reads]))
        print(f"gaps {title}: p50 {p50 * 1e3:.1f}, p99 {p99 * 1e3:.1f} ms")
    p50s, p99s = (sorted(each) for each in zip(*ratios, strict=True))
    print(f"with over without, median of {rounds} rounds: p50 {p50s[rounds // 2]:.2f}, p99 {p99s[rounds // 2]:.2f} "
          f"({p99s[0]:.2f} … {p99s[-1]:.2f})")  # fmt: skip


def percentiles(ascending: Sequence[float]) -> tuple[float, float]:
    """The median and the 99th."""
    return ascending[len(ascending) // 2], ascending[len(ascending) * 99 // 100]


def main(kind: str, model: str = "demo", rounds: str = "") -> None:
    facts = read_model_facts(resolve_model(model, model_stores()))
    usual = {"speed": 3, "slots": 1, "loads": (ADAPTERS - 1) // LOADS}
    if kind not in usual or int(rounds or 1) < 1 or (kind == "loads" and int(rounds or 1) > usual[kind]):
        raise SystemExit(f"{kind} {rounds}: speed, slots or loads, the last at most {usual['loads']} rounds, since each reads new adapters")
    with tempfile.TemporaryDirectory() as folder:
        paths = {f"a{number}": Path(folder) / f"a{number}.gguf" for number in range(16 if kind == "speed" else ADAPTERS)}
        for number, path in enumerate(paths.values()):
            write(facts, path, number)
        {"speed": speed, "slots": slots, "loads": loads}[kind](model, paths, int(rounds or usual[kind]))


if __name__ == "__main__":
    main(*sys.argv[1:])
