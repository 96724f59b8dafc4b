"""`ridgeline laws`: the line it ends with, its exit status, and how it names what it found."""

import pytest
import typer
from typer.testing import CliRunner

from ridgeline.cli.sim import laws
from ridgeline.core.kv_blocks import KVBlocks
from ridgeline.sim.laws.swarm import Tally

APP = typer.Typer()
APP.command()(laws)


def test_a_clean_run_ends_with_its_counts() -> None:
    ran = CliRunner().invoke(APP, ["--steps", "300", "--seed", "7"])
    assert ran.exit_code == 0
    assert ran.stdout.splitlines()[-1] == "steps 300 violations 0"
    assert "prefix hit" in ran.stdout


def test_a_violation_names_seed_and_step_and_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KVBlocks, "free_out_of_window", lambda self, sequence: sequence.tables[0].__setitem__(0, 0))
    ran = CliRunner().invoke(APP, ["--steps", "300", "--seed", "7"])
    assert ran.exit_code == 1
    assert "seed 7 step " in ran.stdout
    assert "ridgeline laws --seed 7 --steps " in ran.stdout
    assert ran.stdout.splitlines()[-1].startswith("steps ")


def test_the_named_seed_repeats_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KVBlocks, "free_out_of_window", lambda self, sequence: sequence.tables[0].__setitem__(0, 0))
    found: list[Tally] = []
    monkeypatch.setattr("ridgeline.cli.sim._print_tally", lambda console, total: found.append(total))
    CliRunner().invoke(APP, ["--steps", "2000", "--seed", "7"])
    last = found[0].violations[-1]
    CliRunner().invoke(APP, ["--seed", str(last.seed), "--steps", str(last.step + 1)])
    assert found[1].violations[0] == last
