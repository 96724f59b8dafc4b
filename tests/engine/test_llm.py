"""`LLM` over the fake executor: vLLM's output types, the same answers in any batch, and no request left open."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from ridgeline.core.params import SamplingParams
from ridgeline.engine.llm import LLM, RequestOutput
from ridgeline.errors import ConfigError, EngineDeadError, RequestError

FAKE = 'fake:{"rows": 8, "blocks": 512}'
PARAMS = SamplingParams(max_tokens=40, seed=3)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(FAKE, depth=2, seed=1) as made:
        yield made


def one(llm: LLM, prompt: Any, **fields: Any) -> RequestOutput:
    (output,) = llm.generate(prompt, replace(PARAMS, **fields))
    return output


def test_prompts_in_every_shape(llm: LLM) -> None:
    text = one(llm, "Hello")
    ids = [256, *b"Hello"]
    assert text.prompt == "Hello" and text.prompt_token_ids == tuple(ids) and text.finished
    assert one(llm, ids).outputs[0].text == one(llm, [ids]).outputs[0].text == one(llm, ["Hello"]).outputs[0].text == text.outputs[0].text
    assert one(llm, ids).prompt is None
    assert llm.generate([]) == []
    answer = text.outputs[0]
    assert len(answer.token_ids) == 40 and bytes(answer.token_ids).decode() == answer.text
    assert (answer.index, answer.finish_reason, answer.stop_reason, answer.logprobs) == (0, "length", None, None)


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_drafts_change_no_answer(llm: LLM, depth: int) -> None:
    prompts = [f"again and again {i}" for i in range(3)]
    params = [replace(PARAMS, max_tokens=60, logprobs=1, allowed_token_ids=ids) for ids in ((65,), (65, 66), None)]
    with LLM(FAKE, depth=depth, seed=1, speculative="ngram", max_num_seqs=1) as drafting:
        assert "up to 4 ids" in {decision.name: decision.reason for decision in drafting.decisions}["speculative"]
        assert [o.outputs for o in drafting.generate(prompts, params)] == [o.outputs for o in llm.generate(prompts, params)]
        assert drafting._engine._engine.scheduler.step < 150  # 180 without


def test_company_changes_no_answer(llm: LLM) -> None:
    prompts = [f"prompt {i} " * (i + 1) for i in range(50)]
    params = [replace(PARAMS, seed=i, n=1 + i % 3) for i in range(50)]
    together = llm.generate(prompts, params)
    assert [output.prompt for output in together] == prompts
    for i in (0, 7, 49):
        (alone,) = llm.generate(prompts[i], params[i])
        assert [c.text for c in alone.outputs] == [c.text for c in together[i].outputs]
        assert len({c.text for c in alone.outputs}) == len(alone.outputs) == 1 + i % 3


def test_stop_strings_close_in_two_phases(llm: LLM) -> None:
    plain = one(llm, "Hello").outputs[0]
    stop = plain.text[17:20]
    cut = one(llm, "Hello", stop=(stop,)).outputs[0]
    end = plain.text.index(stop)
    assert (cut.text, cut.finish_reason, cut.stop_reason) == (plain.text[:end], "stop", stop)
    assert cut.token_ids == plain.token_ids[: end + len(stop)]
    kept = one(llm, "Hello", stop=stop, include_stop_str_in_output=True).outputs[0]
    assert kept.text == plain.text[: end + len(stop)]
    never = one(llm, "Hello", stop=("\x00",)).outputs[0]
    assert (never.text, never.finish_reason, never.stop_reason) == (plain.text, "length", None)


def test_stop_ids(llm: LLM) -> None:
    plain = one(llm, "Hello").outputs[0]
    token = plain.token_ids[10]
    first = plain.token_ids.index(token)
    cut = one(llm, "Hello", stop_token_ids=(token,)).outputs[0]
    assert (cut.token_ids, cut.text, cut.stop_reason) == (plain.token_ids[: first + 1], plain.text[:first], token)


def test_logprobs(llm: LLM) -> None:
    answer = one(llm, "Hello", logprobs=3, max_tokens=5).outputs[0]
    assert answer.logprobs is not None and len(answer.logprobs) == 5
    for token, ranked in zip(answer.token_ids, answer.logprobs, strict=True):
        assert ranked[token].decoded_token == chr(token) and 3 <= len(ranked) <= 4
    assert answer.cumulative_logprob == pytest.approx(sum(r[t].logprob for t, r in zip(answer.token_ids, answer.logprobs, strict=True)))


def test_prefix_cache_is_reported(llm: LLM) -> None:
    one(llm, list(range(3, 200)))
    assert one(llm, list(range(3, 200))).num_cached_tokens == 192


def test_a_bad_prompt_is_refused_before_anything_runs(llm: LLM) -> None:
    with pytest.raises(RequestError, match="max_tokens"):
        llm.generate(["fine", "fine too"], [PARAMS, replace(PARAMS, max_tokens=10**6)])
    with pytest.raises(RequestError, match="2 prompts come with 1"):
        llm.generate(["a", "b"], [PARAMS])
    for prompt in ([[]], [5.0], [None], [[1, -1]], [[258]], [{"prompt": 1}]):
        with pytest.raises(RequestError):
            llm.generate(prompt, PARAMS)  # type: ignore[arg-type]
    assert one(llm, "still there").finished


def test_unseeded_requests_differ_and_the_engines_seed_repeats_them() -> None:
    texts = []
    for _ in range(2):
        with LLM(FAKE, seed=9) as made:
            texts.append([output.outputs[0].text for output in made.generate(["a", "a"], SamplingParams(max_tokens=20))])
    assert texts[0] == texts[1] and texts[0][0] != texts[0][1]


def test_a_failed_step_closes_the_llm(monkeypatch: pytest.MonkeyPatch) -> None:
    made = LLM(FAKE)

    def fail(*_: object) -> None:
        raise MemoryError("out of memory")

    monkeypatch.setattr(made._engine._engine.executor, "collect", fail)
    with pytest.raises(MemoryError):
        made.generate("a")
    with pytest.raises(EngineDeadError):
        made.generate("a")
    made.close()


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError):
        LLM(FAKE, scheduling_policy="lottery")
    with pytest.raises(ConfigError, match="'no_such_field' is not a setting"):
        LLM(FAKE, no_such_field=1)


def test_progress_bar(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate(["a", "b"], PARAMS, use_tqdm=True)
    written = capsys.readouterr()
    assert "100%" in written.err
    assert written.out == ""


def test_needs_no_server_package() -> None:
    blocked = ("msgspec", "starlette", "uvicorn", "uvloop", "rich", "numpy", "torch", "asyncio")
    program = f"""
import sys
for name in {blocked!r}: sys.modules[name] = None
from ridgeline import LLM, SamplingParams
print(LLM({FAKE!r}).generate("Hello", SamplingParams(max_tokens=3))[0].outputs[0].finish_reason)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=20)
    assert done.stdout.strip() == "length", done.stderr
