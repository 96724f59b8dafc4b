"""`LLM.embed`, `encode` and `score`: their parameters, and what they refuse."""

import numpy as np
import pytest

from ridgeline import LLM, PoolingParams
from ridgeline.errors import RequestError


def test_parameters_and_scores() -> None:
    with LLM("fake:") as llm:
        (whole,) = llm.embed("hello")
        (long,) = llm.embed("hello", pooling_params=PoolingParams(normalize=False, dimensions=3))
        part = np.array(whole.outputs.embedding[:3])
        assert np.allclose(np.array(long.outputs.embedding) / np.linalg.norm(long.outputs.embedding), part / np.linalg.norm(part))
        assert whole.prompt_token_ids == (256, *b"hello")
        cut = llm.embed("hello, world", truncate_prompt_tokens=6)
        assert cut[0].outputs == whole.outputs
        same, other = llm.score("hello", ["hello", "other"])
        assert same.outputs.score == pytest.approx(1) and abs(other.outputs.score) < 1
        for wrong in (lambda: llm.score(["a", "b"], ["c"]), lambda: llm.embed(""[:0] or [[]]), lambda: llm.embed([[999]])):
            with pytest.raises(RequestError):
                wrong()
        for given in ({"dimensions": 0}, {"dimensions": 99}):
            with pytest.raises(RequestError, match="dimensions"):
                llm.embed("a", pooling_params=PoolingParams(**given))
        with pytest.raises(RequestError, match="truncate"):
            llm.embed("a", truncate_prompt_tokens=10**9)
