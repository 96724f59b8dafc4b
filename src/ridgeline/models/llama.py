"""Llama 2 and 3, and what shares their network (SmolLM). Touvron et al. 2023, "Llama 2"; Llama Team 2024.

Projections have a bias where the checkpoint has one.
"""

from ridgeline.models.declare import ATTENTION, ATTENTION_BIASES, DECODER_NAMES, EXPERTS, GATED_FFN, MLP_BIASES, UNTIED, Architecture
from ridgeline.models.decoder import step

__all__ = ["ARCHITECTURE", "step"]

ARCHITECTURE = Architecture(
    model_types=("llama",),
    tensors=(*ATTENTION, GATED_FFN[0]),
    parts={"dense": GATED_FFN[1:], "sparse": EXPERTS},  # files of Mixtral call themselves llama
    defaults=UNTIED,
    checkpoint=DECODER_NAMES,
    biases={**ATTENTION_BIASES, **MLP_BIASES},
    interleaved=("attn_q", "attn_k"),
    rope_tensors=("rope_freqs",),
    windows_everywhere=("gguf",),  # as do those of Mistral
    routing={"normalise": True},
    least_rope_bases=((8_192, 128_000, 1e5),),
)
