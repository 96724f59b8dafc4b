"""A GGUF file of DeepSeek-V2-Lite's shape with random weights, for `tests/speed/experts.py`: its texts mean nothing.

    python tests/speed/deepseek_file.py OUT.gguf [--layers 27]

Types are those of published Q4_K_M files: Q4_K; Q6_K of the head and the embedding; Q8_0 where a row is no multiple of 256, which are what
experts' down projections and keys read from the latent are. 27 layers take 11 GB; llama.cpp knows
the Lite model by 26 or 27 of them. Asked of `experts.py` with this file: 1
stream ≥ 1.3 ×, 16 streams ≥ 2.0 ×, prompt ≥ 1.6 × llama.cpp's.
"""

from argparse import ArgumentParser

import numpy as np
from gguf import ExpertGatingFuncType, GGMLQuantizationType, GGUFWriter
from gpt_oss_file import q8_0
from llama_file import RANDOM, add_vocabulary, finish, q4_k, q6_k

HIDDEN, HEADS, LATENT, ROTARY, PLAIN, VALUE = 2048, 16, 512, 64, 128, 128
DENSE, FFN, EXPERTS, USED, SHARED, CONTEXT, VOCAB = 10_944, 1408, 64, 6, 2, 163_840, 102_400


def write(path: str, layers: int) -> None:
    writer = GGUFWriter(path, "deepseek2")
    writer.add_name("deepseek random")
    writer.add_vocab_size(VOCAB)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(DENSE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10_000.0)
    writer.add_kv_lora_rank(LATENT)
    writer.add_key_length(LATENT + ROTARY)
    writer.add_value_length(LATENT)
    writer.add_key_length_mla(PLAIN + ROTARY)
    writer.add_value_length_mla(VALUE)
    writer.add_rope_dimension_count(ROTARY)
    writer.add_leading_dense_block_count(1)
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(USED)
    writer.add_expert_shared_count(SHARED)
    writer.add_expert_feed_forward_length(FFN)
    writer.add_expert_gating_func(ExpertGatingFuncType.SOFTMAX)
    writer.add_expert_weights_scale(1.0)
    writer.add_expert_weights_norm(False)
    writer.add_file_type(15)
    add_vocabulary(writer, VOCAB)

    def matrix(name: str, rows: int, columns: int, fine: bool = False, times: int = 1) -> None:
        kind, blocks = (GGMLQuantizationType.Q6_K, q6_k) if fine else (GGMLQuantizationType.Q4_K, q4_k)
        if columns % 256:
            kind, blocks = GGMLQuantizationType.Q8_0, q8_0
        codes = blocks(times * rows, columns)
        writer.add_tensor(f"{name}.weight", codes.reshape(times, rows, -1) if times > 1 else codes, raw_dtype=kind)

    def ones(name: str, size: int) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(size, np.float32))

    matrix("token_embd", VOCAB, HIDDEN, fine=True)
    matrix("output", VOCAB, HIDDEN, fine=True)
    ones("output_norm", HIDDEN)
    for layer in range(layers):
        place = f"blk.{layer}."
        ones(f"{place}attn_norm", HIDDEN)
        ones(f"{place}ffn_norm", HIDDEN)
        ones(f"{place}attn_kv_a_norm", LATENT)
        matrix(f"{place}attn_q", HEADS * (PLAIN + ROTARY), HIDDEN)
        matrix(f"{place}attn_kv_a_mqa", LATENT + ROTARY, HIDDEN)
        matrix(f"{place}attn_k_b", LATENT, PLAIN, times=HEADS)
        matrix(f"{place}attn_v_b", VALUE, LATENT, times=HEADS)
        matrix(f"{place}attn_output", HIDDEN, HEADS * VALUE)
        parts = [("", DENSE, 1)] if layer == 0 else [("_exps", FFN, EXPERTS), ("_shexp", SHARED * FFN, 1)]
        for suffix, ffn, times in parts:
            matrix(f"{place}ffn_gate{suffix}", ffn, HIDDEN, times=times)
            matrix(f"{place}ffn_up{suffix}", ffn, HIDDEN, times=times)
            matrix(f"{place}ffn_down{suffix}", HIDDEN, ffn, times=times)
        if layer:
            router = RANDOM.standard_normal((EXPERTS, HIDDEN)) * HIDDEN**-0.5
            writer.add_tensor(f"{place}ffn_gate_inp.weight", router.astype(np.float32))
    finish(writer)


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out")
    parser.add_argument("--layers", type=int, default=27)
    options = parser.parse_args()
    write(options.out, options.layers)
