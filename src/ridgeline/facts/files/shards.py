"""Reader of the safetensors headers of a checkpoint directory, checked against the index."""

from collections.abc import Iterable
from pathlib import Path

from ridgeline.errors import ModelFormatError, ModelNotFoundError
from ridgeline.facts.files.json_file import read_object
from ridgeline.facts.files.safetensors import MAX_FILES, read_file
from ridgeline.facts.files.values import quoted
from ridgeline.facts.model import TensorFacts

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")
MAX_INDEX_BYTES = 16 << 20


def read_shards(directory: Path) -> dict[str, TensorFacts]:
    """Tensors of the checkpoint in `directory` by stored name: of model.safetensors, of the index's shards, or of the only file.

    Raises ModelFormatError where the index and the shards differ, ModelNotFoundError where there are no safetensors files.
    """
    if (directory / SINGLE).exists():
        return read_file(_safe_path(directory, SINGLE))
    if (directory / INDEX).exists():
        return _read_index(directory)
    files = sorted(directory.glob("*.safetensors"))
    if len(files) == 1:
        return read_file(_safe_path(directory, files[0].name))
    if files:
        raise ModelFormatError(f"{directory} holds {len(files)} safetensors files without {INDEX}; download it again, with its index")
    pickled = sorted(path.name for pattern in PICKLED for path in directory.glob(pattern))
    if pickled:
        raise ModelFormatError(
            f"{directory} holds its weights in {pickled[0]} only; such files can run any code when they are read and are not accepted: "
            "convert them to safetensors or GGUF"
        )
    raise ModelNotFoundError(f"{directory} holds no safetensors files; download the whole checkpoint")


def _read_index(directory: Path) -> dict[str, TensorFacts]:
    index = read_object(directory / INDEX, MAX_INDEX_BYTES)
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map or not all(isinstance(file, str) for file in weight_map.values()):
        raise ModelFormatError(f"{INDEX}: weight_map is not a table of tensors and files; download it again")
    names = sorted(set(weight_map.values()))
    if len(names) > MAX_FILES:
        raise ModelFormatError(f"{INDEX} names {len(names)} files, at most {MAX_FILES} were expected")
    found: dict[str, TensorFacts] = {}
    for file, path in {file: _safe_path(directory, file) for file in names}.items():
        for name, tensor in read_file(path).items():
            if weight_map.get(name) != file:
                where = quoted(weight_map.get(name))
                raise ModelFormatError(f"tensor {quoted(name)} is in {file}, {INDEX} has it in {where}; download both again")
            found[name] = tensor
    missing = weight_map.keys() - found.keys()
    if missing:
        raise ModelFormatError(
            f"{INDEX} names {len(missing)} tensors that no file holds, {quoted(min(missing))} among them; download the shards again"
        )
    _check_total(index.get("metadata"), found.values())
    return found


def _check_total(metadata: object, tensors: Iterable[TensorFacts]) -> None:
    total_size = metadata.get("total_size") if isinstance(metadata, dict) else None
    total = sum(tensor.bytes for tensor in tensors)
    if total_size is not None and total_size != total:
        raise ModelFormatError(f"{INDEX}: total_size is {total_size!r:.40}, the shards hold {total} bytes; download them again")


def _safe_path(directory: Path, name: str) -> Path:
    """Path of the file `name` in `directory`. A link may point into the blobs of a hub cache, and nowhere else outside."""
    if not name.endswith(".safetensors") or name != Path(name).name or "\\" in name or "\0" in name:
        raise ModelFormatError(f"{quoted(name)} is not the name of a safetensors file in the same directory")
    path, home = directory / name, directory.resolve()
    if path.is_symlink() and path.resolve().parent not in (home, home.parent.parent / "blobs"):
        raise ModelFormatError(f"{path} is a link out of the directory; give the directory in which the files are")
    return path
