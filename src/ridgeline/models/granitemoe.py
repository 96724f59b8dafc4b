"""Granite 3 with experts. IBM 2024, "Granite 3.0 Language Models": factors on embeddings, residuals, scores and logits."""

from ridgeline.models.declare import ATTENTION, ATTENTION_BIASES, EXPERTS, GATED_FFN, LAYER_NAMES, UNTIED, Architecture, TensorNames
from ridgeline.models.decoder import step

__all__ = ["ARCHITECTURE", "step"]

ARCHITECTURE = Architecture(
    model_types=("granitemoe",),
    tensors=(*ATTENTION, GATED_FFN[0]),
    parts={"dense": GATED_FFN[1:], "sparse": EXPERTS},
    defaults={
        **UNTIED,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "embedding_multiplier": 1.0,
        "residual_multiplier": 1.0,
        "attention_multiplier": 1.0,
        "logits_scaling": 1.0,
    },
    checkpoint=TensorNames(
        {
            **LAYER_NAMES,
            "block_sparse_moe.router.layer": ("ffn_gate_inp",),
            "block_sparse_moe.input_linear": ("ffn_gate_exps", "ffn_up_exps"),
            "block_sparse_moe.output_linear": ("ffn_down_exps",),
        }
    ),
    biases=ATTENTION_BIASES,
    interleaved=("attn_q", "attn_k"),
    routing={"scores": "softmax_chosen"},
)
