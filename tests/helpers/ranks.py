"""Executors that hold a share of the KV heads, as they may be: their blocks are slices of the K and V that a whole engine has computed."""

import select
import time
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from ridgeline.compute.cpu.cache import NativeKVCache
from ridgeline.compute.runtime.queue import MemoryBlocks
from ridgeline.config.groups import EngineConfig
from ridgeline.core.kv_blocks import KVBlocks
from ridgeline.core.params import Admitted
from ridgeline.core.plan import HeadShare, KVShape
from ridgeline.core.prefix_cache import PrefixIndex
from ridgeline.core.sequence import Sequence as CoreSequence
from ridgeline.engine.llm import LLM
from ridgeline.engine.tiers.opening import open_store
from ridgeline.engine.tiers.store import BlockStore
from ridgeline.engine.tiers.units import layouts_of


class Computed:
    """K and V of a prompt as the cache of an engine with all heads has them behind its answer.

    groups   per KV group the bytes of heads [layers of a group, records, heads, tokens, bytes]
    """

    def __init__(self, llm: LLM, prompt: Sequence[int]) -> None:
        engine: Any = llm._engine._engine  # type: ignore[union-attr]
        self.prompt, self.blocks = tuple(prompt), MemoryBlocks(engine.executor.blocks._kv)  # that of the engine ends with it
        index, kv, self.shape = engine.scheduler.cache.index, self.blocks._kv, engine.executor.info.kv
        size, pages = self.shape.block_tokens, kv.pool
        if not isinstance(kv, NativeKVCache):
            pages = kv.pool.reshape(*kv.pool.shape[:2], -1, size, *kv.pool.shape[3:]).swapaxes(3, 4)
        count = (len(prompt) - 1) // size
        sequence = CoreSequence(self.request("truth"), 0, 0, len(self.shape.groups))
        found = [index.blocks[key].block_ids for key in index.keys(sequence, count)[:count]]
        self.groups = []
        for group in range(len(self.shape.groups)):
            parts = [np.ascontiguousarray(pages[:, :, block_ids[group]]).view(np.uint8) for block_ids in found]
            self.groups.append(np.concatenate(parts, axis=3))

    def request(self, name: str) -> Admitted:
        return Admitted(request_id=name, prompt=self.prompt, max_tokens=4, seed=1, two_phase=False)

    def shape_of(self, heads: HeadShare, block_tokens: int) -> KVShape:
        whole = self.shape.block_bytes // self.shape.block_tokens * block_tokens
        return replace(self.shape, block_tokens=block_tokens, heads=heads, block_bytes=whole // heads.total * heads.count)

    def content(self, heads: HeadShare, block_tokens: int, block: int, group: int) -> bytes:
        own = slice(heads.first, heads.first + heads.count)
        return self.groups[group][:, :, own, block * block_tokens : (block + 1) * block_tokens].tobytes()


class Rank:
    """Implements `engine.executor.BlockContents` of an executor with a share of the heads, and keeps and fetches them through the tiers
    that `settings` name."""

    def __init__(self, computed: Computed, heads: HeadShare, block_tokens: int, **settings: Any) -> None:
        self.staged: dict[int, bytes] = {}
        self.shape, self._computed, self._heads = computed.shape_of(heads, block_tokens), computed, heads
        self.types, self.converted = computed.blocks.types, computed.blocks.converted
        layers, records = computed.groups[0].shape[:2]
        self.runs = layers * records * heads.count
        executor: Any = SimpleNamespace(info=SimpleNamespace(kv=self.shape, kv_bytes=1 << 24), blocks=self)
        store, self.decisions = open_store(EngineConfig(model="m", **settings), executor, lambda: 0.1)
        assert isinstance(store, BlockStore)
        self.store = store
        self._blocks = len(computed.groups[0][0, 0, 0]) // block_tokens

    def read(self, block_id: int) -> bytes:
        return self._computed.content(self._heads, self.shape.block_tokens, *divmod(block_id - 1, len(self.shape.groups)))

    def touch(self, block_ids: Sequence[int]) -> None:
        """Nothing: they are bytes."""

    def keep(self, blocks: Sequence[int] = ()) -> None:
        """Gives blocks of the prompt to the tiers, by default all, and waits until these have them."""
        cache, groups = KVBlocks(self.shape, True, lambda _: None), len(self.shape.groups)
        sequence = CoreSequence(self._computed.request("kept"), 0, 0, groups)
        keys, cache.fresh = cache.index.keys(sequence, self._blocks), []
        for block in blocks or range(self._blocks):
            for group in range(groups):
                cache.index.add(sequence, block, group, 1 + block * groups + group)
                cache.fresh.append((block, 1 + block * groups + group, keys[block - 1] if block else b""))
        kept, deadline = self.counts["kept"] + len(cache.fresh), time.monotonic() + 20
        self.store.keep(cache)
        while self.counts["kept"] < kept:
            assert time.monotonic() < deadline, self.counts
            time.sleep(0.01)

    def fetch(self) -> dict[tuple[int, int], bytes]:
        """Contents by (block, group), as the tiers bring them."""
        if not self.store.ask(self._computed.request("asked"), KVBlocks(self.shape, True, lambda _: None)):
            return {}
        assert select.select([self.store], [], [], 20)[0], "a fetch is never reported"
        (fetched,) = self.store.take()
        return {(block, group): self.staged.pop(number) for block, group, number in fetched.blocks}

    def wanted(self) -> dict[tuple[int, int], bytes]:
        """What a whole hit brings: of groups with a window only what the next position sees."""
        size, found = self.shape.block_tokens, {}
        for group, each in enumerate(self.shape.groups):
            seen = max(0, self._blocks * size - each.window + 1) // size if each.window else 0
            found |= {(block, group): self.read(1 + block * len(self.shape.groups) + group) for block in range(seen, self._blocks)}
        return found

    def values(self, secret: bytes) -> list[list[tuple[bytes, ...]]]:
        """Names of values by layout, for each unit of the prompt and group; of blocks of one unit."""
        layouts, groups = layouts_of(secret, self.shape, self.runs), range(len(self.shape.groups))
        sequence = CoreSequence(self._computed.request("named"), 0, 0, len(groups))
        keys = PrefixIndex(self.shape, shared=True).keys(sequence, self._blocks)
        return [[tuple(seal.name(key, group) for seal in layout) for key in keys for group in groups] for layout in layouts]

    @property
    def counts(self) -> dict[str, int]:
        """The counts of all tiers together."""
        return {key: sum(each[key] for each in self.store.counts.values()) for key in next(iter(self.store.counts.values()))}

    def close(self) -> None:
        self.store.close()


def ranks_of(number: int, total: int) -> list[HeadShare]:
    """The shares of so many executors."""
    return [HeadShare(rank * total // number, total // number, total) for rank in range(number)]
