"""The header reader against the `gguf` package, and against every shape of malformed file that real readers fell for."""

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf_files import File, string, value

from ridgeline.errors import ModelFormatError, ModelNotFoundError
from ridgeline.facts.files.formats import BY_ID, FORMATS, UNSUPPORTED
from ridgeline.facts.files.gguf import headers_kept, read_header
from ridgeline.facts.files.gguf_values import StringArray


def read(tmp_path: Path, file: File | bytes):
    path = tmp_path / "model.gguf"
    path.write_bytes(file if isinstance(file, bytes) else file.build())
    return read_header(path)


def test_a_small_file(tmp_path: Path) -> None:
    header = read(tmp_path, File())
    assert header.text("general.architecture") == "tiny"
    assert header.tensors["b"].shape == (2, 32)
    assert (header.tensors["b"].kind, header.tensors["b"].bytes) == ("Q8_0", 68)
    assert header.tensors["b"].offset % 32 == 0


@pytest.mark.parametrize(
    ("kind", "content", "expected"),
    [
        ("u8", 200, 200), ("i8", -3, -3), ("u16", 60_000, 60_000), ("i16", -5, -5), ("u32", 1 << 31, 1 << 31), ("i32", -7, -7),
        ("u64", 1 << 63, 1 << 63), ("i64", -(1 << 62), -(1 << 62)), ("f32", 0.5, 0.5), ("f64", 0.1, 0.1), ("bool", 1, True),
        ("str", "grüße", "grüße"), ("arr", ("i32", [1, -2]), [1, -2]), ("arr", ("bool", [1, 0]), [True, False]),
        ("arr", ("str", ["a", "", "ß"]), ["a", "", "ß"]), ("arr", ("arr", [("u8", [1]), ("u8", [])]), [[1], []]),
    ],
)  # fmt: skip
def test_values(tmp_path: Path, kind: str, content: object, expected: object) -> None:
    found = read(tmp_path, File(pairs=[("key", value(kind, content))])).metadata["key"]
    if isinstance(expected, list) and not isinstance(found, StringArray):
        found = [list(item) if hasattr(item, "typecode") else item for item in found]  # type: ignore[union-attr]
    assert (list(found) if isinstance(found, StringArray) else found) == expected


HOSTILE: dict[str, File | bytes] = {
    "empty": b"",
    "other format": b"PK\x03\x04" + bytes(60),
    "version 1": File(version=1),
    "big-endian": File(version=3 << 24),
    "more tensors than bytes": File(tensor_count=1 << 63),
    "100,001 tensors": File(tensor_count=100_001),
    "65,537 pairs": File(pair_count=65_537),
    "more pairs than bytes": File(pair_count=1 << 62),
    "one pair too many": File(pair_count=2),
    "string longer than the file": File(pairs=[("k", struct.pack("<IQ", 8, 1 << 40))]),
    "string of 2 MiB": File(pairs=[("k", value("str", "x" * (2 << 20)))]),
    "array longer than the file": File(pairs=[("k", struct.pack("<IIQ", 9, 4, 1 << 20))]),
    "array of 2**61 wraps to 0 bytes": File(pairs=[("k", struct.pack("<IIQ", 9, 10, 1 << 61))]),
    "array of 4M + 1 items": File(pairs=[("k", struct.pack("<IIQ", 9, 0, (4 << 20) + 1) + bytes((4 << 20) + 1))]),
    "70,000 booleans": File(pairs=[("k", struct.pack("<IIQ", 9, 7, 70_000) + bytes(70_000))]),
    "70,000 empty arrays": File(pairs=[("k", struct.pack("<IIQ", 9, 9, 70_000) + struct.pack("<IQ", 0, 0) * 70_000)]),
    "70,000 empty arrays in two": File(pairs=[(k, struct.pack("<IIQ", 9, 9, 35_000) + struct.pack("<IQ", 0, 0) * 35_000) for k in "kl"]),
    "string in an array of 2 MiB": File(pairs=[("k", value("arr", ("str", ["x", "x" * (2 << 20)])))]),
    "string in an array with a length of 2**64 - 1": File(pairs=[("k", struct.pack("<IIQQ", 9, 8, 1, (1 << 64) - 1))]),
    "text not UTF-8": File(pairs=[("k", value("str", b"\xff\xfe"))]),
    "alignment 8192": File(pairs=[("general.alignment", value("u32", 8_192))]),
    "offset that padding would wrap to zero": File(tensors=[("a", (4,), 0, 0), ("b", (4,), 0, (1 << 64) - 16)]),
    "zero-size tensors that share an offset": File(tensors=[("a", (0,), 0, 0), ("b", (0,), 0, 0), ("c", (4,), 0, 0)]),
    "array of strings that ends early": File(pairs=[("k", struct.pack("<IIQ", 9, 8, 1 << 20) + string("a"))]),
    "array element type 99": File(pairs=[("k", struct.pack("<IIQ", 9, 99, 1))]),
    "nested too deep": File(pairs=[("k", struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 40)]),
    "many nested": File(pairs=[("k", struct.pack("<I", 9) + struct.pack("<IQ", 9, 1 << 21))]),
    "value type 13": File(pairs=[("k", struct.pack("<I", 13))]),
    "boolean of 2": File(pairs=[("k", struct.pack("<IB", 7, 2))]),
    "duplicate key": File(pairs=[("k", value("u8", 1)), ("k", value("u8", 2))]),
    "key not UTF-8": File(pairs=[(b"\xff\xfe", value("u8", 1))]),
    "alignment 0": File(pairs=[("general.alignment", value("u32", 0))]),
    "alignment 3": File(pairs=[("general.alignment", value("u32", 3))]),
    "alignment 2**31": File(pairs=[("general.alignment", value("u32", 1 << 31))]),
    "alignment a string": File(pairs=[("general.alignment", value("str", "32"))]),
    "no dimension": File(tensors=[("a", (), 0, 0)]),
    "nine dimensions": File(tensors=[("a", (1,) * 9, 0, 0)]),
    "zero elements": File(tensors=[("a", (0, 4), 0, 0)]),
    "product wraps": File(tensors=[("a", (1 << 33, 1 << 33), 0, 0)]),
    "bytes wrap": File(tensors=[("a", (1 << 62,), 0, 0)]),
    "past the end": File(tensors=[("a", (4096,), 0, 0)]),
    "offset past the end": File(tensors=[("a", (4,), 0, 1 << 60)]),
    "offset not aligned": File(tensors=[("a", (4,), 0, 4)]),
    "overlap": File(tensors=[("a", (4,), 0, 0), ("b", (4,), 0, 0)]),
    "gap": File(tensors=[("a", (4,), 0, 0), ("b", (4,), 0, 64)]),
    "row not whole blocks": File(tensors=[("a", (33,), 8, 0)]),
    "duplicate tensor": File(tensors=[("a", (4,), 0, 0), ("a", (4,), 0, 32)]),
    "unknown type": File(tensors=[("a", (4,), 4, 0)]),
    "tensor name of 300 bytes": File(tensors=[("a" * 300, (4,), 0, 0)]),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelFormatError) as refused:
        read(tmp_path, HOSTILE[name])
    assert len(str(refused.value)) > 20


