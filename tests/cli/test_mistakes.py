"""Command lines that are wrong end with status 2, the cause with its number, and the same words without the mistake."""

import shlex
import sys

import pytest

from ridgeline.cli.main import main

WRONG = [
    ("bench gpu --model no-such-model --only decode --dry-run", "no-such-model", "bench gpu --only decode --dry-run"),
    ("bench gpu --dry-run --only decode --model=no-such-model", "no-such-model", "bench gpu --dry-run --only decode"),
    ("bench gpu --minutes nan --only soak --dry-run", "--minutes is nan", "bench gpu --only soak --dry-run"),
    ("bench gpu --dtype '' --dry-run", "--dtype is ''", "bench gpu --dry-run"),
    ("serve demo --port 0 --swap-space nan", "--swap-space is nan", "serve demo --port 0"),
    ("serve demo --shutdown-timeout=nan --port 0", "--shutdown-timeout is nan", "serve demo --port 0"),
    ("plan no-such-model --memory 16", "no-such-model", "plan demo --memory 16"),
]


@pytest.mark.parametrize(("words", "cause", "works"), WRONG, ids=[words for words, _, _ in WRONG])
def test_what_was_wrong_is_changed_or_taken_away(
    words: str, cause: str, works: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["ridgeline", *shlex.split(words)])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2 and len(said) == 2
    assert said[0].startswith("ridgeline: ") and cause in said[0] and said[1] == f"This works: ridgeline {works}"
