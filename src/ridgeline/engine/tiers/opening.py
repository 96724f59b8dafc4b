"""Opens the tiers that settings name. What is wrong with settings ends the start; what is wrong with a tier leaves it out, and is said."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, Final

from ridgeline.config.groups import EngineConfig
from ridgeline.config.peers import LISTEN_FLAG, PEERS_FLAG, parse_listen, parse_peers
from ridgeline.config.redis import read_password
from ridgeline.config.resolve import Decision
from ridgeline.config.secret import FOLDER_FLAG, TIER_FLAG, private_folder, read_tier_secret
from ridgeline.core.plan import UNIT_TOKENS, KVShape
from ridgeline.engine.executor import BlockContents, Executor
from ridgeline.engine.tiers.file import FileArchive, FileTier, other_layouts
from ridgeline.engine.tiers.patience import SHARE, least_tokens
from ridgeline.engine.tiers.peer import PeerTier
from ridgeline.engine.tiers.peer_server import PeerServer
from ridgeline.engine.tiers.redis import FLAG as REDIS_FLAG
from ridgeline.engine.tiers.redis import PASSWORD_FLAG, RedisTier
from ridgeline.engine.tiers.shelf import Shelf
from ridgeline.engine.tiers.store import MOST_SECONDS, BlockStore, Source
from ridgeline.engine.tiers.tier import Tier
from ridgeline.engine.tiers.units import Layout, layouts_of
from ridgeline.errors import ConfigError

STAGED_SHARE: Final = 0.25
"""Share of the KV cache's bytes that blocks may take on their way into it."""
LEAST_STAGED_BYTES: Final = 64 << 20
SHOWN_LAYOUTS: Final = 4


def open_store(
    config: EngineConfig, executor: Executor, token_seconds: Callable[[], float]
) -> tuple[BlockStore | None, tuple[Decision, ...]]:  # fmt: skip
    """The tiers of an engine, the nearest first, and what is to be said of them; None where none can be used. Raises ConfigError.

    token_seconds  that a prompt token takes to compute, as it is known when it is called; 0: it is not
    """
    secret, info, blocks = read_tier_secret(config), executor.info, executor.blocks
    named = ((FOLDER_FLAG, config.kv_cache_dir), (REDIS_FLAG, config.kv_cache_redis), (LISTEN_FLAG, config.kv_cache_listen))
    flag = next((flag for flag, value in named if value is not None), PEERS_FLAG)
    if secret is None:
        raise ConfigError(f"{flag} needs a secret that engines share: {TIER_FLAG} FILE", fix={TIER_FLAG: "kv-secret"})
    if not config.enable_prefix_caching:
        raise ConfigError(
            f"{flag} needs the prefix cache, which --no-enable-prefix-caching turns off; remove one of the two",
            fix={"--no-enable-prefix-caching": None},
        )
    if blocks is None:
        raise ConfigError(f"{flag} needs a runner whose cache lies in host memory: --runner native or numpy", fix={flag: None})
    kinds = _kinds(secret, info.kv, blocks)
    layouts = [*chain(*kinds)]
    (seal,) = layouts[0]
    tiers: list[Tier] = []
    others: list[Source] = []
    decisions = [*_units(info.kv)]
    if config.kv_cache_listen is not None:
        size = max(seal.value_bytes, parse_listen(config.kv_cache_listen)[2])
        tiers.append(Shelf(seal.value_bytes, size, info.kv.attention_tokens))
    if config.kv_cache_dir is not None:
        others += _archives(config, layouts[1:])
        decisions += _open_file(config, info.kv, [layouts[0], *chain(*(used for _, used in others))], tiers)
    if config.kv_cache_redis is not None:
        decisions.append(_open_redis(config, info.kv, layouts, tiers, others))
    if config.kv_cache_peers:
        peers = parse_peers(config.kv_cache_peers)
        own, *more = [PeerTier(peers, secret, each[0][0].label) for each in kinds]
        tiers.append(own)
        others += [(own, kinds[0][1:]), *zip(more, kinds[1:], strict=True)]
        decisions.append(
            Decision("kv_cache_peers", ", ".join(config.kv_cache_peers), "flag", f"{PEERS_FLAG}: {len(peers)} engines are asked")
        )
    if not tiers:
        return None, tuple(decisions)
    if seal.type:
        converted = ", ".join(each[0][0].type for each in kinds[1:])
        reason = f"engines of any share blocks, and their answers may differ; KV types {converted} become {seal.type}"
        decisions.append(Decision("kv_cache_numerics", config.kv_cache_numerics, "flag", reason))
    server = None
    if config.kv_cache_listen is not None:
        server, decision = _listen(config.kv_cache_listen, secret, seal.label, tiers)
        decisions.append(decision)
    if seconds := token_seconds():
        reason = f"it takes {1e3 * seconds:.3g} ms to compute one, of which a prompt waits for tiers for {SHARE:.0%} at most"
        decisions.append(Decision("kv_fetch_tokens", least_tokens(seconds), "machine", f"tiers are asked for so many and more: {reason}"))
    staged = max(LEAST_STAGED_BYTES, int(info.kv_bytes * STAGED_SHARE))
    longest = min(MOST_SECONDS, config.step_timeout_seconds / 2)
    bounds: dict[str, Any] = {"token_seconds": token_seconds, "most_seconds": longest, "most_staged_bytes": staged}
    return BlockStore(tiers, seal, info.kv, blocks, others=others, server=server, **bounds), tuple(decisions)


