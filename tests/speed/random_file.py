"""GGUF files of a real model's shape with random weights: what the scripts that write such files share. Their texts mean nothing."""

from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter

RANDOM = np.random.default_rng(0)


def q4_k(rows: int, columns: int) -> np.ndarray:
    """uint8 [rows, bytes of a row]: values of about the standard deviation columns^-½, so that activations stay near one."""
    blocks = RANDOM.integers(0, 256, (rows * columns // 256, 144), np.uint8)
    step = columns**-0.5 / 190
    blocks[:, :4] = np.array([step, 7.5 * step], np.float16).view(np.uint8)
    return blocks.reshape(rows, -1)


def q6_k(rows: int, columns: int) -> np.ndarray:
    blocks = RANDOM.integers(0, 256, (rows * columns // 256, 210), np.uint8)
    blocks[:, 208:] = np.array([columns**-0.5 / 1370], np.float16).view(np.uint8)
    return blocks.reshape(rows, -1)


def q8_0(rows: int, columns: int) -> np.ndarray:
    blocks = RANDOM.integers(0, 256, (rows * columns // 32, 34), np.uint8)
    blocks[:, :2] = np.array([columns**-0.5 / 74], np.float16).view(np.uint8)
    return blocks.reshape(rows, -1)


BLOCKS = {"Q4_K": q4_k, "Q6_K": q6_k, "Q8_0": q8_0}


class RandomFile:
    """A file under way: its facts, then its tensors, then `finish`. `writer` takes what only one architecture has."""

    def __init__(
        self, path: str | Path, architecture: str, *, layers: int, hidden: int, ffn: int, heads: int, kv_heads: int, context: int,
        base: float, eps: float = 1e-5, file_type: int = 15,
    ) -> None:  # fmt: skip
        self.writer = GGUFWriter(path, architecture)
        self.writer.add_name(f"{architecture} random")
        self.writer.add_context_length(context)
        self.writer.add_embedding_length(hidden)
        self.writer.add_block_count(layers)
        self.writer.add_feed_forward_length(ffn)
        self.writer.add_head_count(heads)
        self.writer.add_head_count_kv(kv_heads)
        self.writer.add_layer_norm_rms_eps(eps)
        self.writer.add_rope_freq_base(base)
        self.writer.add_file_type(file_type)

    def heads_of(self, length: int) -> None:
        """Says how long a head's keys and values are."""
        self.writer.add_key_length(length)
        self.writer.add_value_length(length)

    def experts(self, count: int, used: int, ffn: int) -> None:
        """Says how many experts a layer has, and a token uses."""
        self.writer.add_expert_count(count)
        self.writer.add_expert_used_count(used)
        self.writer.add_expert_feed_forward_length(ffn)

    def vocabulary(self, size: int) -> None:
        """Bytes, and words that mean nothing."""
        control = ["<pad>", "<eos>", "<bos>", "<unk>"]
        tokens = [*control, *(f"<0x{byte:02X}>" for byte in range(256)), *(f"w{number}" for number in range(size - 260))]
        self.writer.add_tokenizer_model("llama")
        self.writer.add_token_list(tokens)
        self.writer.add_token_scores([0.0] * 260 + [-float(number) for number in range(size - 260)])
        self.writer.add_token_types([3, 3, 3, 2] + [6] * 256 + [1] * (size - 260))
        self.writer.add_bos_token_id(2)
        self.writer.add_eos_token_id(1)

    def matrix(self, name: str, rows: int, columns: int, kind: str = "Q4_K", experts: int = 0) -> None:
        """A matrix [rows, columns], or one per expert; Q8_0 where a row is no multiple of 256."""
        kind = "Q8_0" if columns % 256 else kind
        codes = BLOCKS[kind](max(experts, 1) * rows, columns)
        self.codes(name, codes.reshape(experts, rows, -1) if experts else codes, kind)

    def codes(self, name: str, codes: np.ndarray, kind: str) -> None:
        """A tensor as it is stored."""
        self.writer.add_tensor(f"{name}.weight", codes, raw_dtype=GGMLQuantizationType[kind])

    def constant(self, name: str, size: int, value: float = 1.0) -> None:
        """A vector of one number, as norms are."""
        self.writer.add_tensor(f"{name}.weight", np.full(size, value, np.float32))

    def normal(self, name: str, *shape: int, size: float, middle: float = 0.0) -> None:
        """Numbers of a standard deviation about a middle."""
        self.writer.add_tensor(name, (RANDOM.standard_normal(shape) * size + middle).astype(np.float32))

    def finish(self) -> None:
        """Writes what was added."""
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()
