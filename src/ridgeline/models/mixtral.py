"""Mixtral, planned only. Jiang et al. 2024, "Mixtral of Experts": a mixture in every layer."""

from ridgeline.models.declare import ATTENTION, EXPERTS, GATED_FFN, UNTIED, Architecture

ARCHITECTURE = Architecture(
    model_types=("mixtral",),
    tensors=(*ATTENTION, GATED_FFN[0]),
    parts={"dense": GATED_FFN[1:], "sparse": EXPERTS},
    defaults={**UNTIED, "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": None},
    windows_everywhere=("config",),
)
