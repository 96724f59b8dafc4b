"""A GGUF file of gpt-oss-20b's shape with random weights, for `tests/speed/experts.py`: its texts mean nothing.

    python tests/speed/gpt_oss_file.py OUT.gguf --vocab VOCABULARY.gguf [--layers 8]

Experts are MXFP4, all other matrices Q8_0, as the published files have them. VOCABULARY is llama.cpp's `ggml-vocab-llama-bpe.gguf`, whose
128,256 ids stand for gpt-oss's 201,088. 24 layers take 13 GB, 8 take 5 GB. Asked of `experts.py` with this file: 1 stream ≥ 1.4 ×,
16 streams ≥ 2.0 ×, prompt ≥ 1.6 × llama.cpp's.
"""

from argparse import ArgumentParser

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, RopeScalingType
from llama_file import finish

HIDDEN, HEADS, KV_HEADS, HEAD, FFN, EXPERTS, USED, WINDOW, CONTEXT = 2880, 64, 8, 64, 2880, 32, 4, 128, 131_072
RANDOM = np.random.default_rng(0)


def q8_0(rows: int, columns: int) -> np.ndarray:
    """uint8 [rows, bytes of a row]: values of about the standard deviation columns^-½, so that activations stay near one."""
    blocks = RANDOM.integers(0, 256, (rows * columns // 32, 34), np.uint8)
    blocks[:, :2] = np.array([columns**-0.5 / 74], np.float16).view(np.uint8)
    return blocks.reshape(rows, -1)


def mxfp4(rows: int, columns: int) -> np.ndarray:
    blocks = RANDOM.integers(0, 256, (rows * columns // 32, 17), np.uint8)
    blocks[:, 0] = 127 + round(np.log2(columns**-0.5 / 2.9))
    return blocks.reshape(rows, -1)


def write(path: str, vocabulary: str, layers: int) -> None:
    writer = GGUFWriter(path, "gpt-oss")
    fields = GGUFReader(vocabulary).fields

    def texts(key: str) -> list[str]:
        return [bytes(fields[key].parts[i]).decode() for i in fields[key].data]

    tokens, types = texts("tokenizer.ggml.tokens"), fields["tokenizer.ggml.token_type"]
    writer.add_name("gpt-oss random")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_sliding_window(WINDOW)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(150_000.0)
    writer.add_rope_scaling_type(RopeScalingType.YARN)
    writer.add_rope_scaling_factor(32.0)
    writer.add_rope_scaling_orig_ctx_len(4096)
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(USED)
    writer.add_expert_feed_forward_length(FFN)
    writer.add_file_type(38)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list(tokens)
    writer.add_token_types([int(types.parts[i][0]) for i in types.data])
    writer.add_token_merges(texts("tokenizer.ggml.merges"))
    writer.add_bos_token_id(128_000)
    writer.add_eos_token_id(128_001)

    def matrix(name: str, rows: int, columns: int) -> None:
        writer.add_tensor(name, q8_0(rows, columns), raw_dtype=GGMLQuantizationType.Q8_0)

    def floats(name: str, *shape: int, size: float = 0.02, middle: float = 0.0) -> None:
        writer.add_tensor(name, (RANDOM.standard_normal(shape) * size + middle).astype(np.float32))

    matrix("token_embd.weight", len(tokens), HIDDEN)
    matrix("output.weight", len(tokens), HIDDEN)
    floats("output_norm.weight", HIDDEN, middle=1.0)
    for layer in range(layers):
        place = f"blk.{layer}."
        for norm in ("attn_norm", "post_attention_norm"):
            floats(f"{place}{norm}.weight", HIDDEN, middle=1.0)
        for name, rows, columns in (
            ("attn_q", HEADS * HEAD, HIDDEN),
            ("attn_k", KV_HEADS * HEAD, HIDDEN),
            ("attn_v", KV_HEADS * HEAD, HIDDEN),
            ("attn_output", HIDDEN, HEADS * HEAD),
        ):
            matrix(f"{place}{name}.weight", rows, columns)
            floats(f"{place}{name}.bias", rows)
        floats(f"{place}attn_sinks.weight", HEADS, size=1.0)
        floats(f"{place}ffn_gate_inp.weight", EXPERTS, HIDDEN, size=HIDDEN**-0.5)
        floats(f"{place}ffn_gate_inp.bias", EXPERTS)
        for name, rows, columns in (("gate", FFN, HIDDEN), ("up", FFN, HIDDEN), ("down", HIDDEN, FFN)):
            codes = mxfp4(EXPERTS * rows, columns).reshape(EXPERTS, rows, -1)
            writer.add_tensor(f"{place}ffn_{name}_exps.weight", codes, raw_dtype=GGMLQuantizationType.MXFP4)
            floats(f"{place}ffn_{name}_exps.bias", EXPERTS, rows)
    finish(writer)


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("out")
    parser.add_argument("--vocab", required=True)
    parser.add_argument("--layers", type=int, default=8)
    options = parser.parse_args()
    write(options.out, options.vocab, options.layers)
