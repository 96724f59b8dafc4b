"""An engine that is started ahead: taken by the client with the same settings, ended by any other, and by the end of its parent."""

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from engine_process import FAST, alive, read, request, run, serving

from ridgeline.config.groups import EngineConfig
from ridgeline.engine import spawned
from ridgeline.engine.spawned import started_ahead


def test_the_client_with_the_same_settings_takes_it() -> None:
    async def main() -> None:
        async with serving(FAST) as client:
            assert client.pid == ahead.process.pid
            ids, _ = await read(client.submit(await request(client, "r", max_tokens=5)))
            assert len(ids) == 5

    with started_ahead(FAST):
        ((_, ahead),) = spawned._ahead
        run(main())
    assert not spawned._ahead
    assert not alive(ahead.process.pid)


def test_another_one_ends_it() -> None:
    async def main() -> None:
        async with serving(FAST) as client:
            assert client.pid != ahead.process.pid

    with started_ahead(replace(FAST, max_num_seqs=3)):
        ((_, ahead),) = spawned._ahead
        run(main())
        assert ahead.process.returncode is not None and not spawned._ahead


def test_it_ends_where_nobody_takes_it() -> None:
    with started_ahead(FAST):
        ((_, ahead),) = spawned._ahead
    assert ahead.process.returncode is not None and not spawned._ahead


def test_a_model_that_is_not_here_is_not_started(tmp_path: Path) -> None:
    for name in (str(tmp_path / "none.gguf"), "org/none", "no model at all"):
        with started_ahead(EngineConfig(model=name)):
            assert not spawned._ahead
    model = tmp_path / "a.gguf"
    model.write_bytes(b"GGUF")
    with started_ahead(EngineConfig(model=str(model), expect_sha256="0" * 64)):
        assert not spawned._ahead


def test_it_ends_with_its_parent() -> None:
    program = (
        "import os; from ridgeline.config.groups import EngineConfig; from ridgeline.engine import spawned\n"
        f"with spawned.started_ahead(EngineConfig(model={FAST.model!r})): print(spawned._ahead[0][1].process.pid, flush=True); os._exit(0)"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=dict(os.environ)).stdout
    end = time.monotonic() + 20
    while alive(int(told)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not alive(int(told))
