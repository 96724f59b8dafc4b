"""Seams: every command has a sender and every event that crosses the process boundary a reader; no test needs files outside of the clone,
and each can fail."""

import ast
import re
from collections.abc import Iterator
from typing import get_args

from dead_code import SOURCE

from ridgeline.core import events
from ridgeline.core.commands import Command
from ridgeline.engine.messages import EVENT_TYPES

ROOT = SOURCE.parents[1]
TESTS = ROOT / "tests"
READERS = (
    "observe/metrics.py", "observe/ledger.py", "engine/streams.py", "engine/open_requests.py", "server/service.py", "server/blocks.py",
)  # fmt: skip
"""Files of the front end that read events."""
CHECKERS = ("sim/laws/order.py", "sim/laws/coverage.py")
Function = ast.FunctionDef | ast.AsyncFunctionDef


def calls_of(tree: ast.AST) -> set[str]:
    """Last names of everything that is called."""
    return {ast.unparse(node.func).rpartition(".")[2] for node in ast.walk(tree) if isinstance(node, ast.Call)}


def test_seam_every_command_has_a_sender() -> None:
    product = [path for path in SOURCE.rglob("*.py") if "sim" not in path.relative_to(SOURCE).parts and path.name != "commands.py"]
    made = set[str]().union(*(calls_of(ast.parse(path.read_text())) for path in product))
    kinds = {kind.__name__ for kind in get_args(Command)}
    assert kinds and not kinds - made


def test_seam_every_event_that_crosses_is_read() -> None:
    """The others are for listeners in the engine's process: the simulator's checks."""
    front, laws = ("".join((SOURCE / name).read_text() for name in names) for names in (READERS, CHECKERS))
    assert EVENT_TYPES
    for kind in get_args(events.Event):
        pattern = rf"(events\.|isinstance\(event, |type\(event\) is |case ){kind.__name__}\b|\b{kind.__name__}: self\._"
        is_read = re.search(pattern, front) is not None
        assert is_read == (kind in EVENT_TYPES), kind.__name__
        assert is_read or f"events.{kind.__name__}" in laws, kind.__name__


def test_seam_no_word_names_what_is_gone() -> None:
    gone = re.compile(r"\b(class Drain|class Clear)\b")
    assert gone.search("class Clear:")
    assert not [path for path in SOURCE.rglob("*.py") if gone.search(path.read_text())]


def test_seam_no_test_needs_files_outside_of_the_clone() -> None:
    """References are in tests/gold; a test whose path leaves the clone would skip or fail elsewhere."""
    climbs = re.compile(r"\.parents\[(\d+)\]")
    for path in TESTS.rglob("*.py"):
        above = [int(number) for number in climbs.findall(path.read_text())]
        assert max(above, default=0) < len(path.relative_to(ROOT).parts), path
        assert "shared/" + "gold" not in path.read_text(), path


def functions(trees: list[ast.Module]) -> Iterator[Function]:
    for tree in trees:
        yield from (node for node in ast.walk(tree) if isinstance(node, Function))


def asserts(function: Function) -> bool:
    """True if it can fail by itself."""
    called = [ast.unparse(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)]
    named = any(name.startswith(("pytest.raises", "pytest.fail", "np.testing.", "machine().runTest")) for name in called)
    return named or any(isinstance(node, ast.Assert | ast.Raise) for node in ast.walk(function))


def toothless(trees: list[ast.Module]) -> list[str]:
    """Tests that assert nothing, and call nothing and use no fixture that does."""
    every = list(functions(trees))
    able = {each.name for each in every if asserts(each)}
    uses = [(each.name, calls_of(each) | {a.arg for a in each.args.args}) for each in every if each.name not in able]
    while found := {name for name, used in uses if used & able} - able:
        able |= found
    return [each.name for each in every if each.name.startswith("test_") and each.name not in able]


def test_seam_every_test_can_fail() -> None:
    sample = ast.parse("def helper(): assert 1\ndef test_a(): helper()\ndef test_b(): print()\ndef test_c():\n  with pytest.raises(X): y()")
    assert toothless([sample]) == ["test_b"]
    assert toothless([ast.parse(path.read_text()) for path in TESTS.rglob("*.py")]) == []
