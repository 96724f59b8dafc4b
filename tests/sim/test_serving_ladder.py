"""Part 3, "Serving Strategy Comparison", as a simulation of Llama 3 8B on an A100 with mixed lengths: the order of the strategies holds."""

from random import Random

import pytest

from ridgeline.cli.scenarios import make_scenario
from ridgeline.sim.fleet.measures import SimulationReport
from ridgeline.sim.fleet.traffic import lognormal

FLOOD = {
    "device": "a100", "rate": "1000", "requests": "320", "prompt": "lognormal:300", "output": "lognormal:150", "max_num_seqs": "32",
    "context": "4096", "max_num_batched_tokens": "16384",
}  # fmt: skip


def served(**changes: str) -> SimulationReport:
    """The same flood of requests, served so."""
    return make_scenario("llama-3-8b", FLOOD | changes, None).run(1)


@pytest.fixture(scope="module")
def ladder() -> dict[str, SimulationReport]:
    return {
        "one after the other": served(scheduling_policy="one"),
        "static": served(scheduling_policy="static"),
        "continuous": served(),
        "continuous, all that pages hold": served(max_num_seqs="128"),
    }


def test_every_rung_serves_more(ladder: dict[str, SimulationReport]) -> None:
    """140, 3,600, 5,400 and 7,000 tok/s in the notes. Static batching of mixed lengths loses what its rows idle, continuous does not."""
    one, static, continuous, pages = (each.output_tokens_per_second for each in ladder.values())
    assert one < 140 and static > 5 * one and continuous > 1.5 * static and pages > 1.15 * continuous


def test_rows_are_full_where_they_are_refilled(ladder: dict[str, SimulationReport]) -> None:
    """40 … 60 % of a static batch's rows work, 85 % and more of a continuous one's, its last answers apart."""
    assert ladder["static"].running / 32 < 0.6 < 0.78 < ladder["continuous"].running / 32


def test_pieces_of_prompts_keep_streams_even() -> None:
    """Chunked prefill: what bounds a step bounds the gap that everybody sees."""
    load = {"prompt": "3000", "output": "100", "rate": "3", "requests": "60"}
    whole = served(**load, max_num_batched_tokens="8192", step_ms="60000")
    pieces = served(**load, max_num_batched_tokens="512", step_ms="60000")
    timed = served(**load, max_num_batched_tokens="8192", step_ms="100")
    assert pieces.itl.p99 < 0.4 * whole.itl.p99
    assert timed.itl.p99 < 0.11 and timed.itl.p99 < 0.5 * whole.itl.p99


def test_a_reservation_of_the_longest_wastes_most() -> None:
    """Pages serve "2 … 4 times" more: lognormal answers of a mean of 150 leave most of a reservation of 4,096 tokens unused."""
    rng, draw = Random(1), lognormal(150)
    lengths = [min(4096, 300 + draw(rng)) for _ in range(256)]
    assert 1024 * len(lengths) / sum(lengths) > 2
    first = lengths[:32]  # a static batch ends with its longest: that share of its slots idles
    assert 0.5 < 1 - sum(first) / (max(first) * len(first)) < 0.9
