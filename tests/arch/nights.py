"""What ran at night, and what never did: `python tests/arch/nights.py`. `make night` writes tests/night.jsonl, which this reads."""

import ast
import json
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
RECORD = TESTS / "night.jsonl"


def is_night(node: ast.AST) -> bool:
    return any(isinstance(each, ast.Attribute) and ast.unparse(each) == "pytest.mark.night" for each in ast.walk(node))


def night_tests(tests: Path = TESTS) -> list[str]:
    """`path::function` of every test of which a case is marked, from the sources: a mark in a constant counts where that is used."""
    found = []
    for path in sorted(tests.rglob("test_*.py")):
        tree = ast.parse(path.read_text())
        if "pytest.mark.night" not in path.read_text() or path.parent.name == "arch":
            continue
        marked = {
            target.id for node in tree.body if isinstance(node, ast.Assign) and is_night(node)
            for target in node.targets if isinstance(target, ast.Name)
        }  # fmt: skip
        for node in tree.body:  # fixtures stand above those that use them
            if isinstance(node, ast.FunctionDef):
                names = {each.id for part in node.decorator_list for each in ast.walk(part) if isinstance(each, ast.Name)}
                names |= {"pytestmark"} | {argument.arg for argument in node.args.args}
                if names & marked or any(map(is_night, node.decorator_list)):
                    marked.add(node.name)
                    if node.name.startswith("test_"):
                        found.append(f"{path.relative_to(tests.parent).as_posix()}::{node.name}")
    return found


def ran(record: Path = RECORD) -> dict[str, tuple[str, dict[str, str]]]:
    """By `path::function`: the date of the last run that met it, and how each of its cases ended."""
    found: dict[str, tuple[str, dict[str, str]]] = {}
    for line in record.read_text(encoding="utf-8").splitlines() if record.exists() else ():
        run: dict[str, Any] = json.loads(line)
        cases: dict[str, dict[str, str]] = {}
        for name, outcome in run["night"].items():
            cases.setdefault(name.partition("[")[0], {})[name] = outcome
        found |= {name: (run["date"], each) for name, each in cases.items()}
    return found


def main() -> None:
    known = ran()
    for name in night_tests():
        date, cases = known.get(name, ("never", {}))
        bad = [case for case, outcome in cases.items() if not outcome.startswith("passed")]
        print(f"{date:>10}  {name}  {len(cases)} cases" + (f", NOT PASSED: {', '.join(bad)}" if bad else ""))


if __name__ == "__main__":
    main()
