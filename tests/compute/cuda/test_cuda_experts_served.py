"""Models with experts, and with a latent in place of keys and values, behind the engine, their weights from a file: the numpy runner's
answers in whatever chunks."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from serving import serve
from small import device

from ridgeline.compute.cuda import backend
from ridgeline.compute.runtime import worker
from ridgeline.core.params import Admitted, Sampling

SETTINGS = {"dtype": "f32", "kv_dtype": "f32", "block_size": 4, "max_num_seqs": 2, "max_model_len": 16}


@pytest.fixture(autouse=True)
def _on_a_device() -> Iterator[None]:
    """The GPU, or interpreted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "gpu_missing", lambda: None)
        patch.setattr(backend, "open_device", device)
        yield


@pytest.mark.filterwarnings("ignore:All-NaN slice")
@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("qwen3moe", "F32"),
        ("deepseek3", "F32"),
        *(pytest.param(name, "Q8_0", marks=pytest.mark.night) for name in ("qwen3moe", "deepseek2", "deepseek3")),
    ],
)
def test_answers_are_the_numpy_runners(stored: Callable[[str, str], Path], name: str, form: str) -> None:
    """Two rows of different lengths in chunks of five tokens, two steps in flight."""
    prompts = [np.random.default_rng(number).integers(4, 280, length).tolist() for number, length in ((1, 6), (2, 3))]
    asked = [Admitted(f"r{number}", tuple(ids), max_tokens=3, seed=number, sampling=Sampling()) for number, ids in enumerate(prompts)]
    path = stored(name, form)
    theirs = serve(path, [asked], **{**SETTINGS, "runner": "numpy", "dtype": "auto"})
    ours = serve(path, [asked], **SETTINGS, runner="cuda", depth=2, max_num_batched_tokens=5, batch_invariant=True)
    assert {key: ids for key, (ids, _) in ours.answers.items()} == {key: ids for key, (ids, _) in theirs.answers.items()}
