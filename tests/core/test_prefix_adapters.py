"""The prefix cache and adapters: what a request finds there, a request with the same adapter has computed."""

from random import Random

import pytest

from ridgeline.core.commands import AdapterReady, Admit
from ridgeline.core.events import PrefixHit
from ridgeline.core.params import Adapter, Admitted, Limits
from ridgeline.core.policy import POLICIES
from ridgeline.core.scheduler import Scheduler
from ridgeline.sim.laws.executor import fake_executor

ADAPTERS = (None, *(Adapter(f"a{number}", bytes([number]) * 32, "") for number in range(12)))


@pytest.mark.parametrize("requests", [1_000, pytest.param(100_000, marks=[pytest.mark.night, pytest.mark.timeout(1800)])])
def test_no_hit_crosses_adapters(requests: int) -> None:
    """Random prompts that mostly share their beginnings, together and one after the other, of 12 adapters in 4 slots and of none, of two
    tenants: every hit is a prefix of the same adapter and tenant, and many would be hits if adapters counted for nothing."""
    rng, size = Random(22), 4
    executor = fake_executor(8, 512, size, (0,), max_model_len=64)
    limits = Limits(rows=8, token_budget=48, max_model_len=64, adapter_slots=4)
    scheduler = Scheduler(limits, executor.info.kv, POLICIES["fcfs"])
    prompts = [tuple(rng.randrange(100, 110) for _ in range(32)) for _ in range(12)]
    seen: dict[object, set[tuple[int, ...]]] = {}
    hits = others = 0
    for first in range(0, requests, burst := 5):
        of: dict[str, tuple[object, tuple[int, ...]]] = {}
        for number in range(first, first + burst):
            adapter, domain = rng.choice(ADAPTERS), rng.choice((b"one", b"two"))
            prompt = (*rng.choice(prompts)[: rng.randrange(5, 33)], rng.randrange(90, 99))
            of[str(number)] = scope, _ = (adapter, domain), prompt
            begun = prompt[:size]
            others += begun not in seen.get(scope, ()) and any(begun in each for each in seen.values())
            seen.setdefault(scope, set()).update(prompt[:end] for end in range(size, len(prompt) + 1, size))
            request = Admitted(
                str(number), prompt, rng.choice((1, 3)), seed=number, choices=rng.choice((1, 1, 2)), domain=domain, adapter=adapter
            )
            scheduler.apply([Admit(request), *([] if adapter is None else [AdapterReady(adapter.digest)])], float(number))
        while (plan := scheduler.schedule(float(first))) is not None:
            scheduler.commit(plan, executor.collect(executor.submit(plan)), float(first))
        for event in scheduler.take_events():
            if type(event) is PrefixHit:
                scope, prompt = of[event.request_id]
                assert prompt[: event.tokens] in seen[scope], f"request {event.request_id} hits {event.tokens} tokens of others"
                hits += 1
    assert scheduler.idle and hits > requests / 2 and others > 100
