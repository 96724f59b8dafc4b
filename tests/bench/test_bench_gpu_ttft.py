"""The time to the first token as the GPU's benchmark measures it over HTTP: a server in a process of its own, one prompt after another."""

import pytest

from ridgeline.bench import gpu_part
from ridgeline.bench.gpu_part import through_http

SETTINGS = {"model": "nothing", "prompt_tokens": 40, "repeats": 3, "dtype": "bf16", "kv_dtype": "bf16"}


def test_first_token_over_http(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_part, "PAUSE_SECONDS", 0.0)
    row = through_http(SETTINGS, 'fake:{"rows": 64, "step_seconds": 0.02}')
    assert row["through"] == "HTTP" and row["prompt_tokens"] == 40 and row["repeats"] == 3
    assert 0.02 < row["best_seconds"] <= row["seconds"] <= row["worst_seconds"] < 10


def test_settings_are_flags_of_the_command() -> None:
    flags = list(gpu_part._flags({"max_num_seqs": 4, "enable_prefix_caching": False, "dtype": "fp8", "trust": True}))
    assert flags == ["--max-num-seqs", "4", "--no-enable-prefix-caching", "--dtype", "fp8", "--trust"]
