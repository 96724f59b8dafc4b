"""Makes a small vocabulary of a large one: `python tests/gold/reduce.py VOCABULARY.gguf SMALL.gguf.xz`.

Kept, under their ids, are control tokens, single bytes, and all pieces and merges that llama.cpp's strings for this vocabulary
(VOCABULARY.gguf.inp) and the first strings of tokenizer.jsonl could need: those that are part of a string. Every other id gets a name
that stands for nothing. So the ids of these strings are those of the whole vocabulary; test_tokenizer_families.py compares them with
llama.cpp's.
"""

import json
import lzma
import sys
from pathlib import Path

from gguf import GGUFReader, GGUFValueType, GGUFWriter
from tokenizers.pre_tokenizers import ByteLevel

NORMAL, UNUSED, BYTE = 1, 5, 6
STRINGS, LONGEST = 400, 24


def parts(texts: list[str], byte_level: bool) -> set[str]:
    """All parts of the strings, as the vocabulary spells them."""
    whole = ByteLevel(add_prefix_space=False, use_regex=False)
    spelt = [("".join(part for part, _ in whole.pre_tokenize_str(t)) if byte_level else "▁" + t.replace(" ", "▁")) for t in texts]
    return {s[at : at + size] for s in spelt for at in range(len(s)) for size in range(1, LONGEST + 1)}


def small(path: Path, target: Path) -> None:
    reader = GGUFReader(path)
    fields = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    tokens, types = list(fields["tokenizer.ggml.tokens"].contents()), list(fields["tokenizer.ggml.token_type"].contents())
    byte_level = fields["tokenizer.ggml.model"].contents() == "gpt2"
    texts = Path(f"{path}.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    recorded = Path(__file__).with_name("tokenizer.jsonl").read_text(encoding="utf-8").splitlines()
    needed = parts(texts + [json.loads(line)["text"] for line in recorded[:STRINGS]], byte_level)
    kept = [kind not in (NORMAL, UNUSED) or len(piece) == 1 or piece in needed for piece, kind in zip(tokens, types, strict=True)]
    named = {piece for piece, keep in zip(tokens, kept, strict=True) if keep}
    writer = GGUFWriter(target.with_suffix(""), str(fields["general.architecture"].contents()))
    for name, field in fields.items():
        values = field.contents()
        if name == "tokenizer.ggml.tokens":
            values = [piece if keep else f"[unused{at}]" for at, (piece, keep) in enumerate(zip(tokens, kept, strict=True))]
        elif name == "tokenizer.ggml.merges":
            values = [merge for merge in values if named.issuperset(pair := merge.split(" ", 1)) and "".join(pair) in named]
        elif name == "tokenizer.ggml.scores":
            values = [score if keep else -1e6 for score, keep in zip(values, kept, strict=True)]
        if name != "general.architecture":
            kind = field.types[0]
            writer.add_key_value(name, values, kind, field.types[-1] if kind == GGUFValueType.ARRAY else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    data = target.with_suffix("").read_bytes()
    target.with_suffix("").unlink()
    target.write_bytes(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME))
    print(f"{path.name}: {sum(kept)} of {len(tokens)} pieces, {target.stat().st_size} bytes")


if __name__ == "__main__":
    small(Path(sys.argv[1]), Path(sys.argv[2]))
