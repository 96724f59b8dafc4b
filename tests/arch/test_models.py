"""Model files are declarations: semantic ops on handles, no arrays, nothing fused or quantised, nothing of the engine."""

import ast
from pathlib import Path

import pytest

from ridgeline.compute.ops.table import OPS
from ridgeline.models.table import RUNNABLE

MODELS = Path(__file__).resolve().parents[2] / "src" / "ridgeline" / "models"
FILES = [path for path in sorted(MODELS.glob("*.py")) if path.stem in RUNNABLE or path.stem == "decoder"]
SHARED = "ridgeline.models.decoder"
MAY_IMPORT = {"__future__", "typing", "ridgeline.models.declare", SHARED}
MAY_NAME = {"ridgeline.compute.graph", "ridgeline.facts.model"}
"""Types, imported for the type checker alone."""
MAY_RECORD = {name for name, definition in OPS.items() if definition.semantic} | {"tap"}


def recorded(tree: ast.Module) -> set[str]:
    """Names of the methods called on the recorder, which model files call `g`."""
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return {f.attr for f in calls if isinstance(f, ast.Attribute) and isinstance(f.value, ast.Name) and f.value.id == "g"}


def imported(tree: ast.Module) -> set[str]:
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    return names | {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_model_files_declare(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert imported(tree) <= MAY_IMPORT | MAY_NAME
    assert imported(ast.Module([node for node in tree.body if not isinstance(node, ast.If)], [])) <= MAY_IMPORT
    assert recorded(tree) <= MAY_RECORD
    assert {"embed", "linear", "attention", "kv_write"} <= recorded(tree) or SHARED in imported(tree)


def test_a_fused_op_or_an_array_would_show() -> None:
    tree = ast.parse("import numpy as np\ndef step(g, facts, w):\n    return g.add_rms_norm(g.embed(np.zeros(3), w), 1)")
    assert "add_rms_norm" in recorded(tree) - MAY_RECORD
    assert "numpy" in imported(tree) - MAY_IMPORT
