"""A GGUF file of gpt-oss-20b's shape with random weights, for `tests/speed/experts.py`: its texts mean nothing.

    python tests/speed/gpt_oss_file.py OUT.gguf --vocab VOCABULARY.gguf [--layers 8]

Experts are MXFP4, all other matrices Q8_0, as the published files have them. VOCABULARY is llama.cpp's `ggml-vocab-llama-bpe.gguf`, whose
128,256 ids stand for gpt-oss's 201,088. 24 layers take 13 GB, 8 take 5 GB. Asked of `experts.py` with this file: 1 stream ≥ 1.4 ×,
16 streams ≥ 2.0 ×, prompt ≥ 1.6 × llama.cpp's.
"""

from argparse import ArgumentParser

import numpy as np
from gguf import GGUFReader, RopeScalingType
from random_file import RANDOM, RandomFile

HIDDEN, HEADS, KV_HEADS, HEAD, FFN, EXPERTS, USED, WINDOW, CONTEXT = 2880, 64, 8, 64, 2880, 32, 4, 128, 131_072


def mxfp4(rows: int, columns: int) -> np.ndarray:
    blocks = RANDOM.integers(0, 256, (rows * columns // 32, 17), np.uint8)
    blocks[:, 0] = 127 + round(np.log2(columns**-0.5 / 2.9))
    return blocks.reshape(rows, -1)


def write(path: str, vocabulary: str, layers: int) -> None:
    file = RandomFile(
        path,
        "gpt-oss",
        layers=layers,
        hidden=HIDDEN,
        ffn=FFN,
        heads=HEADS,
        kv_heads=KV_HEADS,
        context=CONTEXT,
        base=150_000.0,
        file_type=38,
    )
    file.heads_of(HEAD)
    file.experts(EXPERTS, USED, FFN)
    file.writer.add_sliding_window(WINDOW)
    file.writer.add_rope_scaling_type(RopeScalingType.YARN)
    file.writer.add_rope_scaling_factor(32.0)
    file.writer.add_rope_scaling_orig_ctx_len(4096)
    tokens = copy_vocabulary(file, vocabulary)
    file.matrix("token_embd", tokens, HIDDEN)
    file.matrix("output", tokens, HIDDEN)
    file.normal("output_norm.weight", HIDDEN, size=0.02, middle=1.0)
    for layer in range(layers):
        place = f"blk.{layer}."
        for norm in ("attn_norm", "post_attention_norm"):
            file.normal(f"{place}{norm}.weight", HIDDEN, size=0.02, middle=1.0)
        for name, rows, columns in (
            ("attn_q", HEADS * HEAD, HIDDEN),
            ("attn_k", KV_HEADS * HEAD, HIDDEN),
            ("attn_v", KV_HEADS * HEAD, HIDDEN),
            ("attn_output", HIDDEN, HEADS * HEAD),
        ):
            file.matrix(f"{place}{name}", rows, columns, "Q8_0")
            file.normal(f"{place}{name}.bias", rows, size=0.02)
        file.normal(f"{place}attn_sinks.weight", HEADS, size=1.0)
        file.normal(f"{place}ffn_gate_inp.weight", EXPERTS, HIDDEN, size=HIDDEN**-0.5)
        file.normal(f"{place}ffn_gate_inp.bias", EXPERTS, size=0.02)
        for name, rows, columns in (("gate", FFN, HIDDEN), ("up", FFN, HIDDEN), ("down", HIDDEN, FFN)):
            file.codes(f"{place}ffn_{name}_exps", mxfp4(EXPERTS * rows, columns).reshape(EXPERTS, rows, -1), "MXFP4")
            file.normal(f"{place}ffn_{name}_exps.bias", EXPERTS, rows, size=0.02)
    file.finish()


def copy_vocabulary(file: RandomFile, path: str) -> int:
    """Gives the file another's vocabulary; its size."""
    fields = GGUFReader(path).fields

    def texts(key: str) -> list[str]:
        return [bytes(fields[key].parts[i]).decode() for i in fields[key].data]

    tokens, types = texts("tokenizer.ggml.tokens"), fields["tokenizer.ggml.token_type"]
    file.writer.add_tokenizer_model("gpt2")
    file.writer.add_tokenizer_pre("llama-bpe")
    file.writer.add_token_list(tokens)
    file.writer.add_token_types([int(types.parts[i][0]) for i in types.data])
    file.writer.add_token_merges(texts("tokenizer.ggml.merges"))
    file.writer.add_bos_token_id(128_000)
    file.writer.add_eos_token_id(128_001)
    return len(tokens)


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("out")
    parser.add_argument("--vocab", required=True)
    parser.add_argument("--layers", type=int, default=8)
    options = parser.parse_args()
    write(options.out, options.vocab, options.layers)
