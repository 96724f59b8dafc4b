"""Verbs with an engine in this process take settings as `serve` does: a flag over a variable, a variable over a file."""

import io
import sys
from pathlib import Path

import pytest

from ridgeline.cli.main import main
from ridgeline.cli.suggest import check_line
from ridgeline.errors import ConfigError


def call(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["ridgeline", *words])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Settings of a server: what an engine in this process has no use for is left alone."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "r.toml").write_text('model = "fake:{}"\nrecord = "of-file"\nport = 9\nmax-num-seqs = 7\n')
    return "r.toml"


@pytest.mark.parametrize("verb", ["run", "generate"])
def test_flag_variable_and_file(verb: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = verb, "fake:{}", "Hello", "--max-tokens", "2", "--config", file
    assert call(monkeypatch, *words) == 0 and (tmp_path / "of-file").stat().st_size > 0
    monkeypatch.setenv("RIDGELINE_RECORD", "of-variable")
    assert call(monkeypatch, *words) == 0 and (tmp_path / "of-variable").stat().st_size > 0
    assert call(monkeypatch, *words, "--record", "of-flag") == 0 and (tmp_path / "of-flag").stat().st_size > 0


def test_run_takes_the_model_of_the_file(file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert call(monkeypatch, "run", "--config", file) == 2 and "there is no prompt" in capsys.readouterr().err
    assert call(monkeypatch, "run") == 2 and "no model was named" in capsys.readouterr().err


@pytest.mark.parametrize("words", ["run demo hi", "generate demo hi", "bench offline demo"])
def test_a_wrong_value_is_told_with_its_place(words: str, file: str, tmp_path: Path) -> None:
    (tmp_path / file).write_text("threads = 0\n")
    error = check_line([*words.split(), "--config", file])
    assert isinstance(error, ConfigError) and f"{file}: threads" in str(error), error
