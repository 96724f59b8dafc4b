"""What the documents say about the tree is true: paths exist, the trace fits its budget, the README opens with the two commands."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
PATH = re.compile(r"`((?:src/ridgeline|tests|docs|csrc|deploy)/[A-Za-z0-9_./-]+|[a-z_]+/[a-z0-9_/]+\.(?:py|cpp|h|md))`")
ABOVE, BELOW = (14, 2_500), (10, 2_000)
"""Files and lines that whoever follows one request opens: down to the Executor, and below it."""


def exists(path: str) -> bool:
    return (ROOT / path).exists() or (ROOT / "src" / "ridgeline" / path).exists()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_paths_exist(document: Path) -> None:
    missing = [path for path in PATH.findall(document.read_text()) if not exists(path)]
    assert not missing


def section_files(heading: str) -> list[Path]:
    text = (ROOT / "docs" / "trace.md").read_text()
    section = text.split(f"## {heading}")[1].split("\n## ")[0]
    found: list[Path] = []
    for name in PATH.findall(section):
        path = ROOT / "src" / "ridgeline" / name
        if path.is_file() and path not in found:
            found.append(path)
    return found


@pytest.mark.parametrize(("heading", "budget"), [("Down to the Executor", ABOVE), ("Below the Executor", BELOW)])
def test_following_one_request_stays_cheap(heading: str, budget: tuple[int, int]) -> None:
    files = section_files(heading)
    lines = sum(path.read_text().count("\n") for path in files)
    assert files and len(files) <= budget[0], [p.name for p in files]
    assert lines <= budget[1], {p.name: p.read_text().count("\n") for p in files}


def test_readme_opens_with_the_two_commands() -> None:
    commands = re.findall(r"^(pip install .*)$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert commands[:2] == ['pip install ".[demo]" && ridgeline serve demo', 'pip install ".[test]" && pytest']
    assert commands[1] in (ROOT / ".ci" / "run").read_text()


def test_every_law_has_a_line() -> None:
    text = (ROOT / "docs" / "laws.md").read_text()
    for number in range(1, 16):
        assert re.search(rf"^(\|? *|#+ *|\*\*)?(Law )?{number}\b", text, re.MULTILINE), f"law {number}"
