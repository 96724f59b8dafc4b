"""A mixture of experts of which half are in memory and the others on disk, beside what the hit rate and the disk allow.

    python tests/speed/expert_memory.py FOLDER [--layers 12] [--rounds 5] [--share 0.5] [--exponent 0.9] [--threads 2]

Makes a random model of Qwen3-MoE's shape in FOLDER (64 experts, 8 a token; 12 layers take 2 GB, and as much again packed) whose choices
follow Zipf's law: one number of every embedding is large and the same, so that a router's column for it is a bias of each expert, -exponent
times the logarithm of its rank, and what is random of a token is noise on top. Every layer has an order of its own, so that all look alike
only to a cache. With the default exponent nine of ten choices are among half of the experts.

Tokens are drawn at random, one a step, the same for both: with all experts in memory, and with a share. Logits must be equal to the bit. In
turn with them the disk is read as the engine reads it: past the page cache, parts of the same size, by as many threads, experts of the same
file at random. Per round, and their median:

    allowed step = max(step with all in memory, bytes of experts missed a step / disk's rate)    reading and computing overlap wholly
    ratio        = allowed step / step with the share: asked ≥ 0.8

Missed are those that only memory did not have, whether they were read ahead in time or not, and none that was guessed in vain. The rate is
that of the second before and behind. A third stream has the same share and reads nothing ahead.

What the machine swaps meanwhile is counted: it must be nothing.
"""

import json
import mmap
import os
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping
from operator import sub
from pathlib import Path
from statistics import median
from threading import Thread
from time import perf_counter
from typing import Any
from unittest.mock import patch

import numpy as np
from random_file import RandomFile

from ridgeline.compute.cpu import runner
from ridgeline.compute.cpu.cache import allocate_native_kv
from ridgeline.compute.cpu.expert_file import READERS, ExpertMemory, file_path, pack_with_slots
from ridgeline.compute.cpu.packing import pack_weights
from ridgeline.compute.cpu.runner import NativeRunner
from ridgeline.compute.graph import StepInputs
from ridgeline.compute.load.record import record
from ridgeline.core.plan import KVShape
from ridgeline.facts.headers.read import read_model_facts
from ridgeline.facts.model import ModelFacts
from ridgeline.planning.memory import kv_groups

HIDDEN, HEADS, KV_HEADS, HEAD, FFN, EXPERTS, USED, VOCAB = 2048, 32, 4, 128, 768, 64, 8, 8192
CONSTANT, NOISE = 16.0, 1.28
"""The number that all embeddings have, beside others of variance one; and the deviation of a router's logits about their biases."""
ATTENTION_NORM, EXPERTS_NORM, GROWTH = 0.2, 0.7, 0.16
"""Norms in front of attention and experts, so that a layer changes a token little, as in models that have learnt; and the variance that it
adds to the numbers of a token, about: biases of deeper routers make up for it."""
BLOCK, CONTEXT = 16, 2048
PART = 512 << 10
"""Bytes of a read, as csrc/runtime/expert_store.cpp has them."""


