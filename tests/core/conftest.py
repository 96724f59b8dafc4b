"""A scheduler, the simulated executor that checks the contents of KV slots, and a loop that checks all laws after every turn."""

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from ridgeline.core import laws
from ridgeline.core.commands import Admit, Command, Output
from ridgeline.core.drafts.drafter import Drafter
from ridgeline.core.events import Closed, Event, Rejected
from ridgeline.core.pace import Pace
from ridgeline.core.params import Admitted, Limits
from ridgeline.core.plan import Plan
from ridgeline.core.policy import POLICIES
from ridgeline.core.scheduler import Scheduler
from ridgeline.core.sequence import Sequence
from ridgeline.engine.executor import Ticket
from ridgeline.sim.laws.executor import fake_executor
from ridgeline.sim.laws.model import FakeModel, chain_stamps

E = TypeVar("E")
Ids = tuple[int, ...]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-golden", action="store_true", help="write the golden plan traces anew instead of comparing")


class Loop:
    """The engine's loop, step by step: `turn` applies commands, plans up to `depth` steps and commits the oldest."""

    def __init__(
        self,
        *,
        rows: int = 8,
        blocks: int = 256,
        host_blocks: int = 0,
        block_tokens: int = 4,
        windows: tuple[int, ...] = (0,),
        policy: str = "fcfs",
        model: FakeModel | None = None,
        max_model_len: int = 2048,
        drafter: Drafter | None = None,
        pace: Pace | None = None,
        step_seconds: float = 0.0,
        token_seconds: float = 0.0,
        draft_blocks: int = 0,
        **limits: Any,
    ) -> None:
        self.model = model or FakeModel()
        self.executor = fake_executor(
            rows, blocks, block_tokens, windows, max_model_len=max_model_len, model=self.model, host_blocks=host_blocks,
            step_seconds=step_seconds, token_seconds=token_seconds, draft_blocks=draft_blocks,
        )  # fmt: skip
        self.scheduler = Scheduler(
            Limits(rows=rows, max_model_len=max_model_len, **limits), self.executor.info.kv, POLICIES[policy], drafter, pace
        )
        self.tickets: list[Ticket] = []
        self.plans: list[Plan] = []
        self.events: list[Event] = []
        self.outputs: list[Output] = []
        self.requests: dict[str, Admitted] = {}
        self.now = 0.0

    def request(self, name: str, prompt: Ids | int = 6, max_tokens: int = 8, **fields: Any) -> Admit:
        """Makes a request; `prompt` is its ids, or the number of ids to make up."""
        if isinstance(prompt, int):
            prompt = tuple(100 + (len(self.requests) * 31 + i * 7) % 97 for i in range(prompt))
        fields = {"seed": len(self.requests) + 1} | fields
        self.requests[name] = Admitted(request_id=name, prompt=prompt, max_tokens=max_tokens, **fields)
        return Admit(self.requests[name])

    def apply(self, *commands: Command) -> None:
        self.scheduler.apply(commands, self.now)
        self._check()

    def plan(self) -> Plan | None:
        """Plans and submits one step, if the scheduler has one."""
        plan = self.scheduler.schedule(self.now)
        if plan is not None:
            laws.check_plan(plan, self.scheduler.limits, self.executor.info.kv)
            self.plans.append(plan)
            self.tickets.append(self.executor.submit(plan))
        self._check()
        return plan

    def commit(self) -> list[Output]:
        """Collects and commits the oldest step in flight."""
        ticket = self.tickets.pop(0)
        outputs = self.scheduler.commit(ticket.plan, self.executor.collect(ticket), self.now)
        self.outputs += outputs
        self._check()
        return outputs

    def turn(self, *commands: Command) -> bool:
        """Runs one turn of the loop; returns False if nothing was in flight."""
        self.now += 1
        self.apply(*commands)
        while self.plan() is not None:
            pass
        if self.tickets:
            self.commit()
            return True
        return False

    def finish(self, *commands: Command) -> "Loop":
        """Runs until nothing is in flight and nothing can be planned."""
        self.turn(*commands)
        for _ in range(10_000):
            if not self.turn():
                return self
        raise AssertionError("does not end")

    def ids(self, name: str, choice: int = 0) -> Ids:
        return sum((o.ids for o in self.outputs if (o.request_id, o.choice) == (name, choice)), ())

    def expected(self, name: str, choice: int = 0, count: int | None = None) -> Ids:
        """Returns the ids that the choice answers when it runs alone, one token per step; stop ids are ignored."""
        request = self.requests[name]
        params, ids = request.row_params(choice), list(request.prompt)
        for _ in range(request.max_tokens if count is None else count):
            ids.append(self.model.sample(chain_stamps(self.model.origin(params), ids)[-1], params, len(ids)))
        return tuple(ids[len(request.prompt) :])

    def events_of(self, kind: type[E], name: str | None = None) -> list[E]:
        """Returns the events of this type, of this request if one is named."""
        return [e for e in self.events if isinstance(e, kind) and (name is None or e.request_id == name)]  # type: ignore[attr-defined]

    def sequence(self, name: str, choice: int = 0) -> Sequence:
        return self.scheduler.lifecycle.open[name][choice]

    def check_ended(self) -> None:
        """Checks that the scheduler is idle, and that each choice was closed once with the ids that it answers alone."""
        assert self.scheduler.idle and not self.tickets
        laws.check_full(self.scheduler)
        rejected = {e.request_id for e in self.events_of(Rejected)}
        for name, request in self.requests.items():
            if name in rejected:
                continue
            closed = sorted(e.choice for e in self.events_of(Closed, name))
            assert closed == list(range(request.choices)), name
            for choice in range(request.choices):
                ids = self.ids(name, choice)
                assert ids == self.expected(name, choice, len(ids)), (name, choice)

    def _check(self) -> None:
        laws.check_full(self.scheduler)
        self.events += self.scheduler.take_events()


@pytest.fixture
def loop() -> Callable[..., Loop]:
    """`loop(rows=…, blocks=…, block_tokens=…, windows=…, policy=…, depth=…, …)` makes one."""
    return Loop
