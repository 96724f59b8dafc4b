"""Mixtral, planned only. Jiang et al. 2024, "Mixtral of Experts": a mixture in every layer."""

from ridgeline.models.declare import ATTENTION, EXPERTS, GATED, UNTIED, Architecture

ARCHITECTURE = Architecture(
    model_types=("mixtral",),
    tensors=(*ATTENTION, GATED[0]),
    parts={"dense": GATED[1:], "sparse": EXPERTS},
    defaults={**UNTIED, "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": None},
    windowed=("config",),
)
