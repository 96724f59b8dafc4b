"""What lone prompts and steps of one stream took is kept where nobody has verified the machine, and makes its simulations vary."""

from array import array
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest

from ridgeline.core.events import Computed, Scheduled
from ridgeline.facts.headers.config_json import read_config
from ridgeline.models.table import KNOWN
from ridgeline.observe.served import LEAST_PROMPTS, keep_lone_prompts, lone_prompts
from ridgeline.observe.steps import StepLog
from ridgeline.planning.arguments import PlanOptions, deployment_of
from ridgeline.planning.corrections import START_SPREAD, Correction, corrected, keep_correction, keep_front_end, read_correction
from ridgeline.planning.deployment import Deployment
from ridgeline.planning.step import RowGroup, pass_seconds, step_work
from ridgeline.planning.verify import Verification

HOST = 0.002
STARTED = Correction(1e12, 4e10, 2e11, 1e12, 0.4, 10**8, 3)
FACTORS = [0.8 + number / 20 for number in range(LEAST_PROMPTS)]


@pytest.fixture
def plan() -> Deployment:
    """8 B parameters in four bits on a CPU of the table, as a start has it."""
    model = read_config(KNOWN / "llama-3-8b.json", "llama-3-8b").facts
    found = deployment_of(model, PlanOptions("epyc-9654", dtype="q4_k", kv_dtype="bf16", users=32, chunk=512))
    return replace(found, device=replace(found.device, host_seconds=0.0, spread=()))


def served(plan: Deployment, factors: list[float], *, others: Callable[[int], tuple[int, ...]] = lambda number: ()) -> StepLog:
    """Prompts of 100 from position 16 on, each so much longer than estimated, with three steps of its answer, and where `others` has some,
    rows of so many tokens beside the prompt."""
    log, now, step = StepLog(), 0.0, 0

    def add(counts: list[int], positions: int, seconds: float) -> None:
        nonlocal now, step
        numbers = tuple(range(len(counts)))
        log.planned(Scheduled(step, now, numbers, array("i", counts), 0, 9, 0, positions=positions))
        now += seconds
        log.committed(Computed(step, now, numbers, array("i", [1] * len(counts))), now)
        now, step = now + 0.3, step + 1

    for number, factor in enumerate(factors):
        beside = others(number)
        prompt = pass_seconds(plan, step_work(plan, [RowGroup(16, 100)]))
        add([100, *beside], 16, (99.0 if beside else HOST + factor * prompt))
        for position in (116, 117, 118):
            add([1], position, HOST + pass_seconds(plan, step_work(plan, [RowGroup(position, 1)])))
    return log


def test_lone_prompts_are_held_against_their_estimates(plan: Deployment) -> None:
    """Those beside others are not, and the time between steps is nobody's."""
    found = lone_prompts(served(plan, FACTORS), 0, plan)
    assert found is not None and found[0] == pytest.approx(HOST, rel=1e-3) and found[1] == pytest.approx(FACTORS, rel=1e-3)
    mixed = lone_prompts(served(plan, [*FACTORS, 1.0, 1.0], others=lambda number: {3: (1, 1), 4: (100,)}.get(number, ())), 0, plan)
    assert mixed is not None and len(mixed[1]) == LEAST_PROMPTS and max(mixed[1]) < 3
    assert lone_prompts(served(plan, FACTORS[1:]), 0, plan) is None, "few tell nothing of the slowest"
    assert lone_prompts(served(plan, FACTORS), 4, plan) is None, "another model's step counts"


def test_what_is_served_is_kept_until_the_machine_is_verified(plan: Deployment, tmp_path: Path) -> None:
    log = served(plan, FACTORS)
    assert not keep_lone_prompts(log, 0, Verification((), plan, "native"), tmp_path), "no start has told anything"
    keep_correction(tmp_path, plan, "native", STARTED)
    assert keep_lone_prompts(log, 0, Verification((), plan, "native"), tmp_path)
    kept = read_correction(tmp_path, plan, "native")
    assert kept is not None and kept.host_seconds == pytest.approx(HOST, rel=1e-3) and kept.spread == pytest.approx(FACTORS, rel=1e-3)
    assert kept.steps == LEAST_PROMPTS and corrected(plan, kept).device.spread == kept.spread
    assert keep_lone_prompts(served(plan, [2.0 * each for each in FACTORS]), 0, Verification((), plan, "native"), tmp_path)
    again = read_correction(tmp_path, plan, "native")
    assert again is not None and again.spread == pytest.approx([2.0 * each for each in FACTORS], rel=1e-3), "the machine is slower now"
    assert not keep_lone_prompts(served(plan, [5.0 * each for each in FACTORS]), 0, Verification((), plan, "native"), tmp_path)
    assert read_correction(tmp_path, plan, "native") == again, "other programs had the cores"
    keep_front_end(tmp_path, plan, "native", 0.01, 0.001, (1.0,))
    assert not keep_lone_prompts(log, 0, Verification((), plan, "native"), tmp_path)


def test_a_start_s_steps_become_those_of_a_server(plan: Deployment) -> None:
    """Its quickest steps in a hot loop are nobody's first token. Devices with a memory of their own compute by themselves."""
    device = corrected(plan, STARTED).device
    assert device.spread == START_SPREAD and 1.1 < median(device.spread) < 1.5 and device.host_seconds > 0
    assert corrected(plan, replace(STARTED, steps=10)).device.spread == ()
    gpu = corrected(replace(plan, device=replace(plan.device, is_gpu=True)), STARTED).device
    assert (gpu.spread, gpu.host_seconds) == ((), 0.0)
