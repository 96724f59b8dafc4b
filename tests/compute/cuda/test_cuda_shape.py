"""A runner of a shape without weights decodes and prefills, in bf16 and with fp8 weights and cache."""

from pathlib import Path

import pytest
from small import device, small

from ridgeline.compute.cuda.shape import shaped, step_of


@pytest.mark.parametrize(("dtype", "kv_dtype"), [("bf16", "bf16"), ("fp8", "fp8")])
def test_decode_and_prefill(tmp_path: Path, dtype: str, kv_dtype: str) -> None:
    facts, _ = small(tmp_path, "llama")
    made = shaped(facts, device(), dtype=dtype, kv_dtype=kv_dtype, rows=2, context=20, tokens=8)
    for launched, rows in ((made.prefill(6), 1), (made.decode(2, 17), 2)):
        ids, finite = made.runner.read(launched)
        assert len(ids) == rows and all(0 <= token < facts.tokens for token in ids) and finite.all()


def test_rows_have_pages_of_their_own() -> None:
    step = step_of([1, 1, 1], [40, 40, 40], 12, 2, known=False)
    pages = [page for table in step.tables for page in table.flatten().tolist()]
    assert len(set(pages)) == len(pages) == 18 and 0 not in pages and max(pages) <= 24
    with pytest.raises(ValueError, match="need 9 pages"):
        step_of([1, 1, 1], [40, 40, 40], 8, 2, known=False)
