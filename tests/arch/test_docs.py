"""What the documents say about the tree is true: paths exist, the README opens with the two commands."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
PATH = re.compile(r"`((?:src/ridgeline|tests|docs|csrc|deploy)/[A-Za-z0-9_./-]+|[a-z_]+/[a-z0-9_/]+\.(?:py|cpp|h|md))`")


def exists(path: str) -> bool:
    return (ROOT / path).exists() or (ROOT / "src" / "ridgeline" / path).exists()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_paths_exist(document: Path) -> None:
    missing = [path for path in PATH.findall(document.read_text()) if not exists(path)]
    assert not missing


def test_walk_throughs_name_what_is_there() -> None:
    """Every file and every name in code that CONTRIBUTING.md sends its reader to."""
    spoken = re.findall(r"`([A-Za-z_][\w.]*)(?:\([^`]*\))?`", (ROOT / "CONTRIBUTING.md").read_text())
    every = (path for folder in ("src", "csrc", "tests") for path in (ROOT / folder).rglob("*"))
    sources = [path for path in every if path.suffix in (".py", ".cpp", ".h", ".def")]
    files, words = {path.name for path in sources}, {word for path in sources for word in re.findall(r"\w+", path.read_text())}
    missing = [name for name in spoken if name not in files and not (ROOT / name).exists() and not set(name.split(".")) <= words]
    assert len(spoken) > 30 and not missing


def test_folders_of_tests_are_those_of_the_package() -> None:
    """But for what tests the whole, or several folders share."""
    others = {"arch", "e2e", "clients", "deploy", "gpu_visit", "helpers", "gold", "speed", "trials"}
    folders = {path.parent.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py")}
    strangers = [folder for folder in folders if not (ROOT / "src" / "ridgeline" / folder).is_dir() and folder.parts[0] not in others]
    assert len(folders) > 15 and not strangers


def test_readme_opens_with_the_two_commands() -> None:
    commands = re.findall(r"^(pip install .*)$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert commands[:2] == ['pip install ".[demo]" && ridgeline serve demo', 'pip install ".[test]" && pytest']
    assert commands[1] in (ROOT / ".ci" / "run").read_text()


def test_the_tree_of_the_readme_is_that_of_the_repository() -> None:
    """Folders of the package, those at the top, and what it says that csrc and tests hold beside folders like those of the package."""
    tree = (ROOT / "README.md").read_text().split("```\nsrc/ridgeline/\n")[1].split("```")[0]
    named = dict(re.findall(r"^ {0,2}([\w.]+)/? {2,}(.*)$", tree, re.MULTILINE))
    package = {path.name for path in (ROOT / "src" / "ridgeline").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert named.keys() - {"errors.py"} == package | {"csrc", "tests", "docs", "deploy"}
    for folder, own in (("csrc", set()), ("tests", package | {"__pycache__"})):
        held = {path.name for path in (ROOT / folder).iterdir() if path.is_dir()}
        assert held - own <= set(re.findall(r"\w+", named[folder])), folder


def test_every_law_has_a_line() -> None:
    text = (ROOT / "docs" / "laws.md").read_text()
    for number in range(1, 16):
        assert re.search(rf"^(\|? *|#+ *|\*\*)?(Law )?{number}\b", text, re.MULTILINE), f"law {number}"
