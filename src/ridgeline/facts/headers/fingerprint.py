"""The identity of a model's files: equal for copies, another for any other number in a header or any other weights that a sample shows."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from ridgeline.facts.files.gguf_values import MAX_HEADER_BYTES
from ridgeline.facts.model import TensorFacts

_SAMPLE_BYTES = 4_096


def fingerprint(files: Iterable[Path], tensors: Iterable[TensorFacts], config: bytes = b"") -> bytes:
    """SHA-256 over `config`, the size and the header of every file, and the first and last 4 KiB of every stored tensor.

    tensors  as the files hold them, not as they are cut
    config   what says the network's numbers where no file with tensors does
    """
    digest = hashlib.sha256(config)
    held: dict[Path, list[TensorFacts]] = {path: [] for path in files}
    for tensor in tensors:
        held[tensor.file].append(tensor)
    for path, inside in held.items():
        with path.open("rb") as file:
            size = file.seek(0, 2)
            header_bytes = min((tensor.offset for tensor in inside), default=min(size, MAX_HEADER_BYTES))
            digest.update(f"{size} {header_bytes}\n".encode())
            spans = [(0, header_bytes)]
            for tensor in inside:
                length = min(_SAMPLE_BYTES, tensor.bytes)
                spans += [(tensor.offset, length), (tensor.offset + tensor.bytes - length, length)]
            for offset, length in spans:
                file.seek(offset)
                digest.update(file.read(length))
    return digest.digest()
