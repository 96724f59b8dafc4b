"""A GGUF file of Llama 3.2 1B's shape with random weights in Q4_K_M, for `tests/speed/planted.py`: its texts mean nothing.

    python tests/speed/llama_file.py OUT.gguf [--layers 16] [--hidden 2048] [--period 0]

A quarter of the layers' sensitive matrices, and the embedding, are Q6_K, the others Q4_K, as the published files have them. 16 layers take
0.8 GB and ten seconds. With fewer layers and half the width it is a draft model of the same vocabulary. With a period its layers add next
to nothing, and its head maps each id to the next of so many: greedy texts repeat themselves (`tests/speed/lookup.py`).
"""

from argparse import ArgumentParser

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter

HEAD, KV_HEADS, CONTEXT, VOCAB = 64, 8, 131_072, 128_256
RANDOM = np.random.default_rng(0)


def q4_k(rows: int, columns: int) -> np.ndarray:
    """uint8 [rows, bytes of a row]: values of about the standard deviation columns^-½."""
    blocks = RANDOM.integers(0, 256, (rows * columns // 256, 144), np.uint8)
    step = columns**-0.5 / 190
    blocks[:, :4] = np.array([step, 7.5 * step], np.float16).view(np.uint8)
    return blocks.reshape(rows, -1)


def q6_k(rows: int, columns: int) -> np.ndarray:
    blocks = RANDOM.integers(0, 256, (rows * columns // 256, 210), np.uint8)
    blocks[:, 208:] = np.array([columns**-0.5 / 1370], np.float16).view(np.uint8)
    return blocks.reshape(rows, -1)


def add_vocabulary(writer: GGUFWriter, size: int) -> None:
    """Bytes, and words that mean nothing."""
    control = ["<pad>", "<eos>", "<bos>", "<unk>"]
    tokens = [*control, *(f"<0x{byte:02X}>" for byte in range(256)), *(f"w{number}" for number in range(size - 260))]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * 260 + [-float(number) for number in range(size - 260)])
    writer.add_token_types([3, 3, 3, 2] + [6] * 256 + [1] * (size - 260))
    writer.add_bos_token_id(2)
    writer.add_eos_token_id(1)


def finish(writer: GGUFWriter) -> None:
    """Writes what was added."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def before(period: int) -> np.ndarray:
    """int [VOCAB]: the id that each follows, where `period` ids follow each other in a ring."""
    ids = np.arange(VOCAB)
    return np.where(ids % period == 0, ids + period - 1, ids - 1)


def write(path: str, layers: int, hidden: int, period: int) -> None:
    heads, ffn = hidden // HEAD, 4 * hidden
    writer = GGUFWriter(path, "llama")
    writer.add_name("llama random")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(hidden)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(ffn)
    writer.add_head_count(heads)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(500_000.0)
    writer.add_rope_dimension_count(HEAD)
    writer.add_file_type(15)
    add_vocabulary(writer, VOCAB)

    def matrix(name: str, rows: int, columns: int, fine: bool = False) -> None:
        kind = GGMLQuantizationType.Q6_K if fine else GGMLQuantizationType.Q4_K
        writer.add_tensor(f"{name}.weight", (q6_k if fine else q4_k)(rows, columns), raw_dtype=kind)

    def norm(name: str, scale: float) -> None:
        writer.add_tensor(f"{name}.weight", np.full(hidden, scale, np.float32))

    scale = 1e-3 if period else 1.0
    embedding = q6_k(VOCAB, hidden)
    writer.add_tensor("token_embd.weight", embedding, raw_dtype=GGMLQuantizationType.Q6_K)
    if period:
        writer.add_tensor("output.weight", embedding[before(period)], raw_dtype=GGMLQuantizationType.Q6_K)
    norm("output_norm", 1.0)
    for layer in range(layers):
        place, fine = f"blk.{layer}.", layer % 4 == 0 or layer < layers // 8 or layer >= layers - layers // 8
        norm(f"{place}attn_norm", scale)
        norm(f"{place}ffn_norm", scale)
        matrix(f"{place}attn_q", hidden, hidden)
        matrix(f"{place}attn_k", KV_HEADS * HEAD, hidden)
        matrix(f"{place}attn_v", KV_HEADS * HEAD, hidden, fine)
        matrix(f"{place}attn_output", hidden, hidden)
        matrix(f"{place}ffn_gate", ffn, hidden)
        matrix(f"{place}ffn_up", ffn, hidden)
        matrix(f"{place}ffn_down", hidden, ffn, fine)
    finish(writer)


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
