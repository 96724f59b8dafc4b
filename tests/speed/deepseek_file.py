"""A GGUF file of DeepSeek-V2-Lite's shape with random weights, for `tests/speed/experts.py`: its texts mean nothing.

    python tests/speed/deepseek_file.py OUT.gguf [--layers 27]

Types are those of published Q4_K_M files: Q4_K; Q6_K of the head and the embedding; Q8_0 where a row is no multiple of 256, which are what
experts' down projections and keys read from the latent are. 27 layers take 11 GB; llama.cpp knows the Lite
model by 26 or 27 of them. Asked of `experts.py` with this file: 1 stream ≥ 1.3 ×, 16 streams ≥ 2.0 ×, prompt ≥ 1.6 × llama.cpp's.
"""

from argparse import ArgumentParser

from gguf import ExpertGatingFuncType
from random_file import RandomFile

HIDDEN, HEADS, LATENT, ROTARY, PLAIN, VALUE = 2048, 16, 512, 64, 128, 128
DENSE, FFN, EXPERTS, USED, SHARED, CONTEXT, VOCAB = 10_944, 1408, 64, 6, 2, 163_840, 102_400


def write(path: str, layers: int) -> None:
    file = RandomFile(
        path, "deepseek2", layers=layers, hidden=HIDDEN, ffn=DENSE, heads=HEADS, kv_heads=1, context=CONTEXT, base=1e4, eps=1e-6
    )
    file.experts(EXPERTS, USED, FFN)
    file.vocabulary(VOCAB)
    writer = file.writer
    writer.add_vocab_size(VOCAB)
    writer.add_kv_lora_rank(LATENT)
    writer.add_key_length(LATENT + ROTARY)
    writer.add_value_length(LATENT)
    writer.add_key_length_mla(PLAIN + ROTARY)
    writer.add_value_length_mla(VALUE)
    writer.add_rope_dimension_count(ROTARY)
    writer.add_leading_dense_block_count(1)
    writer.add_expert_shared_count(SHARED)
    writer.add_expert_gating_func(ExpertGatingFuncType.SOFTMAX)
    writer.add_expert_weights_scale(1.0)
    writer.add_expert_weights_norm(False)
    file.matrix("token_embd", VOCAB, HIDDEN, "Q6_K")
    file.matrix("output", VOCAB, HIDDEN, "Q6_K")
    file.constant("output_norm", HIDDEN)
    for layer in range(layers):
        place = f"blk.{layer}."
        for name, size in (("attn_norm", HIDDEN), ("ffn_norm", HIDDEN), ("attn_kv_a_norm", LATENT)):
            file.constant(f"{place}{name}", size)
        file.matrix(f"{place}attn_q", HEADS * (PLAIN + ROTARY), HIDDEN)
        file.matrix(f"{place}attn_kv_a_mqa", LATENT + ROTARY, HIDDEN)
        file.matrix(f"{place}attn_k_b", LATENT, PLAIN, experts=HEADS)
        file.matrix(f"{place}attn_v_b", VALUE, LATENT, experts=HEADS)
        file.matrix(f"{place}attn_output", HIDDEN, HEADS * VALUE)
        for suffix, ffn, experts in [("_exps", FFN, EXPERTS), ("_shexp", SHARED * FFN, 0)] if layer else [("", DENSE, 0)]:
            file.matrix(f"{place}ffn_gate{suffix}", ffn, HIDDEN, experts=experts)
            file.matrix(f"{place}ffn_up{suffix}", ffn, HIDDEN, experts=experts)
            file.matrix(f"{place}ffn_down{suffix}", HIDDEN, ffn, experts=experts)
        if layer:
            file.normal(f"{place}ffn_gate_inp.weight", EXPERTS, HIDDEN, size=HIDDEN**-0.5)
    file.finish()


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out")
    parser.add_argument("--layers", type=int, default=27)
    options = parser.parse_args()
    write(options.out, options.layers)
