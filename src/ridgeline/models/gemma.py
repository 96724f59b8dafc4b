"""Gemma, planned only. Gemma Team 2024, "Gemma: Open Models Based on Gemini Research and Technology"."""

from ridgeline.models.declare import ATTENTION, ATTENTION_BIASES, GATED_FFN, TIED, Architecture

ARCHITECTURE = Architecture(
    model_types=("gemma",), tensors=(*ATTENTION, *GATED_FFN), defaults={**TIED, "head_dim": 256}, biases=ATTENTION_BIASES
)
