"""A model and its settings before a backend opens it, and the opened model. Each backend measures memory in its own order."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from ridgeline.compute.adapters.slots import AdapterSlots
from ridgeline.compute.adapters.store import AdapterStore
from ridgeline.compute.backend import Backend
from ridgeline.compute.states import StateCache, states_of
from ridgeline.config.groups import EngineConfig
from ridgeline.config.resolve import MEMORY_SHARE, Decision, KVCosts, adapter_bytes, resolve
from ridgeline.core.drafts.model import DraftCache
from ridgeline.core.plan import HeadShare, KVGroup, KVShape, unit_tokens
from ridgeline.errors import ConfigError
from ridgeline.facts.headers.heads import DraftHeads
from ridgeline.facts.headers.rope import select_rope
from ridgeline.facts.model import ModelFacts
from ridgeline.planning.heads import HIDDEN_POSITIONS
from ridgeline.planning.memory import DRAFT_SHARE, block_bytes, kept_positions, kv_costs, kv_groups

Progress = Callable[[str, float], None]
"""Called with (stage, fraction done)."""

LEAST_SAMPLES: Final = 64


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model and the settings that it is opened with. Settings that depend on memory are left open until `with_memory`.

    memory_bytes         that this process may use
    decisions            made so far
    blocks, host_blocks  of the KV cache
    drafts               facts of the draft model, or the heads that draft; None: there are none
    """

    config: EngineConfig
    facts: ModelFacts
    memory_bytes: int
    decisions: tuple[Decision, ...] = ()
    blocks: int = 0
    host_blocks: int = 0
    drafts: ModelFacts | DraftHeads | None = None

    @property
    def heads(self) -> DraftHeads | None:
        """The heads that draft; None where none do."""
        return self.drafts if isinstance(self.drafts, DraftHeads) else None

    @property
    def costs(self) -> KVCosts:
        """Bytes of its KV cache per block and sequence, and of its recurrent states per row."""
        return kv_costs(self.facts, self.config)

    @property
    def positions(self) -> int:
        """`max_model_len`, once it is settled."""
        assert self.config.max_model_len is not None
        return self.config.max_model_len

    @property
    def samples(self) -> int:
        """Positions of one step that may sample, drafts among them: most rows have one, some have several."""
        return max(LEAST_SAMPLES, 2 * self.config.rows)

    def with_rope(self, positions: int) -> "ModelSource":
        """A copy with the RoPE of sequences of at most so many positions."""
        facts, reason = select_rope(self.facts, positions)
        decided = () if reason is None else (Decision("rope_positions", positions, "model", reason),)
        return replace(self, facts=facts, decisions=self.decisions + decided)

    def with_memory(self, context: int, memory_bytes: int, *, share: float = MEMORY_SHARE, host_bytes: int | None = None) -> "ModelSource":
        """A copy in which no setting is left open: see `config.resolve`. ConfigError where the model does not fit."""
        found = resolve(self.config, context=context, memory_bytes=memory_bytes, costs=self.costs, share=share, host_bytes=host_bytes)
        return replace(
            self, config=found.config, decisions=self.decisions + found.decisions, blocks=found.blocks, host_blocks=found.host_blocks
        )

    def states(self) -> StateCache | None:
        """Room for the recurrent states of its rows; None of a model without."""
        return states_of(self.facts, self.config.rows, kept_positions(self.config))

    def shape(self, numerics: str) -> KVShape:
        """The shape of its KV cache. `numerics`: names what else the contents of a block depend on; blocks are interchangeable only where
        all of it is equal, or where the operator takes any."""
        config = self.config
        unit, sizes = unit_tokens(config.block_size), (self.host_blocks, self.costs.block_bytes)  # blocks of other sizes are converted
        named, shared = f"{config.runner} {numerics} {config.kv_dtype} {unit}", b""
        layout = f"{config.runner} {numerics}, KV type {config.kv_dtype}"
        if config.kv_cache_numerics == "any":
            named, shared = f"{named} any", hashlib.sha256(self.facts.fingerprint + b"any %d" % unit).digest()
            layout = "any numerics"
        fingerprint = hashlib.sha256(self.facts.fingerprint + named.encode()).digest()
        words = f"weights {self.facts.fingerprint.hex()[:12]}, {layout}, units of {unit} tokens"
        more = self.facts.attention_tokens, self.facts.state is not None, HeadShare(0, self.facts.cached.heads, self.facts.cached.heads)
        return KVShape(kv_groups(self.facts), config.block_size, self.blocks, fingerprint, *sizes, shared, words, *more)

    def draft_shape(self, facts: ModelFacts, positions: int, memory_bytes: int) -> KVShape:
        """The shape of the cache of what drafts: as many blocks as all rows need, within `DRAFT_SHARE` of the memory. Raises ConfigError
        where that holds no sequence."""
        config, groups = self.config, kv_groups(facts)
        each = block_bytes(facts, groups[0], config.block_size, config.kv_dtype)
        longest = len(groups) * -(-positions // config.block_size)
        blocks = min(config.rows * longest, int(memory_bytes * DRAFT_SHARE) // each)
        if blocks < len(groups):
            raise ConfigError(
                f"--draft-model {config.draft_model}: a block of its cache has {each} bytes, and {DRAFT_SHARE:.0%} of "
                f"{memory_bytes} bytes of memory are too few; take a smaller model",
                fix={"--draft-model": None, "--speculative": "ngram"},
            )
        return KVShape(groups, config.block_size, blocks, hashlib.sha256(facts.fingerprint).digest())

    def heads_shape(self, heads: DraftHeads, facts: ModelFacts, positions: int, memory_bytes: int) -> KVShape:
        """The shape of the cache of heads, as `draft_shape` has it; of one block where they have no keys."""
        if heads.attends:
            return self.draft_shape(facts, positions, memory_bytes)
        return KVShape((KVGroup("full", (0,)),), self.config.block_size, 1, b"")

    def heads_window(self, heads: DraftHeads) -> int:
        """Positions of a row whose hidden states are kept for heads."""
        return min(HIDDEN_POSITIONS, self.config.tokens) if heads.attends else 1

    def heads_cache(
        self, heads: DraftHeads, shape: KVShape, positions: int, passes: tuple[tuple[int, float], ...], ahead: int = 0
    ) -> DraftCache:
        """The cache of heads as the scheduler sees it."""
        config, (groups, blocks) = self.config, (len(shape.groups), shape.blocks) if heads.attends else (0, 0)
        sizes = {"window": self.heads_window(heads), "tokens": config.tokens, "most": heads.most, "ahead": ahead}
        return DraftCache(groups, config.block_size, blocks, positions, passes, self.facts.tokens, **sizes)

    def adapter_store(self, slots: AdapterSlots | None) -> AdapterStore | None:
        """Host memory of the adapters that a runner's slots are filled with; None where it has none."""
        if slots is None:
            return None
        config = self.config
        most_bytes = adapter_bytes(config, self.memory_bytes) // 2  # the other half is for slots, which keep what is forgotten here
        bounds = {"most": config.max_cpu_loras, "most_bytes": most_bytes, "max_rank": config.max_lora_rank}
        return AdapterStore(self.facts, **bounds, slots=slots)


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """A model that is loaded, sized and warm. `name` is shown to users."""

    backend: Backend
    source: ModelSource
    shape: KVShape
    name: str
    weights_bytes: int
    decisions: tuple[Decision, ...] = ()
    """Shown to users: how it was loaded."""
    adapters: AdapterStore | None = None
    """Adapters of which rows may have one; None where they may not."""
    drafts: DraftCache | None = None
    """Cache of the draft model; None where there is none."""


OpenModel = Callable[[ModelSource, Progress], OpenedModel]
"""Loads a model. Raises ConfigError or ModelFormatError where the settings or the model are at fault."""
