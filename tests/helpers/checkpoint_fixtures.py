"""Tiny checkpoints, each made once a session, when a test first asks for it."""

from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoints import Checkpoint, make_checkpoint
from convert import write_gguf


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Checkpoint]:
    """By the name of a recipe: transformers' model and its directory."""
    made: dict[str, Checkpoint] = {}

    def of(name: str) -> Checkpoint:
        if name not in made:
            made[name] = make_checkpoint(name, tmp_path_factory.mktemp(name))
        return made[name]

    return of


@pytest.fixture(scope="session")
def stored(checkpoint: Callable[[str], Checkpoint]) -> Callable[[str, str], Path]:
    """By the name of a recipe and "safetensors", "F32" or "Q8_0": where a model of these weights lies."""

    def of(name: str, form: str) -> Path:
        made = checkpoint(name)
        if form == "safetensors":
            return made.directory
        path = made.directory / f"{form}.gguf"
        return path if path.exists() else write_gguf(path, made.model, made.recipe.gguf, form)

    return of
