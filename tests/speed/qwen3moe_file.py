"""A GGUF file of 8.2 billion weights, 1.4 of them for a token, in Qwen3-MoE's layers, random, for `tests/speed/experts.py`.

    python tests/speed/qwen3moe_file.py OUT.gguf [--layers 24]

Q4_K, with Q6_K of the head, the embedding and the sensitive matrices of every second layer, as published Q4_K_M files have them. 24 layers
take 5.1 GB and half a minute. Asked of `experts.py` with this file: 1 stream ≥ 1.6 ×, 16 streams ≥ 2.5 ×, prompt ≥ 2.0 × llama.cpp's.
"""

from argparse import ArgumentParser

from random_file import RandomFile

HIDDEN, HEADS, KV_HEADS, HEAD, FFN, EXPERTS, USED, CONTEXT, VOCAB = 2048, 32, 4, 128, 768, 64, 8, 32_768, 128_256


def write(path: str, layers: int) -> None:
    file = RandomFile(
        path, "qwen3moe", layers=layers, hidden=HIDDEN, ffn=FFN, heads=HEADS, kv_heads=KV_HEADS, context=CONTEXT, base=1e6, eps=1e-6
    )
    file.heads_of(HEAD)
    file.experts(EXPERTS, USED, FFN)
    file.vocabulary(VOCAB)
    file.matrix("token_embd", VOCAB, HIDDEN, "Q6_K")
    file.matrix("output", VOCAB, HIDDEN, "Q6_K")
    file.constant("output_norm", HIDDEN)
    for layer in range(layers):
        place, sensitive = f"blk.{layer}.", "Q4_K" if layer % 2 else "Q6_K"
        for name, size in (("attn_norm", HIDDEN), ("ffn_norm", HIDDEN), ("attn_q_norm", HEAD), ("attn_k_norm", HEAD)):
            file.constant(f"{place}{name}", size)
        file.matrix(f"{place}attn_q", HEADS * HEAD, HIDDEN)
        file.matrix(f"{place}attn_k", KV_HEADS * HEAD, HIDDEN)
        file.matrix(f"{place}attn_v", KV_HEADS * HEAD, HIDDEN, sensitive)
        file.matrix(f"{place}attn_output", HIDDEN, HEADS * HEAD)
        file.normal(f"{place}ffn_gate_inp.weight", EXPERTS, HIDDEN, size=HIDDEN**-0.5)
        file.matrix(f"{place}ffn_gate_exps", FFN, HIDDEN, experts=EXPERTS)
        file.matrix(f"{place}ffn_up_exps", FFN, HIDDEN, experts=EXPERTS)
        file.matrix(f"{place}ffn_down_exps", HIDDEN, FFN, sensitive, experts=EXPERTS)
    file.finish()


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out")
    parser.add_argument("--layers", type=int, default=24)
    options = parser.parse_args()
    write(options.out, options.layers)
