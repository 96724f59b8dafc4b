"""Reader of safetensors headers: names, types, shapes and offsets of tensors. Reads no weights; every number is checked.

Format: https://github.com/huggingface/safetensors#format (8 bytes of length, a JSON object, the data without gaps).
"""

import json
from math import prod
from pathlib import Path
from typing import Any, TypeGuard

from ridgeline.errors import ModelFormatError
from ridgeline.facts.files.values import open_file
from ridgeline.facts.model import TensorFacts

MAX_HEADER_BYTES = 16 << 20
"""The format allows 100 MB; a hundred thousand tensors need less than this, and JSON of this size stays small in memory."""
MAX_TENSORS = 100_000
MAX_MARKS = 8 * MAX_TENSORS
"""Braces, brackets and colons of a header: each may become a Python object, far larger than its bytes in the file."""
MAX_FILES = 1_024
MAX_ELEMENTS = 1 << 48
BITS = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "I64": 64, "I32": 32, "I16": 16, "I8": 8,
    "U64": 64, "U32": 32, "U16": 16, "U8": 8, "BOOL": 8,
}  # fmt: skip
"""Bits per element by type."""


def read_tensors(directory: Path) -> dict[str, TensorFacts]:
    """All tensors of the safetensors files in `directory`, {} where there are none. Raises ModelFormatError."""
    files = sorted(directory.glob("*.safetensors"))
    if len(files) > MAX_FILES:
        raise ModelFormatError(f"{directory} holds {len(files)} safetensors files, at most {MAX_FILES} were expected")
    found: dict[str, TensorFacts] = {}
    for path in files:
        for name, tensor in read_file(path).items():
            if name in found:
                raise ModelFormatError(f"tensor {name[:80]!r} is in {found[name].file.name} and in {path.name}; remove one of the files")
            found[name] = tensor
    return found


def read_file(path: Path) -> dict[str, TensorFacts]:
    """Tensors of one file, by name. Raises ModelFormatError."""
    with open_file(path) as file:
        size = file.seek(0, 2)
        file.seek(0)
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(MAX_HEADER_BYTES, size - 8):
            raise ModelFormatError(
                f"{path.name} has {size} bytes and states a header of {length} (at most {MAX_HEADER_BYTES}); "
                "it is truncated or not a safetensors file"
            )
        raw = file.read(length)
    try:
        return _parse(path, raw, size - 8 - length)
    except ModelFormatError as error:
        raise ModelFormatError(f"{path.name}: {error}") from None


def _parse(path: Path, raw: bytes, data_bytes: int) -> dict[str, TensorFacts]:
    marks = sum(raw.count(mark) for mark in (b"{", b"[", b":"))
    if marks > MAX_MARKS:
        raise ModelFormatError(f"the header has {marks} braces, brackets and colons, at most {MAX_MARKS} were expected")
    try:
        header = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique)
    except (UnicodeDecodeError, RecursionError, ValueError):
        raise ModelFormatError("the header is not JSON in UTF-8; the file is damaged: download it again") from None
    if not isinstance(header, dict) or raw[:1] != b"{":
        raise ModelFormatError(f"the header is a {type(header).__name__} that starts with {raw[:1]!r}, an object was expected")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ModelFormatError("__metadata__ is not a table of strings; the file is damaged")
    if len(header) > MAX_TENSORS:
        raise ModelFormatError(f"the header lists {len(header)} tensors, at most {MAX_TENSORS} were expected")
    found = [_tensor(path, name, entry, 8 + len(raw)) for name, entry in header.items()]
    end = 8 + len(raw)
    for tensor in sorted(found, key=lambda each: (each.offset, each.bytes)):
        if tensor.offset != end:
            raise ModelFormatError(f"tensor {tensor.name[:80]!r} starts at byte {tensor.offset}, {end} was expected: overlap or gap")
        end += tensor.bytes
    if end != 8 + len(raw) + data_bytes:
        raise ModelFormatError(f"the tensors end at byte {end}, the file at {8 + len(raw) + data_bytes}; download it again")
    return {tensor.name: tensor for tensor in found}


def _tensor(path: Path, name: str, entry: Any, start: int) -> TensorFacts:
    """Parses and checks one entry of the header."""
    fields = entry if isinstance(entry, dict) else {}
    kind, shape, place = fields.get("dtype"), fields.get("shape"), fields.get("data_offsets")
    if not isinstance(kind, str) or kind not in BITS:
        raise ModelFormatError(f"tensor {name[:80]!r} is stored as {kind!r:.40}, which is not supported; supported: {', '.join(BITS)}")
    if not _is_size_list(shape) or not _is_size_list(place) or len(place) != 2 or len(shape) > 8 or prod(shape) > MAX_ELEMENTS:
        raise ModelFormatError(f"tensor {name[:80]!r} has an impossible shape or place")
    begin, end = place
    if end - begin != prod(shape) * BITS[kind] // 8:
        raise ModelFormatError(
            f"tensor {name[:80]!r} of shape {tuple(shape)} takes {prod(shape) * BITS[kind] // 8} bytes, not {end - begin}"
        )
    return TensorFacts(name, kind, tuple(shape), path, start + begin, end - begin)


def _is_size_list(values: object) -> TypeGuard[list[int]]:
    return isinstance(values, list) and all(type(value) is int and 0 <= value <= MAX_ELEMENTS for value in values)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ModelFormatError("a name appears twice in the header")
    return values
