"""Flags of tokens and bytes of every verb take 4k, 4K and 4GiB, within bounds."""

from typing import Any

import pytest
import typer

from ridgeline.cli.main import PROGRAM, make_app
from ridgeline.cli.scenarios import SETTINGS
from ridgeline.errors import ConfigError

FLAGS = [
    ("plan demo", "--context", "8K", 8_192),
    ("plan demo", "--max-num-batched-tokens", "4_096", 4_096),
    ("plan demo", "--memory", "24GiB", (24 << 30) / 1e9),
    ("plan demo", "--memory", "16.5", 16.5),
    ("bench serve", "--shared-prefix", "1k", 1_000),
    ("bench offline demo", "--prompt-tokens", "1k", 1_000),
    ("bench offline demo", "--output-tokens", "1K", 1_024),
]


def parse(*words: str) -> dict[str, Any]:
    """The parameters of a verb, by the program's own parser."""
    seen: dict[str, Any] = {}
    program: Any = typer.main.get_command(make_app())
    program.main(list(words), PROGRAM, standalone_mode=False, obj=lambda path: seen.update)
    return seen


@pytest.mark.parametrize(("verb", "flag", "text", "value"), FLAGS, ids=lambda each: str(each)[:24])
def test_sizes_as_they_are_written(verb: str, flag: str, text: str, value: float) -> None:
    name = flag[2:].replace("-", "_")
    assert parse(*verb.split(), flag, text)[name] == value
    assert parse(*verb.split())[name] != value, "a default"
    for wrong in ("many", "-3", "9" * 30, "1.5k5", ""):
        if flag != "--memory" or wrong in ("many", ""):
            with pytest.raises(ConfigError, match=f"{flag} is ") as error:
                parse(*verb.split(), flag, wrong)
            assert set(error.value.fix) == {flag}


def test_bounds() -> None:
    with pytest.raises(ConfigError, match="--shared-prefix is 2M, outside 0 … 1048576"):
        parse("bench", "serve", "--shared-prefix", "2M")


def test_settings_of_the_simulator() -> None:
    assert SETTINGS["context"].read("context", "8K") == 8_192
    assert SETTINGS["max_num_batched_tokens"].read("max_num_batched_tokens", "2k") == 2_000
    for text in ("-3", "1", "9q", ""):
        with pytest.raises(ConfigError, match="context"):
            SETTINGS["context"].read("context", text)
