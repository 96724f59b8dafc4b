"""What files leave out, as data: one row an architecture. The only place outside `compute/models` that names model families."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Architecture:
    """Supplements to a header.

    pattern            every `pattern`-th layer attends to everything, the others to a window; 1: all are full (a file may say otherwise)
    window_rope_base   RoPE base of window layers where the file does not say; None: the same as the full layers'
    tensors            per layer: (name, rows, columns), each the name of a dimension; columns "" for a vector
    neutral            keys that change the network in ways that are not computed, and the only value that leaves it as it is
    """

    pattern: int
    window_rope_base: float | None
    tensors: tuple[tuple[str, str, str], ...]
    neutral: tuple[tuple[str, float | str], ...]


ARCHITECTURES = {
    "gemma3": Architecture(
        pattern=6,
        window_rope_base=10_000.0,
        tensors=(
            ("attn_norm", "hidden", ""),
            ("attn_q", "queries", "hidden"),
            ("attn_k", "keys", "hidden"),
            ("attn_v", "keys", "hidden"),
            ("attn_q_norm", "head", ""),
            ("attn_k_norm", "head", ""),
            ("attn_output", "hidden", "queries"),
            ("post_attention_norm", "hidden", ""),
            ("ffn_norm", "hidden", ""),
            ("ffn_gate", "ffn", "hidden"),
            ("ffn_up", "ffn", "hidden"),
            ("ffn_down", "hidden", "ffn"),
            ("post_ffw_norm", "hidden", ""),
        ),
        neutral=(
            ("rope.scaling.type", "none"),
            ("rope.scaling.factor", 1.0),
            ("attn_logit_softcapping", 0.0),
            ("final_logit_softcapping", 0.0),
        ),
    ),
}
