"""llama.cpp reads the GGUF files of these tests and computes the same, keys for scaled RoPE, caps and windows included.

Needs the package llama-cpp-python, which pip compiles in about ten minutes; hence only by night.
"""

import numpy as np
import pytest
from checkpoints import CONTEXT, GGUFS, WINDOW
from tiny import Driver, dense, log_softmax

from ridgeline.facts.headers.read import read_model_facts
from ridgeline.facts.headers.rope import select_rope

UNWINDOWED = {"mistral": WINDOW, "phi3-short": 20, "starcoder2": WINDOW}
"""Windows that llama.cpp does not apply: positions before them are compared."""


@pytest.mark.night
@pytest.mark.parametrize("name", GGUFS)
def test_llama_cpp_computes_the_same(checkpoint, stored, name: str) -> None:
    """Within 5e-3: llama.cpp looks GELU up in a table of half precision. Its contexts are multiples of 256, so Phi-3 is long for it."""
    llama_cpp = pytest.importorskip("llama_cpp")
    path = stored(name, "F32")
    facts = select_rope(read_model_facts(path), CONTEXT)[0]
    theirs = llama_cpp.Llama(str(path), n_ctx=CONTEXT, logits_all=True, verbose=False, n_threads=1, type_k=0, type_v=0)
    driver = Driver(facts, dense(facts))
    for number, ids in enumerate(checkpoint(name).prompts()):
        theirs.reset()
        theirs.eval(ids)
        same = slice(UNWINDOWED.get(name, len(ids)))
        ours, other = log_softmax(driver.step((number, ids))[same]), log_softmax(np.array(theirs.scores[: len(ids)])[same])
        assert np.abs(ours - other).max() < 5e-3
        gap = np.diff(np.sort(ours, axis=1)[:, -2:], axis=1)[:, 0]
        assert (ours.argmax(1) == other.argmax(1))[gap > 1e-2].all()
    theirs.close()
