"""Faults planted in live servers: the explanation of the request that has one names it first. The trials are `tests/speed/faults.py`;
those of `ridgeline investigate` are `tests/speed/investigate.py`."""

import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "speed"))
import faults
import investigate

QUICK = ("rows", "network", "host", "template", "grammar")
"""Of a second or less each; by night all, twenty times."""
LEAST = 19
"""Of twenty."""


@pytest.mark.alone
def test_a_planted_fault_is_named_first() -> None:
    with faults.servers(QUICK) as urls:
        for cause in QUICK:
            url = urls[faults.WHERE.get(cause, "plain")]
            tries = (faults.first_causes(cause, url, 1, random.Random(seed)) == [cause] for seed in range(3))
            assert any(tries), cause  # a machine with other load adds causes of its own


@pytest.mark.alone
@pytest.mark.night
@pytest.mark.parametrize("cause", faults.FAULTS)
def test_planted_faults_of_twenty_trials_each(cause: str) -> None:
    with faults.servers([cause]) as urls:
        (url,) = urls.values()
        named = faults.first_causes(cause, url, 20, random.Random(1))
    assert named.count(cause) >= LEAST, named


@pytest.mark.alone
@pytest.mark.night
@pytest.mark.parametrize("name", investigate.FAULTS)
def test_an_investigation_names_what_was_planted_and_its_lever_helps(name: str) -> None:
    fault = investigate.FAULTS[name]
    before, told = investigate.served(fault.now, fault, 0)
    assert told["cause"] in fault.causes, told
    assert fault.then is None or before >= investigate.LEAST_GAIN * investigate.served(fault.then, fault, 0)[0]
