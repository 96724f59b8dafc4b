"""Settings are settled by one pure function that says why."""

from dataclasses import replace

import pytest

from ridgeline.config.groups import EngineConfig
from ridgeline.config.resolve import KVCosts, resolve
from ridgeline.errors import ConfigError

COSTS = KVCosts(
    block_bytes=1_000,
    sequence_blocks=lambda tokens: -(-tokens // 16),
    longest_sequence=lambda blocks, limit: min(limit, blocks * 16),
)


def test_the_need_when_it_is_less_than_the_share() -> None:
    settled = resolve(EngineConfig("m", max_num_seqs=2), context=160, memory_bytes=10**9, costs=COSTS)
    assert settled.config.max_model_len == 160
    assert settled.blocks == 20
    assert {d.name: d.origin for d in settled.decisions} == {"max_model_len": "model", "kv_cache_memory_bytes": "model"}


def test_context_shrinks_to_what_the_share_holds_and_says_so() -> None:
    settled = resolve(EngineConfig("m", max_num_seqs=2), context=16_000, memory_bytes=1_000_000, costs=COSTS)
    assert settled.blocks == 300
    assert settled.config.max_model_len == 4_800
    length = settled.decisions[0]
    assert length.origin == "machine" and "16000" in length.reason


def test_adapters_have_memory_of_their_own() -> None:
    settled = resolve(EngineConfig("m", max_num_seqs=2, enable_lora=True), context=16_000, memory_bytes=1_000_000, costs=COSTS)
    assert settled.blocks == 240
    said = settled.decisions[-1]
    assert (said.name, said.value, said.origin) == ("max_loras", 8, "default") and "20% of the 1000000 bytes" in said.reason
    beside = resolve(
        EngineConfig("m", max_num_seqs=2, lora=("a=b",), max_loras=3), context=160, memory_bytes=10**6, costs=COSTS, host_bytes=10**9
    )
    assert (beside.decisions[-1].value, beside.decisions[-1].origin) == (3, "flag") and "200000000, are for adapters" in beside.decisions[
        -1
    ].reason


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (EngineConfig("m", max_num_seqs=64, max_model_len=20_000), "--max-model-len is 20000"),
        (EngineConfig("m", max_num_seqs=64, max_model_len=0), "--max-model-len is 0"),
        (EngineConfig("m", max_num_seqs=64, max_model_len=16_000, kv_cache_memory_bytes=10_000), "set --max-model-len 160 or --kv-cache"),
        (EngineConfig("m", max_num_seqs=64, kv_cache_memory_bytes=999), "--kv-cache-memory-bytes is 999"),
        (EngineConfig("m", max_num_seqs=64, kv_cache_memory_bytes=10**12), "--kv-cache-memory-bytes"),
        (EngineConfig("m", max_num_seqs=64, block_size=0), "--block-size is 0"),
        (EngineConfig("m", max_num_seqs=0), "--max-num-seqs is 0"),
        (EngineConfig("m", max_num_seqs=64, max_num_batched_tokens=0), "--max-num-batched-tokens is 0"),
        (EngineConfig("m", max_num_seqs=64, depth=5), "--depth is 5"),
        (EngineConfig("m", max_num_seqs=64, num_speculative_tokens=9), "--num-speculative-tokens is 9, outside 1 … 8"),
        (EngineConfig("m", max_num_seqs=64, speculative="eagle"), "--speculative is 'eagle'; it must be one of off, ngram, suffix, draft"),
        (EngineConfig("m", max_num_seqs=64, swap_space=1.0), r"--swap-space is 1 GiB, outside 0 … 0.8 GiB"),
        (EngineConfig("m", max_num_seqs=64, swap_space=-1.0), "--swap-space is -1 GiB"),
        (EngineConfig("m", max_num_seqs=64, swap_space=float("nan")), "--swap-space is nan, which is not a number"),
        (EngineConfig("m", max_num_seqs=64, swap_space=1e-9), "--swap-space 1e-09 GiB holds no block of 1000 bytes"),
        (EngineConfig("m", max_num_seqs=64, swap_space=0.1, enable_prefix_caching=False), "--no-enable-prefix-caching turns off"),
    ],
)
def test_what_cannot_work_names_the_flag(config: EngineConfig, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        resolve(config, context=16_000, memory_bytes=10**9, costs=COSTS)


def test_pages_of_the_host() -> None:
    config = EngineConfig("m", max_num_seqs=2, swap_space=0.5)
    settled = resolve(config, context=160, memory_bytes=10**6, costs=COSTS, host_bytes=2**30)
    assert (settled.blocks, settled.host_blocks) == (20, 2**29 // 1_000)
    assert settled.decisions[-1].name == "swap_space" and f"{2**29 // 1_000} blocks" in settled.decisions[-1].reason
    assert resolve(EngineConfig("m", max_num_seqs=64), context=160, memory_bytes=10**6, costs=COSTS).host_blocks == 0


def test_the_fix_that_an_error_names_works() -> None:
    config = EngineConfig("m", max_num_seqs=64, max_model_len=160, kv_cache_memory_bytes=10_000)
    settled = resolve(config, context=16_000, memory_bytes=10**9, costs=COSTS)
    assert settled.blocks == 10


def test_no_fix_is_named_that_cannot_work() -> None:
    with pytest.raises(ConfigError, match=r"set --max-model-len 4800 .this process may use 1000000 bytes"):
        resolve(EngineConfig("m", max_num_seqs=64, max_model_len=160_000), context=160_000, memory_bytes=1_000_000, costs=COSTS)


def test_no_room_for_one_token() -> None:
    costs = KVCosts(block_bytes=1_000, sequence_blocks=lambda tokens: 6, longest_sequence=lambda blocks, limit: limit if blocks >= 6 else 0)
    with pytest.raises(ConfigError, match="--kv-cache-memory-bytes 6000"):
        resolve(EngineConfig("m", max_num_seqs=64, kv_cache_memory_bytes=5_000), context=100, memory_bytes=10**9, costs=costs)


def test_recurrent_states_have_memory_of_their_own() -> None:
    costs = replace(COSTS, row_bytes=50_000)
    settled = resolve(EngineConfig("m", max_num_seqs=2), context=16_000, memory_bytes=1_000_000, costs=costs)
    assert settled.blocks == 270 and settled.config.max_num_seqs == 2
    said = settled.decisions[-1]
    assert (said.name, said.value, said.origin) == ("max_num_seqs", 2, "model") and "100000 bytes" in said.reason
    fewer = resolve(EngineConfig("m", max_num_seqs=64), context=16_000, memory_bytes=1_000_000, costs=costs)
    assert (fewer.config.max_num_seqs, fewer.blocks) == (6, 210)
    assert fewer.decisions[-1].origin == "machine" and "shrunk from 64" in fewer.decisions[-1].reason
    with pytest.raises(ConfigError, match=r"recurrent states of one sequence have 50000 bytes, 30% of 100000"):
        resolve(EngineConfig("m", max_num_seqs=1), context=100, memory_bytes=100_000, costs=costs)
