"""The files for Ray Serve fit the code here, without Ray: what they take from it exists, and is called with arguments that it has."""

import ast
import importlib
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
FILES = ("ray_serve.py", "ray_routing.py")


def imported(tree: ast.AST) -> dict[str, Any]:
    """Names that a module has from this package. Raises AttributeError for one that is not there."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ridgeline"):
            module = importlib.import_module(node.module or "")
            found |= {alias.asname or alias.name: getattr(module, alias.name) for alias in node.names}
    return found


def calls(tree: ast.AST, known: dict[str, Any]) -> Iterator[tuple[ast.Call, Callable[..., Any]]]:
    """Calls of these names, and of attributes of theirs."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            parts, at = list[str](), node.func
            while isinstance(at, ast.Attribute):
                parts.append(at.attr)
                at = at.value
            if isinstance(at, ast.Name) and at.id in known:
                called = known[at.id]
                for part in reversed(parts):
                    called = getattr(called, part)
                yield node, called


def wrong_calls(source: str) -> tuple[int, list[str]]:
    """(number of calls, those whose arguments do not fit)."""
    tree, wrong, count = ast.parse(source), list[str](), 0
    for node, called in calls(tree, imported(tree)):
        count += 1
        starred = any(isinstance(each, ast.Starred) for each in node.args) or any(each.arg is None for each in node.keywords)
        try:
            signature = inspect.signature(called)
            bind = signature.bind_partial if starred else signature.bind
            plain = [each for each in node.args if not isinstance(each, ast.Starred)]
            bind(*plain, **{each.arg: each.value for each in node.keywords if each.arg})
        except TypeError as error:
            wrong.append(f"line {node.lineno}: {ast.unparse(node.func)}: {error}")
    return count, wrong


@pytest.mark.parametrize("name", FILES)
def test_what_they_call_is_there(name: str) -> None:
    count, wrong = wrong_calls((DEPLOY / name).read_text())
    assert count >= 4 and not wrong


def test_a_call_that_does_not_fit_is_found() -> None:
    source = "from ridgeline.router.prompts import Prompt, read_prompt\nread_prompt('/', b'')\nPrompt(*x)\nPrompt(1, (), nothing=2)"
    assert len(wrong_calls(source)[1]) == 2
    with pytest.raises(AttributeError):
        imported(ast.parse("from ridgeline.router.prompts import read_prompts"))


def test_attributes_of_our_objects_exist() -> None:
    """Of those whose class is told by how they are made here: `self._roster`, `self._chooser`, `journal`."""
    from ridgeline.router.chooser import Chooser, LoadShare
    from ridgeline.router.journal import Journal
    from ridgeline.server.several.roster import Roster

    asked: dict[str, set[str]] = {}
    for name in FILES:
        for node in ast.walk(ast.parse((DEPLOY / name).read_text())):
            if isinstance(node, ast.Attribute):
                owner = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
                asked.setdefault(owner.lstrip("_"), set()).add(node.attr)
    for owner, cls in {"roster": Roster, "chooser": Chooser, "share": LoadShare, "journal": Journal}.items():
        own = set(dir(cls)) | {each.attr for each in ast.walk(ast.parse(inspect.getsource(cls))) if isinstance(each, ast.Attribute)}
        assert asked[owner] <= own, owner
