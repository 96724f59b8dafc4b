"""Resolution of settings to effective values, each with its origin and reason. Pure."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

from ridgeline.config.groups import EngineConfig
from ridgeline.config.values import GIB, check_settings
from ridgeline.errors import ConfigError

MEMORY_SHARE = 0.30
"""Default limit of the KV cache, as a share of the memory that the process may use."""

ADAPTER_SHARE = 0.20
"""Share of that memory for adapters, in host memory and in slots, where any are taken."""


@dataclass(frozen=True, slots=True)
class Decision:
    """One effective setting: its value, where it comes from (flag, model, machine) and why."""

    name: str
    value: int | str
    origin: str
    reason: str


@dataclass(frozen=True, slots=True)
class KVCosts:
    """Costs of the model's KV cache, as `planning.memory` computes it.

    block_bytes       bytes of one block
    row_bytes         bytes of the recurrent states of a row, however long its sequence is
    sequence_blocks   tokens → most blocks that one sequence of so many tokens holds
    longest_sequence  (blocks, limit) → most tokens, up to `limit`, of one sequence in so many blocks
    """

    block_bytes: int
    sequence_blocks: Callable[[int], int]
    longest_sequence: Callable[[int, int], int]
    row_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Resolved:
    """Complete settings, the numbers of KV blocks on the device and on the host, and the decisions that led to them."""

    config: EngineConfig
    blocks: int
    decisions: tuple[Decision, ...]
    host_blocks: int = 0


def resolve(
    config: EngineConfig, *, context: int, memory_bytes: int, costs: KVCosts, share: float = MEMORY_SHARE, host_bytes: int | None = None
) -> Resolved:
    """Resolves `kv_cache_memory_bytes`, `max_model_len`, and the number of blocks in `swap_space`; bounds `max_num_seqs` by memory.

    context       positions that the model was trained for
    memory_bytes  memory of the device, or, on a CPU, that this process may use
    host_bytes    host memory that this process may use; None: the KV cache is in the same memory
    share         default limit of the KV cache, as a share of `memory_bytes`
    Raises ConfigError with the numbers and the flag that fixes it.
    """
    check_settings(config)
    adapters = _adapters(config, memory_bytes if host_bytes is None else host_bytes)
    if host_bytes is None:
        memory_bytes -= adapter_bytes(config, memory_bytes)
    else:  # a device's slots are in its memory already
        host_bytes -= adapter_bytes(config, host_bytes)
    config, states = _with_states(config, memory_bytes, costs.row_bytes, share)
    memory_bytes -= config.rows * costs.row_bytes
    length = _max_model_len(config, context)
    asked = int(length.value)
    cache = _cache_bytes(config, asked, memory_bytes, costs, share)
    blocks = int(cache.value) // costs.block_bytes
    fits = costs.longest_sequence(blocks, asked)
    if fits < 1:
        need = costs.sequence_blocks(1)
        raise ConfigError(
            f"a KV cache of {cache.value} bytes holds {blocks} blocks of {costs.block_bytes} bytes, one sequence needs {need}; "
            f"set --kv-cache-memory-bytes {need * costs.block_bytes} or more",
            fix={"--kv-cache-memory-bytes": None},
        )
    if fits < asked:
        if config.max_model_len is not None:
            need = costs.sequence_blocks(asked) * costs.block_bytes
            more = f" or --kv-cache-memory-bytes {need}" if need <= memory_bytes else f" (this process may use {memory_bytes} bytes in all)"
            raise ConfigError(
                f"--max-model-len {asked} needs {need} bytes of KV cache for one sequence, {cache.value} are available; "
                f"set --max-model-len {fits}{more}",
                fix={"--max-model-len": str(fits)},
            )
        length = Decision("max_model_len", fits, "machine", f"shrunk from {asked}: the longest sequence that {blocks} blocks hold")
    settled = replace(config, max_model_len=int(length.value), kv_cache_memory_bytes=blocks * costs.block_bytes)
    host_left = memory_bytes - blocks * costs.block_bytes if host_bytes is None else host_bytes
    host_blocks = _host_blocks(config, host_left, costs.block_bytes)
    decided = (length, cache, *adapters, *states)
    if not host_blocks:
        return Resolved(settled, blocks, decided)
    reason = f"--swap-space: {host_blocks} blocks in host memory, behind the {blocks} of the KV cache"
    return Resolved(settled, blocks, (*decided, Decision("swap_space", f"{config.swap_space:g} GiB", "flag", reason)), host_blocks)


def adapter_bytes(config: EngineConfig, memory_bytes: int) -> int:
    """Bytes that adapters may have of the memory; 0 where none are taken."""
    return int(memory_bytes * ADAPTER_SHARE) if config.adapter_slots else 0


def _adapters(config: EngineConfig, memory_bytes: int) -> tuple[Decision, ...]:
    """The memory of adapters; nothing where none are taken."""
    share = adapter_bytes(config, memory_bytes)
    reason = (
        f"{ADAPTER_SHARE:.0%} of the {memory_bytes} bytes that this process may use, {share}, are for adapters and not for the KV cache: "
        "half of them for those in host memory, half for slots"
    )
    (default,) = (each.default for each in fields(config) if each.name == "max_loras")
    origin = "default" if config.max_loras == default else "flag"
    return (Decision("max_loras", config.max_loras, origin, reason),) if share else ()


def _with_states(config: EngineConfig, memory_bytes: int, row_bytes: int, share: float) -> tuple[EngineConfig, tuple[Decision, ...]]:
    """Settings with as many rows as have room for their recurrent states in `share` of the memory, and the decision; unchanged where a row
    has none. Raises ConfigError where no row has room."""
    if not row_bytes:
        return config, ()
    limit = int(memory_bytes * share)
    rows = min(config.rows, limit // row_bytes)
    if not rows:
        raise ConfigError(
            f"the recurrent states of one sequence have {row_bytes} bytes, {share:.0%} of {memory_bytes} bytes of memory are {limit}; "
            "take a smaller model, or fewer --num-speculative-tokens, each of which keeps states of its own",
            fix={"--speculative": "off"},
        )
    if rows < config.rows:
        reason, origin = f"shrunk from {config.rows}: recurrent states of so many sequences fit {share:.0%} of the memory", "machine"
    else:
        reason, origin = f"recurrent states of so many sequences have {rows * row_bytes} bytes, beside the KV cache", "model"
    return replace(config, max_num_seqs=rows), (Decision("max_num_seqs", rows, origin, reason),)


def _host_blocks(config: EngineConfig, left: int, block_bytes: int) -> int:
    """Blocks of the host tier. Raises ConfigError where it exceeds `left`, the bytes left on the host."""
    if not config.swap_space:
        return 0
    most = left // (GIB // 10) / 10
    if not 0 < config.swap_space * GIB <= left:
        raise ConfigError(
            f"--swap-space is {config.swap_space:g} GiB, outside 0 … {most:g} GiB (what this process has left of its memory)",
            fix={"--swap-space": f"{most:g}"},
        )
    if not config.enable_prefix_caching:
        raise ConfigError(
            f"--swap-space {config.swap_space:g} needs the prefix cache, which --no-enable-prefix-caching turns off; remove one of the two",
            fix={"--no-enable-prefix-caching": None},
        )
    blocks = int(config.swap_space * GIB) // block_bytes
    if not blocks:
        raise ConfigError(f"--swap-space {config.swap_space:g} GiB holds no block of {block_bytes} bytes", fix={"--swap-space": None})
    return blocks


def _max_model_len(config: EngineConfig, context: int) -> Decision:
    if config.max_model_len is None:
        return Decision("max_model_len", context, "model", "the context that the model was trained for")
    if not 1 <= config.max_model_len <= context:
        raise ConfigError(
            f"--max-model-len is {config.max_model_len}, outside 1 … {context}, the context that the model was trained for",
            fix={"--max-model-len": None},
        )
    return Decision("max_model_len", config.max_model_len, "flag", "--max-model-len")


def _cache_bytes(config: EngineConfig, length: int, memory_bytes: int, costs: KVCosts, share: float) -> Decision:
    name = "kv_cache_memory_bytes"
    if config.kv_cache_memory_bytes is not None:
        if not costs.block_bytes <= config.kv_cache_memory_bytes <= memory_bytes:
            raise ConfigError(
                f"--kv-cache-memory-bytes is {config.kv_cache_memory_bytes}, "
                f"outside {costs.block_bytes} (one block) … {memory_bytes} (the memory of this process)",
                fix={"--kv-cache-memory-bytes": None},
            )
        return Decision(name, config.kv_cache_memory_bytes, "flag", "--kv-cache-memory-bytes")
    need = costs.sequence_blocks(length) * config.rows * costs.block_bytes
    limit = int(memory_bytes * share)
    if need <= limit:
        return Decision(name, need, "model", f"the need of {config.rows} sequences of {length} tokens")
    return Decision(name, limit, "machine", f"{share:.0%} of the {memory_bytes} bytes that this process may use (the need is {need})")
