"""The scripted model: which answer a prompt gets, byte by byte, and scripts that are none."""

from typing import Any

import pytest

from ridgeline.config.groups import EngineConfig
from ridgeline.core.params import RowParams, Sampling
from ridgeline.engine.compose import start_executor
from ridgeline.errors import ConfigError
from ridgeline.sim.laws.model import FakeModel, chain_stamps
from ridgeline.sim.laws.script import END, ScriptedModel

MODEL = ScriptedModel(script=(("Bern?", "Sunny, 21 °C"), ("in Bern?", "Longer"), ("21 °C", "Done"), ("Basel?", "")))
GREEDY = Sampling(temperature=0)


def said(prompt: str, model: FakeModel = MODEL, tokens: int = 20, **row: Any) -> bytes:
    """What the model says before the id that ends its answer; at most `tokens`."""
    ids = list(prompt.encode())
    params = RowParams(seed=1, choice=0, prompt_tokens=len(ids), **{"sampling": GREEDY, **row})
    while (count := len(ids) - params.prompt_tokens) < tokens:
        token = model.sample(chain_stamps(model.origin(params), ids)[-1], params, len(ids), ids if model.reads_ids else None)
        if token == END:
            return bytes(ids[-count:] if count else b"")
        ids.append(token)
    return bytes(ids[params.prompt_tokens :])


def test_the_text_that_stands_last_decides() -> None:
    assert said("system: Basel?\nuser: How is Bern?\n").decode() == "Sunny, 21 °C"
    assert said("user: How is it in Bern?\n") == b"Longer"
    assert said("user: How is it in Bern?\ntool: 21 °C\n") == b"Done"
    assert said("user: Bern? 21 °C ... Basel?") == b""
    assert said("user: Zug?") == said("user: Zug?", FakeModel()) != said("user: Genf?")


def test_an_answer_depends_on_the_prompt_alone() -> None:
    hot = Sampling(temperature=1.5, presence_penalty=1.0, bad_words=((68, 111),))
    assert said("21 °C", sampling=hot) == said("21 °C") == b"Done"
    assert len(said("21 °C", min_tokens=8, banned_until=frozenset({END}))) >= 8, "an end that a request bans is none"


@pytest.mark.parametrize("script", ["[[1, 2]]", '[["a"]]', '[["", "b"]]', '"ab"', "[3]"])
def test_scripts_that_are_none(script: str) -> None:
    with pytest.raises(ConfigError, match="cannot be made"):
        start_executor(EngineConfig(f'fake:{{"script": {script}}}'), lambda stage, fraction: None)
