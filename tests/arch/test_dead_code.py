"""Nothing in the package is without a user; the list of what is used unseen only shrinks."""

from fnmatch import fnmatch
from pathlib import Path

import pytest
from dead_code import ALLOWED, Finding, findings, native, unused


@pytest.fixture(scope="module")
def found() -> list[Finding]:
    return findings()


def test_nothing_is_without_a_user(found: list[Finding]) -> None:
    assert not [str(each) for each in unused(found)]


def test_what_is_allowed_is_found(found: list[Finding]) -> None:
    assert not [pattern for pattern in ALLOWED if not any(fnmatch(each.key, pattern) for each in found)]


TEXT = """
from typing import Literal
Word = Literal["said", "unsaid"]
LEFT = 1
def used(a, b):
    return a
    print(a)
def unused(): pass
class Kept:
    read: int
    unread: int
    def called(self): return self.read
    def uncalled(self): self.stored = 1
class Matched: pass
def main(x):
    match x:
        case Matched(): pass
    return Kept(1, 2).called(), used(1, 2), "said"
main(1)
"""


@pytest.mark.parametrize(
    "name",
    ["'unsaid'", "LEFT", "used(b)", "unused", "code", "Kept.unread", "Kept.uncalled", "stored", "Matched (never made)", "Word"],
)
def test_each_kind_is_found(tmp_path: Path, name: str) -> None:
    (tmp_path / "some.py").write_text(TEXT)
    found = {each.name for each in findings(tmp_path)}
    assert name in found
    assert not found & {"'said'", "used", "used(a)", "main", "Kept", "Kept.read", "Kept.called", "Kept (never made)"}


def test_native_definitions_are_found(tmp_path: Path) -> None:
    (tmp_path / "some.cpp").write_text(
        "constexpr int kUnused = 1;\nconstexpr int kUsed = 2;\nstruct Unmade { int x; };\n"
        "void uncalled(int x) {\n}\nint called() { return kUsed; }\nint main() { std::sort_of([] { }); return called(); }  // kUnused\n"
    )
    assert {each.name for each in native(tmp_path)} == {"kUnused", "Unmade", "uncalled"}
