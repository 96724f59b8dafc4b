"""Headers of a model at the hub, read by requests for ranges of bytes: what a plan needs, and nothing else.

The files are laid out in a folder of their own at full size, with holes for the weights: every reader of local files reads them.
"""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from ridgeline.errors import ConfigError, ModelFormatError
from ridgeline.facts.files.gguf import has_whole_header
from ridgeline.facts.files.safetensors import MAX_HEADER_BYTES
from ridgeline.facts.hub.client import HubClient, RemoteFile
from ridgeline.facts.hub.download import CONNECTIONS, Selection

FIRST_BYTES: Final = 1 << 20
"""Bytes of a GGUF file, asked for first: the header of a model with a small vocabulary. Each further request asks for four times as
much."""
SHARD_BYTES: Final = 128 << 10
"""Bytes of a safetensors file, asked for first."""
MAX_CONFIG_BYTES: Final = 32 << 20
READ_WHOLE: Final = ("config.json", "hf_quant_config.json", "model.safetensors.index.json")


@contextmanager
def remote_headers(client: HubClient, selection: Selection) -> Iterator[Path]:
    """Path like that of the downloaded model, valid within the context; its weights read as zeros.

    Raises ModelNotFoundError where the hub does not answer, ModelFormatError for a malformed header.
    """
    with TemporaryDirectory(prefix="ridgeline-") as temporary:
        folder = Path(temporary) / selection.repository.name.repository.rpartition("/")[2]

        def fetch(file: RemoteFile) -> None:
            path = folder / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            _write_sparse(path, _header_bytes(client, selection, file), file.bytes)

        needed = [file for file in selection.files if file.path in READ_WHOLE or file.path.endswith((".gguf", ".safetensors"))]
        with ThreadPoolExecutor(CONNECTIONS) as pool:
            list(pool.map(fetch, needed))
        first = selection.files[0].path
        yield folder / first if first.endswith(".gguf") else folder


def _header_bytes(client: HubClient, selection: Selection, file: RemoteFile) -> bytes:
    """The first bytes of `file`, up to the end of its header."""
    if file.path in READ_WHOLE:
        if file.bytes > MAX_CONFIG_BYTES:
            raise ModelFormatError(f"{file.path} has {file.bytes} bytes, at most {MAX_CONFIG_BYTES} were expected")
        return client.read_range(selection.repository, file.path, 0, file.bytes) if file.bytes else b""
    is_gguf = file.path.endswith(".gguf")
    data, wanted = b"", min(file.bytes, FIRST_BYTES if is_gguf else SHARD_BYTES)
    while len(data) < wanted:
        data += client.read_range(selection.repository, file.path, len(data), wanted - len(data))
        if is_gguf:
            wanted = len(data) if has_whole_header(data, file.bytes) else min(file.bytes, 4 * len(data))
        else:
            wanted = min(file.bytes, 8 + min(MAX_HEADER_BYTES, int.from_bytes(data[:8], "little")))
    return data


def _write_sparse(path: Path, data: bytes, size: int) -> None:
    """Writes `data`, then a hole up to `size`. Raises ConfigError where the disk of temporary files cannot hold such a file."""
    try:
        with path.open("xb") as file:
            file.write(data)
            os.truncate(file.fileno(), max(size, len(data)))
    except OSError as error:
        raise ConfigError(f"{path} cannot be written ({error.strerror}); let TMPDIR name a directory on another disk") from None