def test_a_header_of_more_than_64_mib_is_refused(tmp_path: Path) -> None:
    """Three arrays of 32 MiB in a file whose middle takes no disk space."""
    path = tmp_path / "long.gguf"
    with path.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, 0, 3))
        for key in "abc":
            file.write(string(key) + struct.pack("<IIQ", 9, 10, 4 << 20))
            file.seek(8 * (4 << 20), 1)
        file.truncate()
    with pytest.raises(ModelFormatError, match="header limit"):
        read_header(path)


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    whole = File(data=bytes(32 + 68)).build()
    for length in range(len(whole)):
        with pytest.raises(ModelFormatError):
            read(tmp_path, whole[:length])
    read(tmp_path, whole)


@pytest.mark.parametrize("kind", sorted(UNSUPPORTED))
def test_unsupported_types_are_named(tmp_path: Path, kind: int) -> None:
    with pytest.raises(ModelFormatError, match=UNSUPPORTED[kind]):
        read(tmp_path, File(tensors=[("a", (256,), kind, 0)]))


def test_block_sizes_are_the_formats() -> None:
    for stored in FORMATS.values():
        quant = gguf.GGMLQuantizationType[stored.name]
        assert (stored.ggml_id, stored.block_elements, stored.block_bytes) == (quant.value, *gguf.GGML_QUANT_SIZES[quant])
    named = {quant.value: quant.name for quant in gguf.GGMLQuantizationType}
    assert {kind: name for kind, name in named.items() if kind not in BY_ID} == UNSUPPORTED


