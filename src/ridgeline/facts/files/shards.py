"""Safetensors files of a directory that hold the model, checked against the index. Reads headers only."""

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
    """Tensors of the checkpoint in `directory` by name in the files: of model.safetensors, of the shards of its index, or of the only file.

    Raises ModelFormatError where the index and the shards differ, ModelNotFoundError where there are no safetensors files.
    """
    if (directory / SINGLE).exists():
        return read_file(_inside(directory, SINGLE))
    if (directory / INDEX).exists():
        return _indexed(directory)
    files = sorted(directory.glob("*.safetensors"))
    if len(files) == 1:
        return read_file(_inside(directory, files[0].name))
    if files:
        raise ModelFormatError(f"{directory} holds {len(files)} safetensors files without {INDEX}; download it again, with its index")
    pickled = sorted(path.name for pattern in PICKLED for path in directory.glob(pattern))
    if pickled:
        raise ModelFormatError(
            f"{directory} holds its weights in {pickled[0]} only; such files can run any code when they are read and are not accepted: "
            "convert them to safetensors or GGUF"
        )
    raise ModelNotFoundError(f"{directory} holds no safetensors files; download the whole checkpoint")


def _indexed(directory: Path) -> dict[str, TensorFacts]:
    index = read_object(directory / INDEX, MAX_INDEX_BYTES)
    placed = index.get("weight_map")
    if not isinstance(placed, dict) or not placed or not all(isinstance(file, str) for file in placed.values()):
        raise ModelFormatError(f"{INDEX}: weight_map is no table of tensors and files; download it again")
    names = sorted(set(placed.values()))
    if len(names) > MAX_FILES:
        raise ModelFormatError(f"{INDEX} names {len(names)} files, at most {MAX_FILES} were expected")
    found: dict[str, TensorFacts] = {}
    for file, path in {file: _inside(directory, file) for file in names}.items():
        for name, tensor in read_file(path).items():
            if placed.get(name) != file:
                where = quoted(placed.get(name))
                raise ModelFormatError(f"tensor {quoted(name)} stands in {file}, {INDEX} has it in {where}; download both again")
            found[name] = tensor
    lost = placed.keys() - found.keys()
    if lost:
        raise ModelFormatError(
            f"{INDEX} names {len(lost)} tensors that no file holds, {quoted(min(lost))} among them; download the shards again"
        )
    _check_total(index.get("metadata"), found.values())
    return found


def _check_total(metadata: object, tensors: Iterable[TensorFacts]) -> None:
    stated = metadata.get("total_size") if isinstance(metadata, dict) else None
    total = sum(tensor.bytes for tensor in tensors)
    if stated is not None and stated != total:
        raise ModelFormatError(f"{INDEX}: total_size is {stated!r:.40}, the shards hold {total} bytes; download them again")


def _inside(directory: Path, name: str) -> Path:
    """The file `name` of `directory`; a link may lead to the store beside the snapshots of a hub cache, and nowhere else outside."""
    if not name.endswith(".safetensors") or name != Path(name).name or "\\" in name or "\0" in name:
        raise ModelFormatError(f"{quoted(name)} is no name of a safetensors file in the same directory")
    path, home = directory / name, directory.resolve()
    if path.is_symlink() and path.resolve().parent not in (home, home.parent.parent / "blobs"):
        raise ModelFormatError(f"{path} is a link out of the directory; give the directory in which the files are")
    return path