def write(path: Path, layers: int, exponent: float) -> None:
    """The model's file: experts and attention are Q4_K, routers, norms and embeddings floats."""
    random = np.random.default_rng(0)
    file = RandomFile(
        path, "qwen3moe", layers=layers, hidden=HIDDEN, ffn=FFN, heads=HEADS, kv_heads=KV_HEADS, context=CONTEXT, base=1e6, eps=1e-6
    )
    file.heads_of(HEAD)
    file.experts(EXPERTS, USED, FFN)
    file.vocabulary(VOCAB)
    embedding = random.standard_normal((VOCAB, HIDDEN), np.float32)
    embedding[:, 0] = CONSTANT
    file.writer.add_tensor("token_embd.weight", embedding)
    file.matrix("output", VOCAB, HIDDEN)
    file.constant("output_norm", HIDDEN)
    for layer in range(layers):
        place = f"blk.{layer}."
        for norm, width, value in (
            ("attn", HIDDEN, ATTENTION_NORM),
            ("ffn", HIDDEN, EXPERTS_NORM),
            ("attn_q", HEAD, 1),
            ("attn_k", HEAD, 1),
        ):
            file.constant(f"{place}{norm}_norm", width, value)
        file.matrix(f"{place}attn_q", HEADS * HEAD, HIDDEN)
        file.matrix(f"{place}attn_k", KV_HEADS * HEAD, HIDDEN)
        file.matrix(f"{place}attn_v", KV_HEADS * HEAD, HIDDEN)
        file.matrix(f"{place}attn_output", HIDDEN, HEADS * HEAD)
        router = random.standard_normal((EXPERTS, HIDDEN), np.float32) * NOISE * HIDDEN**-0.5 / EXPERTS_NORM
        size = (1 + GROWTH * (layer + 1) + CONSTANT**2 / HIDDEN) ** 0.5
        router[:, 0] = -exponent * np.log(1 + random.permutation(EXPERTS)) * size / CONSTANT / EXPERTS_NORM
        file.writer.add_tensor(f"{place}ffn_gate_inp.weight", router)
        for name, rows, columns in (("gate", FFN, HIDDEN), ("up", FFN, HIDDEN), ("down", HIDDEN, FFN)):
            file.matrix(f"{place}ffn_{name}_exps", rows, columns, experts=EXPERTS)
    file.finish()


