"""Engines that share cores: each has its part of the threads while others work, and all of them alone; answers do not depend on it."""

from pathlib import Path

import numpy as np
import pytest
from native import NativeDriver
from tiny import Tiny, write_tiny

from ridgeline.compute.cpu import ext
from ridgeline.compute.cpu.packing import pack_weights
from ridgeline.engine.seats import SEATS, Seats
from ridgeline.facts.headers.read import read_model_facts


def test_threads_are_divided_by_who_works() -> None:
    seats = Seats()
    first, second, third = (seats.sit() for _ in range(3))
    assert first and second and third
    assert [each.threads(7) for each in (first, second, third)] == [7, 7, 7], "who begins is alone until others say that they work"
    for each in (first, second, third):
        each.take(works=True)
    assert [each.threads(7) for each in (first, second, third)] == [3, 2, 2], "they add up"
    assert [each.threads(2) for each in (first, second, third)] == [1, 1, 1], "each has one at least"
    second.take(works=False)
    assert (first.threads(8), third.threads(8)) == (4, 4)
    seats.leave(third)
    assert first.threads(8) == 8
    assert (again := seats.sit()) and again.threads(8) == 4
    seats.close()


def test_seats_end_and_come_back() -> None:
    seats = Seats()
    taken = [seats.sit() for _ in range(SEATS)]
    assert all(taken) and seats.sit() is None
    seats.leave(taken[5])  # type: ignore[arg-type]
    assert (seat := seats.sit()) and seat.number == taken[5].number  # type: ignore[union-attr]
    seats.close()


@pytest.mark.skipif(ext.lost() is not None, reason="the native extension is not built")
def test_steps_have_their_bits_with_any_part_of_the_threads(tmp_path: Path) -> None:
    facts = read_model_facts(write_tiny(tmp_path / "tiny.gguf", Tiny(), kind="Q8_0"))
    driver = NativeDriver(facts, pack_weights(facts, 2, lambda stage, fraction: None), threads=4, kv_dtype="f32")
    steps = [driver.inputs([(0, [5])]), driver.inputs([(1, list(range(3, 63)))])]
    wanted = [driver.runner.run(step, driver.kv)["logits"].view(np.uint32).copy() for step in steps]
    parts = iter([1, 4, 2, 2, 1, 3, 4, 1, 4, 4] * 20)
    asked = []
    driver.runner.share_threads(lambda most: (asked.append(most), next(parts))[1])
    for _ in range(100):
        for step, bits in zip(steps, wanted, strict=True):
            assert np.array_equal(driver.runner.run(step, driver.kv)["logits"].view(np.uint32), bits)
    assert set(asked) == {4}
