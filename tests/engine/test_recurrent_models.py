"""Models with recurrent layers in the engine: no shared blocks, memory as planned, and what is refused by name."""

from pathlib import Path
from random import Random

import pytest
from checkpoints import make_checkpoint
from convert import write_gguf
from serving import serve
from speculating import request, waves

from ridgeline.compute.cpu import ext
from ridgeline.config.groups import EngineConfig
from ridgeline.engine.compose import start_engine
from ridgeline.errors import ConfigError
from ridgeline.facts.headers.read import read_model_facts
from ridgeline.planning.memory import state_bytes

pytestmark = pytest.mark.skipif(ext.lost() is not None, reason="the native extension is not built")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = make_checkpoint("qwen3next", tmp_path_factory.mktemp("recurrent"))
    return write_gguf(made.directory / "F32.gguf", made.model, "qwen3next", "F32")


@pytest.mark.parametrize("runner", ["native", "numpy"])
def test_rows_are_reused_and_share_nothing(model: Path, runner: str) -> None:
    """Four rows for thirty requests, some of them with one prompt and several choices: whoever had a row before leaves no trace."""
    draw = Random(3)
    requests = [request(number, draw, read_model_facts(model).tokens) for number in range(30)]
    alone = {"runner": runner, "max_num_seqs": 1, "max_num_batched_tokens": 64, "max_model_len": 64}
    crowd = {**alone, "max_num_seqs": 4, "max_num_batched_tokens": 17}
    expected, found = serve(model, [requests], **alone), serve(model, waves(requests, draw), **crowd)
    assert found.answers == expected.answers and found.ends == expected.ends
    assert not expected.hit_tokens and not found.hit_tokens


@pytest.mark.parametrize(("drafts", "positions"), [({}, 1), ({"speculative": "ngram", "num_speculative_tokens": 3}, 4)])
def test_states_take_what_was_planned(model: Path, drafts: dict[str, object], positions: int) -> None:
    engine, decisions = start_engine(EngineConfig(str(model), max_num_seqs=3, **drafts), lambda stage, fraction: None)  # type: ignore[arg-type]
    states = engine.executor.backend._kv.states  # type: ignore[attr-defined]
    arrays = [*states.tails.values(), *states.states.values()]
    engine.executor.close()
    assert sum(array.nbytes for array in arrays) == 3 * state_bytes(read_model_facts(model), positions)
    planned, said = 3 * state_bytes(read_model_facts(model), positions), {each.name: each for each in decisions}
    assert said["enable_prefix_caching"].value == "False" and f"{planned} bytes" in said["max_num_seqs"].reason


@pytest.mark.parametrize(
    "settings",
    [{"swap_space": 0.01}, {"kv_cache_dir": "blocks", "kv_cache_secret_file": "secret"}],
    ids=lambda settings: next(iter(settings)),
)
def test_tiers_are_refused(model: Path, settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"recurrent layers: its sequences share no blocks.*remove tiers") as refused:
        start_engine(EngineConfig(str(model), **settings), lambda stage, fraction: None)  # type: ignore[arg-type]
    assert "--swap-space" in refused.value.fix