def write_with_package(path: Path, names: list[str], split: tuple[int, int, int] | None = None) -> None:
    writer = gguf.GGUFWriter(path, "tiny")
    writer.add_uint32("tiny.block_count", 2)
    writer.add_array("tiny.names", ["a", "b"])
    if split:
        writer.add_uint16("split.no", split[0])
        writer.add_uint16("split.count", split[1])
        writer.add_int32("split.tensors.count", split[2])
    for name in names:
        kind = gguf.GGMLQuantizationType[name]
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        rows = np.random.default_rng(1).integers(0, 255, (3, 2 * size), dtype=np.uint8)
        if name == "F32":
            writer.add_tensor(name, np.zeros((3, 2 * elements), np.float32))
        elif name == "F16":
            writer.add_tensor(name, np.zeros((3, 2 * elements), np.float16))
        else:
            writer.add_tensor(name, rows, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def same_as_package(path: Path) -> None:
    ours, theirs = read_header(path), gguf.GGUFReader(path)
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        found = ours.tensors[tensor.name]
        assert found.shape == tuple(int(n) for n in reversed(tensor.shape))
        assert (found.kind, found.offset, found.bytes) == (tensor.tensor_type.name, tensor.data_offset, tensor.n_bytes)
    for key, field in theirs.fields.items():
        if not key.startswith("GGUF."):
            mine = ours.metadata[key]
            expected = field.contents()
            assert (list(mine) if isinstance(expected, list) else mine) == expected, key  # type: ignore[arg-type]


def test_files_of_the_gguf_package(tmp_path: Path) -> None:
    write_with_package(tmp_path / "all.gguf", list(FORMATS))
    same_as_package(tmp_path / "all.gguf")


@pytest.mark.night  # the package's reader takes 15 seconds over the vocabulary
def test_the_demo_equals_the_gguf_package(demo_file: Path) -> None:
    same_as_package(demo_file)


def test_split_files(tmp_path: Path) -> None:
    names = [["F32", "Q8_0"], ["Q4_K"], ["F16"]]
    for number, part in enumerate(names):
        write_with_package(tmp_path / f"m-{number + 1:05d}-of-00003.gguf", part, (number, 3, 4))
    header = read_header(tmp_path / "m-00001-of-00003.gguf")
    assert list(header.tensors) == ["F32", "Q8_0", "Q4_K", "F16"]
    assert [path.name for path in header.files] == [f"m-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    with pytest.raises(ModelFormatError, match="give the first"):
        read_header(tmp_path / "m-00002-of-00003.gguf")
    (tmp_path / "m-00003-of-00003.gguf").unlink()
    with pytest.raises(ModelNotFoundError):
        read_header(tmp_path / "m-00001-of-00003.gguf")
    write_with_package(tmp_path / "m-00003-of-00003.gguf", ["Q4_K"], (2, 3, 4))
    with pytest.raises(ModelFormatError, match="two parts"):
        read_header(tmp_path / "m-00001-of-00003.gguf")


@pytest.mark.parametrize(
    ("name", "split", "words"),
    [
        ("m-00002-of-00002.gguf", (0, 2, 2), "does not belong to this split"),
        ("m-00002-of-00002.gguf", (1, 3, 2), "does not belong to this split"),
        ("m-00001-of-00002.gguf", (1, 2, 2), "the first .0. was expected"),
        ("m-00001-of-00002.gguf", (0, 2, 3), "should hold 3 tensors and holds 2"),
        ("m-00001-of-00002.gguf", (0, 3, 2), "split into 3 files"),
        ("m-00001-of-00002.gguf", (0, 60_000, 2), "split.count is 60000"),
    ],
)
def test_parts_that_do_not_fit_are_refused(tmp_path: Path, name: str, split: tuple[int, int, int], words: str) -> None:
    write_with_package(tmp_path / "m-00001-of-00002.gguf", ["F32"], (0, 2, 2))
    write_with_package(tmp_path / "m-00002-of-00002.gguf", ["F16"], (1, 2, 2))
    assert list(read_header(tmp_path / "m-00001-of-00002.gguf").tensors) == ["F32", "F16"]
    write_with_package(tmp_path / name, ["F16" if name.startswith("m-00002") else "F32"], split)
    with pytest.raises(ModelFormatError, match=words):
        read_header(tmp_path / "m-00001-of-00002.gguf")


def test_typed_access(tmp_path: Path) -> None:
    header = read(tmp_path, File(pairs=[("n", value("u32", 7)), ("x", value("f32", float("nan"))), ("b", value("bool", 1))]))
    assert header.integer("n", 1, 10) == 7
    assert header.integer("missing", 1, 10, default=3) == 3
    for wrong in (
        lambda: header.integer("n", 8, 10),
        lambda: header.integer("missing", 1, 10),
        lambda: header.integer("b", 0, 10),
        lambda: header.number("x", 0, 1),
        lambda: header.text("n"),
        lambda: header.strings("n"),
        lambda: header.numbers("n", "i"),
    ):
        with pytest.raises(ModelFormatError):
            wrong()


def test_headers_are_read_once_where_they_are_kept_and_nowhere_else(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(File().build())
    with headers_kept():
        first = read_header(path)
        path.write_bytes(b"")
        assert read_header(path) is first
    with pytest.raises(ModelFormatError):
        read_header(path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError):
        read_header(tmp_path / "nothing.gguf")
    with pytest.raises(ModelNotFoundError):
        read_header(tmp_path)
