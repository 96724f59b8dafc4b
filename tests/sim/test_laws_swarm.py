"""The swarm itself: no violation in 20,000 steps, every rare situation met, worlds as busy as the laws need them."""

import pytest

from ridgeline.core.commands import Admit
from ridgeline.sim.laws.coverage import SITUATIONS
from ridgeline.sim.laws.swarm import Tally, run_swarm
from ridgeline.sim.laws.workload import MAX_REQUESTS, make_world


def missing(tally: Tally) -> list[str]:
    """Situations that were never met."""
    return [situation for situation in SITUATIONS if not tally.situation_counts[situation]]


@pytest.fixture(scope="module")
def tally() -> Tally:
    return run_swarm(seed=100_000, steps=20_000, workers=2, progress=lambda steps: None)


def test_no_law_is_broken(tally: Tally) -> None:
    assert tally.steps == 20_000
    assert not tally.violations


def test_every_rare_situation_is_met(tally: Tally) -> None:
    assert len(SITUATIONS) >= 25
    assert not missing(tally)


def test_worlds_are_busy(tally: Tally) -> None:
    assert 2 * tally.rows >= 7 * tally.steps  # worlds that bound prompts beside waiting rows take more steps for them, of fewer rows
    assert 2 * tally.seeds_with_groups > tally.seeds
    assert 20 * tally.seeds_with_preemption >= tally.seeds


def test_a_tally_survives_its_line(tally: Tally) -> None:
    assert Tally.from_json(tally.to_json()) == tally


def test_seeds_tell_requests_apart() -> None:
    """The executor reports NaN by (seed, choice): two requests with one seed would answer for each other."""
    for seed in range(100):
        requests = [command.request for _, command in make_world(seed).inbound if isinstance(command, Admit)]
        assert len({request.seed for request in requests}) == len(requests) <= MAX_REQUESTS


@pytest.mark.parametrize(("seed", "steps"), [(1_001_316, 146), (1_002_057, 134), (1_004_114, 118)])
def test_worlds_that_broke_a_law_once(seed: int, steps: int) -> None:
    """Ids from the blocks of another choice, before the choice itself came to NaN there; twice a sequence with a window that started beside
    others with no block left for its next token."""
    assert run_swarm(seed=seed, steps=steps, workers=1, progress=lambda steps: None).violations == []


@pytest.mark.night
@pytest.mark.timeout(600)
def test_a_million_steps() -> None:
    total = run_swarm(seed=1_000_000, steps=1_000_000, workers=2, progress=lambda steps: None)
    assert (total.steps, total.violations, missing(total)) == (1_000_000, [], [])
    assert total.seeds >= 2_000
