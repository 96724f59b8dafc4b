"""The simulator's settings of this machine are those of a server's start, and of `config explain`, which has its own way there."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline.cli.scenarios import make_scenario
from ridgeline.facts.hardware.machine import machine_facts
from ridgeline.facts.headers.config_json import read_config
from ridgeline.models.table import KNOWN
from ridgeline.planning import served

RIDGELINE = [sys.executable, "-c", "from ridgeline.cli.main import main; main()"]


def test_what_is_simulated_here_is_what_is_served(demo_file: Path) -> None:
    explained = subprocess.run([*RIDGELINE, "config", "explain", str(demo_file), "--json"], capture_output=True, check=True, text=True)
    values = {row["name"]: row["value"] for row in json.loads(explained.stdout)}
    now = make_scenario(str(demo_file), {"device": "this"}, None)
    for name in ("max_num_seqs", "max_num_batched_tokens", "step_ms", "depth", "scheduling_policy", "enable_prefix_caching"):
        assert getattr(now.knobs, name) == values[name], name
    assert now.deployment.context == values["max_model_len"]
    config = now.replica_config()
    assert config.kv.blocks * config.kv.block_bytes == values["kv_cache_memory_bytes"]
    assert now.deployment.kv_dtype == values["kv_dtype"]


def test_what_is_given_stays_and_a_table_s_device_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"device": "this", "max_num_seqs": "3", "kv_dtype": "int8", "context": "100", "depth": "1"}
    knobs = make_scenario("llama-3-8b", given, None).knobs
    assert (knobs.max_num_seqs, knobs.depth) == (3, 1)
    other = make_scenario("llama-3-8b", {}, None)
    assert (other.knobs.max_num_seqs, other.knobs.max_num_batched_tokens, other.knobs.kv_blocks) == (256, 2048, None)
    facts = read_config(KNOWN / "llama-3-8b.json", "llama-3-8b").facts
    monkeypatch.setattr(served, "machine_facts", lambda: replace(machine_facts(), memory_bytes=10**9))
    assert served.served_settings(facts, {"context": 64})["kv_blocks"] * 16 * 131_072 <= 0.3 * 10**9
