"""Mixtral. Jiang et al. 2024, "Mixtral of Experts": a mixture in every layer. GGUF files of it call themselves llama."""

from ridgeline.models.declare import ATTENTION, EXPERTS, GATED_FFN, LAYER_NAMES, UNTIED, Architecture, TensorNames
from ridgeline.models.decoder import step

__all__ = ["ARCHITECTURE", "step"]

ARCHITECTURE = Architecture(
    model_types=("mixtral",),
    tensors=(*ATTENTION, GATED_FFN[0]),
    parts={"dense": GATED_FFN[1:], "sparse": EXPERTS},
    defaults={**UNTIED, "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": None},
    checkpoint=TensorNames(
        {
            **LAYER_NAMES,
            "block_sparse_moe.gate": ("ffn_gate_inp",),
            "block_sparse_moe.experts.*.w1": ("ffn_gate_exps",),
            "block_sparse_moe.experts.*.w3": ("ffn_up_exps",),
            "block_sparse_moe.experts.*.w2": ("ffn_down_exps",),
        }
    ),
    windows_everywhere=("config",),
    routing={"normalise": True},
)
