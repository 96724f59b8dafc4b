"""A draft model on a device: what it drafts is what the target would sample, and answers are those without it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from serving import Answer, serve
from small import SIZE, served_on_device
from speculating import AsMuchAsFits
from tiny import Tiny, write_tiny

from ridgeline.compute.cuda.drafts import DeviceDraftModel
from ridgeline.compute.cuda.runner import CudaRunner
from ridgeline.core.drafts.model import ModelDrafter
from ridgeline.core.params import Admitted, Sampling
from ridgeline.core.plan import Plan, Result
from ridgeline.core.sequence import Sequence
from ridgeline.engine.engine import Engine

SMALL = {"max_num_batched_tokens": 12, "max_num_seqs": 3, "max_model_len": 16, "block_size": 4}
ON_DEVICE: list[dict[str, object]] = [{"temperature": 0.0}, {"temperature": 4.0}, {"temperature": 3.0, "top_p": 0.9, "top_k": 40}]
BY_HOST: list[dict[str, object]] = [{"temperature": 4.0, "logprobs": 1, "presence_penalty": 2.0}, {"temperature": 4.0}]


@pytest.fixture(scope="module", autouse=True)
def _on_a_device() -> Iterator[None]:
    with served_on_device(**SMALL):
        yield


class Counted(AsMuchAsFits, ModelDrafter):
    """Drafts as much as there is room for, and counts."""

    drafted = accepted = 0

    def on_commit(self, sequences: list[Sequence], plan: Plan, result: Result) -> None:
        for samples, ids in zip(plan.sample, result.sampled, strict=True):
            self.drafted += samples - 1 if samples else 0
            self.accepted += max(0, len(ids) - 1)
        super().on_commit(sequences, plan, result)


def requests(sampling: list[dict[str, object]]) -> list[Admitted]:
    """Prompts and answers of some lengths: a row catches up in company of those that draft, and some draft less than others."""
    prompts = [tuple(range(20 + 9 * number, 23 + 10 * number)) for number in range(len(sampling))]
    return [
        Admitted(f"r{number}", prompt, max_tokens=6 - number, seed=number, sampling=Sampling(**asked))  # type: ignore[arg-type]
        for number, (prompt, asked) in enumerate(zip(prompts, sampling, strict=True))
    ]


def drafted(
    model: Path, draft: Path, sampling: list[dict[str, object]], also: Callable[[Engine], None]
) -> tuple[dict[tuple[str, int], Answer], Counted]:
    """Answers with three drafts a row at most."""
    drafters: list[Counted] = []

    def attach(engine: Engine) -> None:
        also(engine)
        cache = engine.executor.info.drafts
        assert cache is not None and cache.groups
        drafters.append(Counted(3, (), True, cache._replace(passes=())))
        engine.scheduler.drafter = drafters[0]

    settings = {"speculative": "draft", "draft_model": str(draft), "num_speculative_tokens": 3}
    return serve(model, [requests(sampling)], attach, **settings).answers, drafters[0]


def in_order(answers: dict[tuple[str, int], Answer]) -> dict[tuple[str, int], tuple[int, ...]]:
    return {key: ids for key, (ids, _) in sorted(answers.items())}


@pytest.mark.parametrize("sampling", [ON_DEVICE, BY_HOST], ids=["on the device", "a row by the host"])
def test_the_model_itself_is_never_wrong(model: Path, sampling: list[dict[str, object]], monkeypatch: pytest.MonkeyPatch) -> None:
    """It draws with the target's noise: greedy and sampled, in several passes that the device chains and the host never reads, or by the
    host in between. What the device drafts it verifies too."""
    read_between: list[int] = []
    read: list[int] = []
    copied: list[int] = []
    go_on, hidden = DeviceDraftModel._go_on, CudaRunner.hidden
    monkeypatch.setattr(CudaRunner, "hidden", lambda self, tokens: (copied.append(tokens), hidden(self, tokens))[1])
    monkeypatch.setattr(DeviceDraftModel, "_go_on", lambda self, rows: (read_between.append(len(rows)), go_on(self, rows))[1])
    plain = serve(model, [requests(sampling)], runner="numpy", dtype="auto").answers

    def count_reads(engine: Engine) -> None:
        runner = engine.executor.backend.drafts._device  # type: ignore[attr-defined]
        monkeypatch.setattr(runner, "read", lambda launched: (read.append(1), CudaRunner.read(runner, launched))[1])

    found, drafter = drafted(model, model, sampling, count_reads)
    assert in_order(found) == in_order(plain)
    assert drafter.drafted > 3 and drafter.accepted >= drafter.drafted - 1, (drafter.drafted, drafter.accepted)
    assert bool(read_between) == bool(copied) == bool(read) == (sampling is BY_HOST)


@pytest.mark.parametrize("mapped", [False, True])
def test_another_errs_and_changes_no_id(model: Path, mapped: bool, tmp_path: Path) -> None:
    """With fewer tokens, and with others than the target's: drafts are refused, and rows go on from what stands."""
    other = write_tiny(tmp_path / "draft.gguf", Tiny(**{**SIZE.__dict__, "layers": 1, "vocab": 280}), seed=5)

    def use(engine: Engine) -> None:
        if mapped:
            other_ids = [(token * 7 + 3) % 280 for token in range(SIZE.vocab)]
            engine.executor.use_token_map(other_ids, [-1 if token % 5 == 0 else number for token, number in enumerate(other_ids)])  # type: ignore[attr-defined]

    plain = serve(model, [requests(ON_DEVICE)], runner="numpy", dtype="auto").answers
    found, drafter = drafted(model, other, ON_DEVICE, use)
    assert in_order(found) == in_order(plain)
    assert drafter.drafted > 3 and drafter.accepted < drafter.drafted
