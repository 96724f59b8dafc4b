"""Opens what drafts beside the target, a model or heads: its weights, its cache and the times of its passes.

Owns how much memory its cache gets. Its rows are the target's; it computes what the step has left of its budget, and one id more per row.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ridgeline.compute.cpu.cache import allocate_native_kv
from ridgeline.compute.cpu.packing import pack_weights
from ridgeline.compute.cpu.runner import NativeRunner
from ridgeline.compute.cpu.sampling import Sampler
from ridgeline.compute.decoding.sampler import sample_rows
from ridgeline.compute.draft_model import DraftModel
from ridgeline.compute.exact.cache import allocate_kv
from ridgeline.compute.exact.runner import NumpyRunner
from ridgeline.compute.graph import OpList
from ridgeline.compute.load.heads import OUTER, record_heads, tap_name, target_ids
from ridgeline.compute.load.record import record
from ridgeline.compute.load.weights import load_weights
from ridgeline.compute.opening import ModelSource, Progress
from ridgeline.compute.runtime.draft_heads import HeadDrafts
from ridgeline.config.resolve import Decision
from ridgeline.core.drafts.model import DraftCache
from ridgeline.core.plan import KVShape
from ridgeline.facts.headers.heads import DraftHeads
from ridgeline.facts.headers.rope import select_rope
from ridgeline.facts.model import ModelFacts
from ridgeline.planning.memory import block_bytes


class OpenedDrafts(NamedTuple):
    """A draft model, or heads, loaded and timed. `nbytes`: of its weights."""

    model: DraftModel
    cache: DraftCache
    nbytes: int
    decision: Decision


def open_drafts(source: ModelSource, progress: Progress, weights: Mapping[str, Any], team: Any = None) -> OpenedDrafts | None:
    """The drafter of a sized source, computed by `team` (an `ext.native().Team`) or, without one, by numpy; None where nothing does.

    weights  of the target, whose embedding and head heads share. Raises ConfigError where its cache holds no sequence.
    """
    if source.drafts is None:
        return None
    if source.heads is not None:
        return _open_heads(source, source.heads, progress, weights, team)
    assert isinstance(source.drafts, ModelFacts)
    config, positions = source.config, min(source.positions, source.drafts.context)
    facts, _ = select_rope(source.drafts, positions)
    shape = source.draft_shape(facts, positions, source.memory_bytes)
    (runner,), stored = _runners(source, [record(facts)["step"]], facts, shape, {}, progress, team)
    model = DraftModel(runner, *_cache(source, facts, shape, team), **_rows(source, positions))
    passes = model.pass_seconds(config.rows)
    cache = DraftCache(len(shape.groups), config.block_size, shape.blocks, positions, passes, facts.tokens)
    reason = (
        f"--draft-model, in front of steps that verify: {passes[0][1] * 1e3:.2f} ms for an id, and {_bytes(source, facts, shape)} of KV"
    )
    return OpenedDrafts(model, cache, stored, Decision("draft_model", config.draft_model or "", "flag", reason))


def _open_heads(source: ModelSource, heads: DraftHeads, progress: Progress, weights: Mapping[str, Any], team: Any) -> OpenedDrafts:
    config, positions = source.config, source.positions
    facts, _ = select_rope(heads.facts, positions)
    shape, window = source.heads_shape(heads, facts, positions, source.memory_bytes), source.heads_window(heads)
    shared = {name: weights[name] for name in OUTER if name in weights}
    runners, stored = _runners(source, record_heads(heads, source.facts), facts, shape, shared, progress, team)
    taps = [tap_name(layer) for layer in heads.tapped]
    width = source.facts.hidden * max(1, len(taps))
    model = HeadDrafts(runners, *_cache(source, facts, shape, team), **_rows(source, positions), window=window, width=width, taps=taps)
    own = target_ids(heads, source.facts.tokens)
    if own is not None:
        model.map_ids(own)
    passes = model.pass_seconds(config.rows)
    cache = source.heads_cache(heads, shape, positions, passes)
    kv = f"{_bytes(source, facts, shape)} of KV" if heads.attends else "no KV"
    kv += f", {config.rows * window * width * 4 >> 20} MiB of hidden states"
    reason = f"{heads.kind} heads, in front of steps that verify: {passes[0][1] * 1e3:.2f} ms for an id, and {kv}"
    name = config.draft_model or config.model
    return OpenedDrafts(model, cache, stored, Decision("draft_model", name, "flag" if config.draft_model else "model", reason))


def _runners(
    source: ModelSource,
    lists: Sequence[OpList],
    facts: ModelFacts,
    shape: KVShape,
    shared: Mapping[str, Any],
    progress: Progress,
    team: Any,
) -> tuple[list[Any], int]:
    """A runner of each list over the same weights, and the bytes of those that are not the target's (`shared`)."""
    config, threads = source.config, source.config.threads or 1
    runners: list[Any]
    if team is None:
        own: Mapping[str, Any] = load_weights(facts, source.memory_bytes, threads, progress)
        runners = [NumpyRunner(each, {**shared, **own}, shape, threads=threads) for each in lists]
    else:
        own, most = pack_weights(facts, threads, progress, lists[0]), config.tokens + config.rows
        sizes: dict[str, Any] = {"tokens": most, "selected": config.rows, "vocab": facts.tokens, "threads": threads, "team": team}
        runners = [NativeRunner(each, {**shared, **own}, shape, **sizes) for each in lists]
    return runners, sum(weight.nbytes for weight in own.values())


def _cache(source: ModelSource, facts: ModelFacts, shape: KVShape, team: Any) -> tuple[Any, KVShape, Any]:
    """The cache, its shape, and what samples."""
    if team is None:
        return allocate_kv(shape, facts.cached), shape, sample_rows
    return allocate_native_kv(shape, facts.cached, source.config.kv_dtype), shape, Sampler(source.facts.tokens, team).sample_rows


def _rows(source: ModelSource, positions: int) -> dict[str, int]:
    """Sizes that a `DraftModel` takes."""
    config = source.config
    blocks = -(-positions // config.block_size)
    return {"rows": config.rows, "blocks": blocks, "vocab": source.facts.tokens, "threads": config.threads or 1}


def _bytes(source: ModelSource, facts: ModelFacts, shape: KVShape) -> str:
    each = block_bytes(facts, shape.groups[0], shape.block_tokens, source.config.kv_dtype)
    return f"{shape.blocks * each >> 20} MiB"
