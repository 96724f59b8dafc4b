"""OLMoE. Muennighoff et al. 2024, "OLMoE: Open Mixture-of-Experts Language Models": queries and keys are normalised whole."""

from ridgeline.models.declare import (
    ATTENTION,
    ATTENTION_BIASES,
    EXPERT_NAMES,
    EXPERTS,
    GATED_FFN,
    HEAD_NORM_NAMES,
    LAYER_NAMES,
    UNTIED,
    Architecture,
    TensorNames,
)
from ridgeline.models.decoder import step

__all__ = ["ARCHITECTURE", "step"]

ARCHITECTURE = Architecture(
    model_types=("olmoe",),
    tensors=(*ATTENTION, ("attn_q_norm", "queries"), ("attn_k_norm", "keys"), GATED_FFN[0]),
    parts={"dense": GATED_FFN[1:], "sparse": EXPERTS},
    defaults={**UNTIED, "rms_norm_eps": 1e-5, "num_experts": 64, "num_experts_per_tok": 8, "norm_topk_prob": False},
    required_config=(("clip_qkv", None),),
    checkpoint=TensorNames({**LAYER_NAMES, **HEAD_NORM_NAMES, **EXPERT_NAMES}),
    biases=ATTENTION_BIASES,
)