def _kinds(secret: bytes, shape: KVShape, blocks: BlockContents) -> list[list[Layout]]:
    """The layouts of this engine's KV type, its own first, and those of each other type that the operator lets become its own."""
    if not shape.shared or not blocks.types:
        return [layouts_of(secret, shape, blocks.runs)]
    own = next(iter(blocks.types.values()))
    return [layouts_of(secret, shape, blocks.runs, type, shape.block_bytes // own * size) for type, size in blocks.types.items()]


def _units(shape: KVShape) -> Iterator[Decision]:
    """The decision on blocks that engines with blocks of other sizes do not find."""
    if shape.unit_tokens != UNIT_TOKENS:
        size = shape.block_tokens
        reason = f"engines of another --block-size do not find these blocks; those of a multiple of {UNIT_TOKENS} find each other's"
        yield Decision("block_size", size, "flag", reason)


def _archives(config: EngineConfig, layouts: Sequence[Layout]) -> Iterator[Source]:
    """The files of other layouts that are in the folder."""
    assert config.kv_cache_dir is not None
    with private_folder(config.kv_cache_dir) as folder:
        for layout in layouts:
            with suppress(OSError):  # there is none, or it is none of ours
                labels = [seal.file_label for seal in layout]
                yield FileArchive(folder, labels, layout[0].value_bytes, config.kv_cache_dir_bytes), (layout,)


def _listen(address: str, secret: bytes, label: str, tiers: Sequence[Tier]) -> tuple[PeerServer | None, Decision]:
    """Gives other engines what this one holds itself."""
    host, port, size = parse_listen(address)
    try:
        server = PeerServer([tier for tier in tiers if isinstance(tier, Shelf | FileTier)], secret, label, host, port)
    except OSError as error:
        return None, Decision("kv_cache_listen", "not used", "machine", f"{address}: {error.strerror or error}")
    reason = f"{LISTEN_FLAG}: {size / (1 << 30):g} GiB of blocks for others, at port {server.port}"
    return server, Decision("kv_cache_listen", address, "flag", reason)


def _open_redis(config: EngineConfig, shape: KVShape, layouts: Sequence[Layout], tiers: list[Tier], others: list[Source]) -> Decision:
    """Adds the tier of a server, which is asked for nothing yet; for other layouts to `others`."""
    assert config.kv_cache_redis is not None
    password = read_password(config.kv_cache_redis_password_file, PASSWORD_FLAG)
    tiers.append(RedisTier(config.kv_cache_redis, password, shape.attention_tokens))
    others.append((tiers[-1], layouts[1:]))
    size = layouts[0][0].value_bytes
    return Decision("kv_cache_redis", config.kv_cache_redis, "flag", f"{REDIS_FLAG}: blocks of {size} bytes, shared")


def _open_file(config: EngineConfig, shape: KVShape, layouts: Sequence[Layout], tiers: list[Tier]) -> Iterator[Decision]:
    """Adds the file tier. One that cannot be opened is left out: a cache is no reason not to start. Says which files there have none of the
    layouts, of which the first is its own."""
    assert config.kv_cache_dir is not None
    (seal,) = layouts[0]
    with private_folder(config.kv_cache_dir) as folder:
        try:
            sizes = seal.value_bytes, config.kv_cache_dir_bytes
            tier = FileTier(folder, seal.file_label, *sizes, seal.words, shape.attention_tokens)
            rate, unused = tier.rate, other_layouts(folder, [each.file_label for each in chain(*layouts)])
        except OSError as error:
            yield Decision("kv_cache_dir", "not used", "machine", f"{config.kv_cache_dir}: {error.strerror or error}")
            return
    tiers.append(tier)
    reason = f"{FOLDER_FLAG}: {tier.capacity} blocks of {seal.value_bytes} bytes, {len(tier)} are there from before"
    yield Decision("kv_cache_dir", config.kv_cache_dir, "flag", reason if rate is None else f"{reason}, read at {rate / 1e9:.2g} GB/s")
    if unused:
        shown = "; ".join(sorted(set(unused))[:SHOWN_LAYOUTS])
        reason = f"their blocks have another layout than this engine's ({seal.words}): {shown}"
        yield Decision("kv_cache_other_files", f"{len(unused)} not used", "machine", reason)
