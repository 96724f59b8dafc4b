"""Every label of the four trials (a new user N, under attack X, real clients C, against its own documents A) has a test whose name begins
with it: `test_n13_…`. Labels of overload have tests of their own area."""

import ast
import re
from pathlib import Path

LABELS = {
    *(f"n{number}" for number in range(1, 25)),
    *(f"x{number}" for number in range(1, 12)),
    *(f"c{number}" for number in range(1, 16)),
    *(f"a{number}" for number in range(1, 13)),
}
OF_OVERLOAD = {"a4", "a11"}


def labelled() -> set[str]:
    """Labels that tests of this folder begin with; `test_n6_c6_…` has two."""
    found: set[str] = set()
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                name = re.match(r"test((?:_[nxca]\d{1,2})+)(?=_)", node.name)
                found |= set(name[1].split("_")[1:]) if name else set()
    return found


def test_every_label_has_a_test() -> None:
    missing = LABELS - OF_OVERLOAD - labelled()
    assert not missing, sorted(missing, key=lambda label: (label[0], int(label[1:])))


def test_there_are_no_other_labels() -> None:
    assert labelled() <= LABELS
