"""References for correctness in tests/gold, see its README: llama.cpp's words about the demo model, real vocabularies, real templates."""

import json
import lzma
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

GOLD = Path(__file__).resolve().parents[1] / "gold"
TEMPLATES = GOLD / "templates"


def demo_lines() -> list[dict[str, Any]]:
    """Prompts of the demo model with llama.cpp's ids, text and log-probabilities."""
    return [json.loads(line) for line in (GOLD / "gemma3-270m-q4_k_m.jsonl").read_text(encoding="utf-8").splitlines()]


def tokenizer_lines() -> list[dict[str, Any]]:
    """Strings with llama.cpp's ids in the demo's vocabulary."""
    return [json.loads(line) for line in (GOLD / "tokenizer.jsonl").read_text(encoding="utf-8").splitlines()]


@cache
def _unpacked() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="vocabularies")


@cache
def vocabulary(family: str) -> Path:
    """A GGUF file without weights, unpacked for this process."""
    path = Path(_unpacked().name) / f"{family}.gguf"
    path.write_bytes(lzma.decompress((GOLD / "vocab" / f"{family}.gguf.xz").read_bytes()))
    return path


def vocabulary_cases(family: str) -> list[tuple[str, list[int]]]:
    """llama.cpp's own test strings with its ids in this vocabulary."""
    texts = (GOLD / "strings.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    lines = (GOLD / "vocab" / f"{family}.out").read_text(encoding="utf-8").split("\n")
    return [(text, list(map(int, line.split()))) for text, line in zip(texts, lines, strict=True)]
