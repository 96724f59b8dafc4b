"""Opens the draft model beside the target: its weights, its cache and the times of its passes.

Owns how much memory its cache gets. Its rows are the target's; it computes what the step has left of its budget, and one id more per row.
"""

import hashlib
from typing import Any, NamedTuple

from ridgeline.compute.cpu.cache import allocate_native_kv
from ridgeline.compute.cpu.packing import pack_weights
from ridgeline.compute.cpu.runner import NativeRunner
from ridgeline.compute.cpu.sampling import Sampler
from ridgeline.compute.decoding.sampler import sample_rows
from ridgeline.compute.exact.cache import allocate_kv
from ridgeline.compute.exact.runner import NumpyRunner
from ridgeline.compute.load.record import record
from ridgeline.compute.load.weights import load_weights
from ridgeline.compute.opening import ModelSource, Progress
from ridgeline.compute.runtime.draft_model import DraftModel
from ridgeline.config.resolve import Decision
from ridgeline.core.drafts.model import DraftCache
from ridgeline.core.plan import KVShape
from ridgeline.errors import ConfigError
from ridgeline.facts.headers.rope import select_rope
from ridgeline.facts.model import ModelFacts
from ridgeline.planning.memory import DRAFT_SHARE, block_bytes, kv_groups


class OpenedDrafts(NamedTuple):
    """A draft model that is loaded and timed. `nbytes`: of its weights."""

    model: DraftModel
    cache: DraftCache
    nbytes: int
    decision: Decision


def open_drafts(source: ModelSource, progress: Progress, team: Any = None) -> OpenedDrafts | None:
    """The draft model of a sized source, computed by `team` (an `ext.native().Team`) or, without one, by numpy; None where it has none.

    Raises ConfigError where its cache holds no sequence.
    """
    if source.drafts is None:
        return None
    config, threads = source.config, source.config.threads or 1
    positions = min(source.positions, source.drafts.context)
    facts, _ = select_rope(source.drafts, positions)
    shape = _shape(source, facts, positions)
    if team is None:
        weights: Any = load_weights(facts, source.memory_bytes, threads, progress)
        runner: Any = NumpyRunner(record(facts)["step"], weights, shape, threads=threads)
        kv: Any = allocate_kv(shape, facts.cached)
        sample: Any = sample_rows
    else:
        weights = pack_weights(facts, threads, progress)
        most = config.tokens + config.rows
        runner = NativeRunner(
            record(facts)["step"], weights, shape, tokens=most, selected=config.rows, vocab=facts.tokens, threads=threads, team=team
        )
        kv = allocate_native_kv(shape, facts.cached, config.kv_dtype)
        sample = Sampler(source.facts.tokens, team).sample_rows
    blocks = -(-positions // config.block_size)
    vocab = source.facts.tokens
    model = DraftModel(runner, kv, shape, sample, rows=config.rows, blocks=blocks, vocab=vocab, threads=threads)
    passes = model.pass_seconds(config.rows)
    cache = DraftCache(len(shape.groups), config.block_size, shape.blocks, positions, passes, facts.tokens)
    reason = (
        f"--draft-model, in front of steps that verify: {passes[0][1] * 1e3:.2f} ms for an id, and {_bytes(source, facts, shape)} of KV"
    )
    stored = sum(weight.nbytes for weight in weights.values())
    return OpenedDrafts(model, cache, stored, Decision("draft_model", config.draft_model or "", "flag", reason))


def _shape(source: ModelSource, facts: ModelFacts, positions: int) -> KVShape:
    """A cache of as many blocks as all rows need, within `DRAFT_SHARE` of the memory."""
    config, groups = source.config, kv_groups(facts)
    each = block_bytes(facts, groups[0], config.block_size, config.kv_dtype)
    longest = len(groups) * -(-positions // config.block_size)
    blocks = min(config.rows * longest, int(source.memory_bytes * DRAFT_SHARE) // each)
    if blocks < len(groups):
        raise ConfigError(
            f"--draft-model {config.draft_model}: a block of its cache has {each} bytes, and {DRAFT_SHARE:.0%} of "
            f"{source.memory_bytes} bytes of memory are too few; take a smaller model",
            fix={"--draft-model": None, "--speculative": "ngram"},
        )
    return KVShape(groups, config.block_size, blocks, hashlib.sha256(facts.fingerprint).digest())


def _bytes(source: ModelSource, facts: ModelFacts, shape: KVShape) -> str:
    each = block_bytes(facts, shape.groups[0], shape.block_tokens, source.config.kv_dtype)
    return f"{shape.blocks * each >> 20} MiB"
