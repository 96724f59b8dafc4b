"""Adapters and speculation together: drafts change no bit of what a request with an adapter, or its neighbour without one, is answered."""

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from lora_files import write_tiny_adapter
from serving import Run, read_adapters, serve
from speculating import AsMuchAsFits, Scripted, count_accepted, request, settings, waves
from tiny import Tiny, write_tiny

from ridgeline import LLM, SamplingParams
from ridgeline.compute.cpu import ext
from ridgeline.core.drafts.model import ModelDrafter
from ridgeline.core.params import Adapter
from ridgeline.engine.engine import Engine
from ridgeline.facts.headers.adapter import digest_of, file_contents, read_adapter
from ridgeline.facts.headers.read import read_model_facts

SIZE, LOAD = Tiny(), 10
NIGHT = [pytest.mark.night, pytest.mark.timeout(7200)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Adapter]]:
    folder = tmp_path_factory.mktemp("adapters")
    path, adapters = write_tiny(folder / "tiny.gguf", SIZE), []
    for number, rank in enumerate((1, 4, 16)):
        own = write_tiny_adapter(folder / f"a{number}", number, rank=rank)
        adapters.append(Adapter(f"a{number}", digest_of(file_contents(read_adapter(own, read_model_facts(path)))), str(own)))
    return path, adapters


@pytest.mark.parametrize(
    ("runner", "seeds"),
    [("native", range(2)), pytest.param("native", range(2, 100), marks=NIGHT), pytest.param("numpy", range(20), marks=NIGHT)],
)
def test_drafts_change_no_bit_of_adapters(model: tuple[Path, list[Adapter]], runner: str, seeds: range) -> None:
    """Three adapters in two slots and rows of none; drafts that are right, wrong, or right for a while."""
    if runner == "native" and ext.lost() is not None:
        pytest.skip("the native extension is not built")
    path, adapters = model
    accepted, apart = 0, 0
    for seed in seeds:
        draw = Random(seed)
        chosen = settings(draw, runner) | {"enable_lora": True, "max_loras": 2}
        requests = [replace(request(number, draw, SIZE.vocab), adapter=draw.choice((None, *adapters))) for number in range(LOAD)]

        def plain(engine: Engine) -> None:
            read_adapters(engine, adapters)

        without: Run = serve(path, waves(requests, draw), plain, **chosen)
        base = serve(path, [[replace(each, adapter=None) for each in requests]], None, **chosen)
        known = {key: ids for key, (ids, _) in without.answers.items()}
        drafter = Scripted(known, draw, draw.randint(1, 4), SIZE.vocab)

        def drafting(engine: Engine, drafter: Scripted = drafter) -> None:
            read_adapters(engine, adapters)
            engine.scheduler.drafter = drafter

        found = serve(path, waves(requests, draw), drafting, **chosen)
        assert found.answers == without.answers and found.ends == without.ends, f"load {seed}"
        assert len(found.ends) == sum(each.choices for each in requests)
        accepted += drafter.accepted
        apart += sum(base.answers[key] != answer for key, answer in without.answers.items())
    assert accepted > 5 * len(seeds) and apart > 2 * len(seeds)


@pytest.mark.parametrize("drafter", ["ngram", "suffix", "draft", "auto"])
def test_every_drafter_beside_adapters(model: tuple[Path, list[Adapter]], drafter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each drafter that is asked for by name, a model among them: answers of adapters and of none, bit for bit, and drafts that hold."""
    path, adapters = model
    common: dict[str, Any] = {"lora": [f"{each.name}={each.path}" for each in adapters], "max_loras": 2, "max_model_len": 128, "seed": 1}
    names = [None, *(each.name for each in adapters)] * 3
    prompts = [[5, 9, 5, 9, 5, 9, number] for number in range(len(names))]
    each = SamplingParams(max_tokens=40, logprobs=1, ignore_eos=True)
    allowed = (None, (5, 9))
    params = [replace(each, temperature=at % 3 / 2, seed=at, allowed_token_ids=allowed[at % 2]) for at in range(len(names))]
    found, accepted = [], count_accepted(monkeypatch)
    monkeypatch.setattr(ModelDrafter, "_depths", AsMuchAsFits._depths)  # whatever it costs: a busy machine's prices may say none
    for own in ({}, {"speculative": drafter, **({"draft_model": str(path)} if drafter in ("draft", "auto") else {})}):
        with LLM(path, **common, **own) as llm:
            found.append([each.outputs for each in llm.generate(prompts, params, lora=names)])
    assert found[1] == found[0] and len({each[0].token_ids for each in found[0]}) > len(names) / 2
    assert sum(accepted) > 20
