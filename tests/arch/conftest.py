"""The package's files, parsed once."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src" / "ridgeline"


@pytest.fixture(scope="session")
def modules() -> list[tuple[str, str, list[ast.AST]]]:
    """(path below the package, text, every node of its tree, the module first) of each file."""
    texts = {path.relative_to(SOURCE).as_posix(): path.read_text() for path in sorted(SOURCE.rglob("*.py"))}
    return [(name, text, list(ast.walk(ast.parse(text)))) for name, text in texts.items()]
