"""Models of a known shape whose weights are chance: `random:NAME`. For measurements, whose speed does not depend on the weights.

Owns the prefix and what such a model is. A text of it is its bytes: there is no vocabulary.
"""

from dataclasses import replace
from pathlib import Path
from typing import Final

from ridgeline.errors import ModelNotFoundError
from ridgeline.facts.headers.checkpoint import facts_of_config
from ridgeline.facts.headers.describe import KNOWN, known_names
from ridgeline.facts.model import ModelFacts

RANDOM_PREFIX: Final = "random:"
"""A model named `random:llama-3-8b`, or `random:` and the path of a config.json, has weights that a GPU makes when it starts."""

BYTE_TOKENS: Final = 258
"""Ids of `text.tokenizer.ByteTokenizer`, by which its text is told."""


def config_of(model: str) -> Path:
    """The config.json of a known model, or at a path. Raises ModelNotFoundError."""
    if model.lower() in known_names():
        return KNOWN / f"{model.lower()}.json"
    path = Path(model).expanduser()
    path = path / "config.json" if path.is_dir() else path
    if path.suffix != ".json" or not path.is_file():
        raise ModelNotFoundError(f"{model!r:.200} is no config.json; give the path of one, or one of: {', '.join(known_names())}")
    return path.resolve()


def random_facts(model: str) -> ModelFacts:
    """Facts of what stands behind the prefix; no more ids are sampled than there are bytes. Raises ModelNotFoundError, ModelFormatError."""
    facts = facts_of_config(config_of(model.removeprefix(RANDOM_PREFIX)))
    return replace(facts, tokens=min(facts.tokens, BYTE_TOKENS))
