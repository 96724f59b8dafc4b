"""A GGUF file of Llama 3.2 1B's shape with random weights in Q4_K_M, for `tests/speed/planted.py`: its texts mean nothing.

    python tests/speed/llama_file.py OUT.gguf [--layers 16] [--hidden 2048] [--period 0]

A quarter of the layers' sensitive matrices, and the embedding, are Q6_K, the others Q4_K, as the published files have them. 16 layers take
0.8 GB and ten seconds. With fewer layers and half the width it is a draft model of the same vocabulary. With a period its layers add next
to nothing, and its head maps each id to the next of so many: greedy texts repeat themselves (`tests/speed/lookup.py`).
"""

from argparse import ArgumentParser

import numpy as np
from random_file import RandomFile, q6_k

HEAD, KV_HEADS, CONTEXT, VOCAB = 64, 8, 131_072, 128_256


def before(period: int) -> np.ndarray:
    """int [VOCAB]: the id that each follows, where `period` ids follow each other in a ring."""
    ids = np.arange(VOCAB)
    return np.where(ids % period == 0, ids + period - 1, ids - 1)


def write(path: str, layers: int, hidden: int, period: int) -> None:
    heads, ffn = hidden // HEAD, 4 * hidden
    file = RandomFile(path, "llama", layers=layers, hidden=hidden, ffn=ffn, heads=heads, kv_heads=KV_HEADS, context=CONTEXT, base=5e5)
    file.writer.add_rope_dimension_count(HEAD)
    file.vocabulary(VOCAB)
    scale = 1e-3 if period else 1.0
    embedding = q6_k(VOCAB, hidden)
    file.codes("token_embd", embedding, "Q6_K")
    if period:
        file.codes("output", embedding[before(period)], "Q6_K")
    file.constant("output_norm", hidden)
    for layer in range(layers):
        place, fine = f"blk.{layer}.", layer % 4 == 0 or layer < layers // 8 or layer >= layers - layers // 8
        sensitive = "Q6_K" if fine else "Q4_K"
        file.constant(f"{place}attn_norm", hidden, scale)
        file.constant(f"{place}ffn_norm", hidden, scale)
        file.matrix(f"{place}attn_q", hidden, hidden)
        file.matrix(f"{place}attn_k", KV_HEADS * HEAD, hidden)
        file.matrix(f"{place}attn_v", KV_HEADS * HEAD, hidden, sensitive)
        file.matrix(f"{place}attn_output", hidden, hidden)
        file.matrix(f"{place}ffn_gate", ffn, hidden)
        file.matrix(f"{place}ffn_up", ffn, hidden)
        file.matrix(f"{place}ffn_down", hidden, ffn, sensitive)
    file.finish()


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--period", type=int, default=0)
    options = parser.parse_args()
    if options.period and VOCAB % options.period:
        parser.error(f"the period must divide {VOCAB:,}")
    write(options.out, options.layers, options.hidden, options.period)
