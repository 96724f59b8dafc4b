"""Whether a second model fits beside a server's own."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from ridgeline.cli import fit
from ridgeline.cli.fit import check_fit
from ridgeline.config.groups import EngineConfig
from ridgeline.errors import ConfigError


def test_what_does_not_fit_is_refused_with_numbers(demo_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = EngineConfig(str(demo_file), max_model_len=256)
    check_fit(config)
    small = SimpleNamespace(memory_bytes=8 << 30, available_bytes=100 << 20, cpu_cores=2)
    monkeypatch.setattr(fit, "machine_facts", lambda: small)
    with pytest.raises(ConfigError, match=r"needs 0\.\d+ GiB for weights and \d\.\d+ GiB of KV cache .*; 0\.10 GiB are free"):
        check_fit(config)
