"""A GGUF file of 8.2 billion weights, 1.4 of them for a token, in Qwen3-MoE's layers, random, for `tests/speed/experts.py`.

    python tests/speed/qwen3moe_file.py OUT.gguf [--layers 24]

Q4_K, with Q6_K of the head, the embedding and the sensitive matrices of every second layer, as published Q4_K_M files have them. 24 layers
take 5.1 GB and half a minute. Asked of `experts.py` with this file: 1 stream ≥ 1.6 ×, 16 streams ≥ 2.5 ×, prompt ≥ 2.0 × llama.cpp's.
"""

from argparse import ArgumentParser

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from llama_file import RANDOM, VOCAB, add_vocabulary, finish, q4_k, q6_k

HIDDEN, HEADS, KV_HEADS, HEAD, FFN, EXPERTS, USED, CONTEXT = 2048, 32, 4, 128, 768, 64, 8, 32_768


def write(path: str, layers: int) -> None:
    writer = GGUFWriter(path, "qwen3moe")
    writer.add_name("qwen3moe random")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(USED)
    writer.add_expert_feed_forward_length(FFN)
    writer.add_file_type(15)
    add_vocabulary(writer, VOCAB)

    def matrix(name: str, rows: int, columns: int, fine: bool = False, times: int = 1) -> None:
        kind = GGMLQuantizationType.Q6_K if fine else GGMLQuantizationType.Q4_K
        codes = (q6_k if fine else q4_k)(times * rows, columns)
        writer.add_tensor(f"{name}.weight", codes.reshape(times, rows, -1) if times > 1 else codes, raw_dtype=kind)

    def ones(name: str, size: int) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(size, np.float32))

    matrix("token_embd", VOCAB, HIDDEN, fine=True)
    matrix("output", VOCAB, HIDDEN, fine=True)
    ones("output_norm", HIDDEN)
    for layer in range(layers):
        place, fine = f"blk.{layer}.", layer % 2 == 0
        for name, size in (("attn_norm", HIDDEN), ("ffn_norm", HIDDEN), ("attn_q_norm", HEAD), ("attn_k_norm", HEAD)):
            ones(f"{place}{name}", size)
        matrix(f"{place}attn_q", HEADS * HEAD, HIDDEN)
        matrix(f"{place}attn_k", KV_HEADS * HEAD, HIDDEN)
        matrix(f"{place}attn_v", KV_HEADS * HEAD, HIDDEN, fine)
        matrix(f"{place}attn_output", HIDDEN, HEADS * HEAD)
        matrix(f"{place}ffn_gate_exps", FFN, HIDDEN, times=EXPERTS)
        matrix(f"{place}ffn_up_exps", FFN, HIDDEN, times=EXPERTS)
        matrix(f"{place}ffn_down_exps", HIDDEN, FFN, fine, times=EXPERTS)
        router = RANDOM.standard_normal((EXPERTS, HIDDEN)) * HIDDEN**-0.5
        writer.add_tensor(f"{place}ffn_gate_inp.weight", router.astype(np.float32))
    finish(writer)


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out")
    parser.add_argument("--layers", type=int, default=24)
    options = parser.parse_args()
    write(options.out, options.layers)
