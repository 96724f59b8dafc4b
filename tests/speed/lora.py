"""Adapters against none, in turn, in one run: `python tests/speed/lora.py speed|loads [MODEL] [ROUNDS]` (two minutes on two cores).

speed  16 requests at once: without adapters, and each with its own of 16 (rank 16, bf16, on all linear layers of the attention and the
       feed-forward part); then 160 requests of unlike lengths over 64 adapters with 8 slots, drawn by Zipf's law, against the same
       requests without adapters. Tokens per second, their ratio, and that of processor time, which says more beside other programs.
       Then how many of these answers are others than where every adapter has a slot
loads  gaps between the tokens of 8 streams while every fifth of a second another adapter is read from its files, against none
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
STREAMS, LOAD_SECONDS = 8, 0.2


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


def seconds(llm: LLM, names: Sequence[str | None], lengths: Sequence[int]) -> tuple[float, float]:
    """Wall and processor seconds of one request for each name, all at once."""
    params = [SamplingParams(temperature=0, max_tokens=length, ignore_eos=True) for length in lengths]
    prompts = [[2, *range(100 + number, 132 + number)] for number in range(len(names))]
    began, used = time.perf_counter(), time.process_time()
    llm.generate(prompts, params, lora=list(names))
    return time.perf_counter() - began, time.process_time() - used


def compare(llm: LLM, title: str, names: Sequence[str], lengths: Sequence[int], rounds: int) -> None:
    none = [None] * len(names)
    seconds(llm, names, lengths)
    pairs = [(seconds(llm, none, lengths), seconds(llm, names, lengths)) for _ in range(rounds)]
    wall, used = (sorted(plain[at] / own[at] for plain, own in pairs)[rounds // 2] for at in (0, 1))
    plain, own = (sum(lengths) / min(each[which][0] for each in pairs) for which in (0, 1))
    print(f"{title}: {plain:.0f} tokens/s without, {own:.0f} with; median ratio {wall:.2f}, of processor time {used:.2f}", flush=True)


def answers(llm: LLM, names: Sequence[str], lengths: Sequence[int]) -> list[tuple[int, ...]]:
    """Token ids of the answer to each request of `seconds`."""
    params = [SamplingParams(temperature=0, max_tokens=length, ignore_eos=True) for length in lengths]
    prompts = [[2, *range(100 + number, 132 + number)] for number in range(len(names))]
    return [tuple(each.outputs[0].token_ids) for each in llm.generate(prompts, params, lora=list(names))]


def speed(model: str, paths: dict[str, Path], rounds: int) -> None:
    given, draw = [f"{name}={path}" for name, path in paths.items()], Random(1)
    common = {"lora": given, "max_cpu_loras": ADAPTERS, "max_num_seqs": 16, "enable_prefix_caching": False}
    with LLM(model, max_loras=16, **common) as llm:
        compare(llm, "16 adapters in 16 slots", list(paths)[:16], [OUTPUTS] * 16, rounds)
    with LLM(model, max_loras=8, **common) as llm:
        weights = [1 / (1 + number) ** ZIPF for number in range(ADAPTERS)]
        names, lengths = draw.choices(list(paths), weights, k=160), [draw.randint(OUTPUTS // 2, 3 * OUTPUTS // 2) for _ in range(160)]
        compare(llm, "64 adapters in 8 slots, Zipf", names, lengths, rounds)
        paged = answers(llm, names, lengths)
    with LLM(model, max_loras=ADAPTERS, **common) as llm:
        whole = answers(llm, names, lengths)
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
    """Requests that name an adapter for the first time, against as many that name one that is held. Each round a new server, whose
    adapters are all unread."""
    given = [word for name, path in paths.items() for word in ("--lora", f"{name}={path}")]
    ratios = []
    for _ in range(rounds):
        server = ServerProcess([model, *given, "--max-num-seqs", "16", "--max-cpu-loras", str(ADAPTERS)], dict(os.environ))
        try:
            plain = asyncio.run(gaps(server.url, ["a0"] * 40))
            own = asyncio.run(gaps(server.url, list(paths)[1:41]))
        finally:
            server.stop()
        (p50, p99), (own50, own99) = ([each[len(each) * at // 100] * 1e3 for at in (50, 99)] for each in (plain, own))
        ratios.append(own99 / p99)
        print(f"gaps, p50 and p99: {p50:.1f} and {p99:.1f} ms without loads, {own50:.1f} and {own99:.1f} with", flush=True)
    print(f"p99 with loads over without, median: {sorted(ratios)[rounds // 2]:.2f}")


def main(kind: str, model: str = "demo", rounds: str = "3") -> None:
    facts = read_model_facts(resolve_model(model, model_stores()))
    with tempfile.TemporaryDirectory() as folder:
        paths = {f"a{number}": Path(folder) / f"a{number}.gguf" for number in range(ADAPTERS)}
        for number, path in enumerate(paths.values()):
            write(facts, path, number)
        {"speed": speed, "loads": loads}[kind](model, paths, int(rounds))


if __name__ == "__main__":
    main(*sys.argv[1:])
