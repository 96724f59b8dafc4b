"""Ridgeline: an LLM inference engine and server that explains itself. Public names load on first use."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ridgeline.core.params import SamplingParams, StructuredOutputs, StructuredOutputsParams, Vote
    from ridgeline.engine.adapters import LoRARequest
    from ridgeline.engine.beams import BeamSearchParams
    from ridgeline.engine.llm import LLM
    from ridgeline.engine.pooled import PoolingParams

__version__ = "0.1.0"
__all__ = [
    "LLM", "BeamSearchParams", "LoRARequest", "PoolingParams", "SamplingParams", "StructuredOutputs", "StructuredOutputsParams",
    "Vote", "__version__",
]  # fmt: skip

_HOMES = {
    "LLM": "ridgeline.engine.llm",
    "BeamSearchParams": "ridgeline.engine.beams",
    "LoRARequest": "ridgeline.engine.adapters",
    "PoolingParams": "ridgeline.engine.pooled",
    "SamplingParams": "ridgeline.core.params",
    "StructuredOutputs": "ridgeline.core.params",
    "StructuredOutputsParams": "ridgeline.core.params",
    "Vote": "ridgeline.core.params",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ridgeline' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
