"""`ridgeline merge BASE ADAPTER OUT`: a checkpoint with a LoRA adapter merged into it."""

import importlib
from pathlib import Path
from typing import Annotated

import typer

from ridgeline.config.env import model_stores
from ridgeline.facts.hub.source import resolve_model

MERGE_MODULE = "ridgeline.compute.adapters.merge"


def merge(
    base: Annotated[str, typer.Argument(help="A checkpoint: a folder of safetensors files, or a name of the hub.")],
    adapter: Annotated[Path, typer.Argument(help="A folder of PEFT's, or a GGUF file of an adapter.")],
    out: Annotated[Path, typer.Argument(help="The folder to write, which is not there yet.")],
) -> None:
    """Write a checkpoint with a LoRA adapter merged into it, in the types of its matrices."""
    count = importlib.import_module(MERGE_MODULE).merge(resolve_model(base, model_stores()), adapter, out)
    print(f"{out}: {count} matrices changed")
