"""Checkpoints of heads that draft for another model, known by their config.json: they are no models of their own, and refused by name."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ridgeline.errors import ConfigError
from ridgeline.facts.files.json_file import read_object


def check_drafts_alone(directory: Path) -> None:
    """Raises ConfigError where the checkpoint has heads that read another model's hidden states. GGUF files have none."""
    file = directory / "config.json"
    kind = _kind(read_object(file)) if file.is_file() else None
    if kind is not None:
        raise ConfigError(
            f"--draft-model {str(directory)!r:.200} has {kind} heads, which read hidden states of the model that they were trained with; "
            "no runner keeps these from step to step. Give a small model of the same tokens, or draft from what repeats",
            fix={"--draft-model": None, "--speculative": "suffix"},
        )


def _kind(config: Mapping[str, Any]) -> str | None:
    """The name of the heads; None for a model of its own."""
    given = config.get("architectures")
    named = [config.get("model_type"), config.get("speculators_model_type"), *(given if isinstance(given, list) else ())]
    words = " ".join(each.lower() for each in named if isinstance(each, str))
    if "medusa_num_heads" in config or "medusa" in words:
        return "Medusa"
    if "eagle" in words or "draft_vocab_size" in config:
        return "EAGLE"
    if "mlp_speculator" in words:
        return "MLP speculator"
    return "MTP" if "mtp" in words or "nextn" in words else None