class Stream:
    """One stream of tokens through a runner over such weights."""

    def __init__(self, facts: ModelFacts, weights: Mapping[str, Any], threads: int) -> None:
        shape = KVShape(kv_groups(facts), BLOCK, CONTEXT // BLOCK, b"")
        self.runner = NativeRunner(record(facts)["step"], weights, shape, tokens=64, selected=1, vocab=facts.tokens, threads=threads)
        self._kv, self._length = allocate_native_kv(shape, facts.cached, "bf16"), 0
        self._table = np.arange(1, CONTEXT // BLOCK, dtype=np.int32)

    def step(self, token: int) -> bytes:
        """The bits of the logits behind one more token; the context begins anew where it is full."""
        position, self._length = self._length % (CONTEXT // 2), self._length + 1
        slot = np.array([int(self._table[position // BLOCK]) * BLOCK + position % BLOCK], np.int64)
        zero, one = np.zeros(1, np.int32), np.array([position + 1], np.int32)
        table = self._table[None, : position // BLOCK + 1].copy()
        inputs = StepInputs(
            ids=np.array([token], np.int32), positions=np.array([[position]], np.int32), row_of_token=zero, cu_q=np.array([0, 1], np.int32),
            kv_len=one, tables=(table,), slots=(slot,), select=zero,
        )  # fmt: skip
        logits: np.ndarray = self.runner.run(inputs, self._kv)["logits"]
        return logits.tobytes()


def disk_rate(path: Path, size: int, seconds: float = 1.0) -> float:
    """Bytes per second of READERS threads that read experts of `size` bytes, in parts, from random places of the file."""
    file, until = os.open(path, os.O_RDONLY | os.O_DIRECT), perf_counter() + seconds
    places, found = os.path.getsize(path) // size, [0] * READERS

    def parts(seed: int) -> Iterator[tuple[int, int]]:
        random = np.random.default_rng(seed)
        while True:
            first = int(random.integers(places)) * size
            yield from ((first + at, min(PART, size - at)) for at in range(0, size, PART))

    def read(number: int) -> None:
        with mmap.mmap(-1, PART) as memory:
            view = memoryview(memory)
            for offset, count in parts(number):
                found[number] += os.preadv(file, [view[:count]], offset)
                if perf_counter() > until:
                    break
            view.release()

    began, threads = perf_counter(), [Thread(target=read, args=(number,)) for number in range(READERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.close(file)
    return sum(found) / (perf_counter() - began)


def swapped() -> int:
    """Pages that the machine has swapped in and out since it started."""
    return sum(int(line.split()[1]) for line in Path("/proc/vmstat").read_text().splitlines() if line.startswith(("pswpin ", "pswpout ")))


def quiet(stage: str, fraction: float) -> None:
    pass


def main() -> None:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--warm", type=int, default=160)
    parser.add_argument("--share", type=float, default=0.5)
    parser.add_argument("--exponent", type=float, default=0.9)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    model = options.folder / f"zipf-{options.layers}-{options.exponent:g}.gguf"
    if not model.exists():
        write(model, options.layers, options.exponent)
    facts, began = read_model_facts(model), swapped()
    step, folder = record(facts)["step"], options.folder / "cache"
    start = perf_counter()
    slots = pack_with_slots(facts, options.threads, quiet, step, ExpertMemory(1 << 40, folder))[1]
    print(f"packed in {perf_counter() - start:.1f} s")
    memory, start = int(options.share * slots.experts) * slots.slot_bytes, perf_counter()
    weights, slots = pack_with_slots(facts, options.threads, quiet, step, ExpertMemory(memory, folder))
    print(f"opened again in {perf_counter() - start:.1f} s; {slots.count} of {slots.experts} experts of {slots.slot_bytes / 1e6:.2f} MB")
    plain, plain_slots = pack_with_slots(facts, options.threads, quiet, step, ExpertMemory(memory, folder))
    streams = [Stream(facts, pack_weights(facts, options.threads, quiet), options.threads), Stream(facts, weights, options.threads)]
    with patch.object(runner, "choose_ahead", lambda oplist: oplist):
        streams.append(Stream(facts, plain, options.threads))
    tokens, path = np.random.default_rng(1), file_path(facts, folder)
    for token in tokens.integers(260, VOCAB, options.warm).tolist():
        first, *others = [stream.step(token) for stream in streams]
        assert others == [first, first], "where experts lie has changed bits"
    rounds: list[dict[str, float]] = []
    for _ in range(options.rounds):
        ids, before, rate = tokens.integers(260, VOCAB, options.tokens).tolist(), slots.store.counts, disk_rate(path, slots.slot_bytes)
        then, found, times = plain_slots.store.counts, [], []
        for stream in streams:
            start = perf_counter()
            found.append([stream.step(token) for token in ids])
            times.append((perf_counter() - start) / options.tokens)
        assert found[0] == found[1] == found[2], "where experts lie has changed bits"
        uses, misses, read, _, guesses, right, useful = map(sub, slots.store.counts, before)
        rate = (rate + disk_rate(path, slots.slot_bytes)) / 2
        missed = (misses + useful) * slots.slot_bytes / options.tokens
        allowed = max(times[0], missed / rate)
        plain_missed = (plain_slots.store.counts[1] - then[1]) * slots.slot_bytes / options.tokens
        rounds.append({
            "hits": 1 - (misses + useful) / uses, "MB/s": rate / 1e6, "MB missed": missed / 1e6, "MB read": read / options.tokens / 1e6,
            "guesses": guesses, "right": right / max(guesses, 1), "useful": useful / max(guesses, 1), "resident ms": times[0] * 1e3,
            "ms": times[1] * 1e3, "allowed ms": allowed * 1e3, "ratio": allowed / times[1], "nothing ahead ms": times[2] * 1e3,
            "ratio of that": max(times[0], plain_missed / rate) / times[2],
        })  # fmt: skip
        print(json.dumps({name: round(value, 3) for name, value in rounds[-1].items()}), flush=True)
    middle = {name: median(each[name] for each in rounds) for name in rounds[0]}
    print("  ".join(f"{name} {value:.3g}" for name, value in middle.items()))
    print(f"pages swapped {swapped() - began}  load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
