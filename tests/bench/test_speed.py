"""The comparison of two commits in turn (tests/speed): the same commit twice, on an engine that computes nothing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SPEED = Path(__file__).resolve().parents[1] / "speed"
SOURCE = Path(__file__).resolve().parents[2] / "src"


@pytest.mark.parametrize("loads", [["host"], pytest.param(["decode", "prefill", "host"], marks=pytest.mark.night)], ids=["day", "night"])
def test_a_commit_beside_itself(loads: list[str]) -> None:
    sides = [f"--{side}{what}" for side in ("old", "new") for what in (f"={sys.executable}", f"-path={SOURCE}")]
    command = [
        sys.executable,
        str(SPEED / "compare.py"),
        *sides,
        "--model",
        "fake:{}",
        "--rounds",
        "2",
        "--json",
        "--loads",
        ",".join(loads),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode in (0, 1), done.stderr
    found = json.loads(done.stdout)
    sizes = {"decode": [1, 4, 16, 32], "prefill": [512, 2048], "host": [32, 256]}
    assert [(each["load"], each["size"]) for each in found] == [(load, size) for load in loads for size in sizes[load]]
    for each in found:
        assert each["rounds"] == 2 and each["old_seconds"] > 0 and each["new_seconds"] > 0
        assert each["speed_interval"][0] <= each["speed"] <= each["speed_interval"][1]


def test_intervals_hold_what_is_sure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SPEED))
    import compare

    assert compare.interval([1.01] * 5) == (1.01, 1.01)
    low, high = compare.interval([0.9, 1.0, 1.0, 1.0, 1.1])
    assert 0.9 <= low <= 1.0 <= high <= 1.1
    assert compare.interval([0.5, 0.6, 0.7, 1.5, 1.6])[0] < 0.6


HEADER = """
|    PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |      T s |    S t/s |
|-------|--------|------|--------|----------|----------|----------|----------|----------|----------|
"""
PRINTED = {
    "llama.cpp": f"""
main: n_kv_max = 1280, n_batch = 2048, n_ubatch = 512, flash_attn = -1, is_pp_shared = 0, n_gpu_layers = -1
{HEADER}|    32 |      8 |    4 |    160 |    0.035 |  3657.14 |    0.061 |   524.59 |    0.096 |  1666.67 |

llama_perf_context_print:        load time =     173.93 ms
""",
    "ik_llama.cpp": f"""
llama_init_from_model: graph splits = 1
main: n_kv_max = 1280, n_batch = 2048, n_ubatch = 512, flash_attn = 1, is_pp_shared = 0, n_gpu_layers = -1
{HEADER}|    32 |      8 |    4 |    160 |    0.022 |  5859.73 |    0.056 |   571.52 |    0.078 |  2055.63 |

llama_print_timings:        load time =     173.93 ms
""",
}


def test_the_batched_rate_of_a_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SPEED))
    import experts

    assert experts.decode_rate(PRINTED["llama.cpp"]) == 524.59
    assert experts.decode_rate(PRINTED["ik_llama.cpp"]) == 571.52
    for broken in ("", HEADER):
        with pytest.raises(SystemExit, match="printed no S_TG"):
            experts.decode_rate(broken)


def test_tables_are_read_from_both_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SPEED))
    import experts

    program = [sys.executable, "-c", "import sys; print('out'); print('log', file=sys.stderr)"]
    assert experts.output(program) == "out\n"
    assert experts.output(program, errors_too=True) == "out\nlog\n"
