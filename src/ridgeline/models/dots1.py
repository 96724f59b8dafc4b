"""dots.llm1. Huo et al. 2025, "dots.llm1 Technical Report": heads are normalised, experts chosen by sigmoids and a bias."""

from ridgeline.models.declare import (
    ATTENTION,
    ATTENTION_BIASES,
    CORRECTION,
    EXPERT_NAMES,
    EXPERTS,
    GATED_FFN,
    HEAD_NORM_NAMES,
    HEAD_NORMS,
    LAYER_NAMES,
    SHARED_EXPERT_NAMES,
    SHARED_EXPERTS,
    UNTIED,
    Architecture,
    TensorNames,
)
from ridgeline.models.decoder import step

__all__ = ["ARCHITECTURE", "step"]

ARCHITECTURE = Architecture(
    model_types=("dots1",),
    tensors=(*ATTENTION, *HEAD_NORMS, GATED_FFN[0]),
    parts={"dense": GATED_FFN[1:], "sparse": (*EXPERTS, CORRECTION, *SHARED_EXPERTS)},
    defaults={
        **UNTIED,
        "use_sliding_window": False,
        "max_window_layers": 62,
        "first_k_dense_replace": 0,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": False,
        "routed_scaling_factor": 1.0,
    },
    checkpoint=TensorNames({**LAYER_NAMES, **HEAD_NORM_NAMES, **EXPERT_NAMES, **SHARED_EXPERT_NAMES}),
    biases=ATTENTION_BIASES,
    routing={"scores": "sigmoid", "group_score": "top2", "bias_selects": True, "normalise": True},
)
