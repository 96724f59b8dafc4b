"""DeepSeek-V2 and V3, planned only. DeepSeek-AI 2024: K and V are a latent per token (MLA), and experts are many and shared."""

from ridgeline.models.declare import EXPERTS, GATED_FFN, SHARED_EXPERTS, UNTIED, Architecture

ARCHITECTURE = Architecture(
    model_types=("deepseek_v2", "deepseek_v3"),
    tensors=(
        ("attn_norm", "hidden"),
        ("attn_q", "plain_queries", "hidden"),
        ("attn_q_a", "query_rank", "hidden"),
        ("attn_q_a_norm", "query_rank"),
        ("attn_q_b", "latent_queries", "query_rank"),
        ("attn_kv_a_mqa", "cached", "hidden"),
        ("attn_kv_a_norm", "latent"),
        ("attn_kv_b", "expanded", "latent"),
        ("attn_output", "hidden", "values"),
        GATED_FFN[0],
    ),
    parts={"dense": GATED_FFN[1:], "sparse": (*EXPERTS, *SHARED_EXPERTS)},
    defaults={**UNTIED, "moe_layer_freq": 1, "first_k_dense_replace": 0},
)
