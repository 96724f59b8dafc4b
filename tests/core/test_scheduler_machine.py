"""Random orders of commands, plans and commits (hypothesis): all laws after every action, equal answers at the end."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from ridgeline.core.admission import blocks_needed
from ridgeline.core.commands import Abort, Close
from ridgeline.core.events import Closed, Finish
from ridgeline.core.plan import KVGroup, KVShape
from ridgeline.sim.laws.model import FakeModel

MODEL = FakeModel(alphabet=(10, 11, 12), stop_ids=(1,), stop_permille=60, nan_permille=40, nan_positions=20)


class SchedulerMachine(RuleBasedStateMachine):
    """Small sizes, so that blocks, rows and prefixes are contended. `loop` is set by the test below."""

    loop: type

    @initialize(data=st.data())
    def build(self, data: st.DataObject) -> None:
        windows = data.draw(st.sampled_from(((0,), (0, 3), (4, 0), (2,))))
        size = data.draw(st.sampled_from((1, 2, 4)))
        groups = tuple(KVGroup("window" if w else "full", (i,), w) for i, w in enumerate(windows))
        least = blocks_needed(KVShape(groups, size, 1, b""), 20)
        self.run = self.loop(
            rows=data.draw(st.integers(1, 4)),
            blocks=data.draw(st.integers(least, 2 * least)),
            block_tokens=size,
            windows=windows,
            policy=data.draw(st.sampled_from(("fcfs", "priority", "static", "one"))),
            depth=data.draw(st.integers(1, 4)),
            token_budget=data.draw(st.sampled_from((1, 3, 8, 64))),
            max_preemptions=data.draw(st.sampled_from((0, 1, 8))),
            prefix_caching=data.draw(st.booleans()),
            host_blocks=data.draw(st.sampled_from((0, 0, 3, 64))),
            model=MODEL,
            max_model_len=20,
        )

    @precondition(lambda self: len(self.run.requests) < 8)
    @rule(
        prompt=st.lists(st.sampled_from((10, 11)), min_size=1, max_size=12),
        outputs=st.integers(1, 8),
        choices=st.sampled_from((1, 1, 1, 2, 3)),
        closes=st.booleans(),
        priority=st.integers(0, 1),
    )
    def admit(self, prompt: list[int], outputs: int, choices: int, closes: bool, priority: int) -> None:
        self.run.apply(
            self.run.request(
                f"r{len(self.run.requests)}",
                tuple(prompt),
                outputs,
                choices=choices,
                two_phase=closes,
                priority=priority,
                stop_ids=frozenset({1}),
            )
        )

    @precondition(lambda self: self.run.requests)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.run.apply(Abort(data.draw(st.sampled_from(sorted(self.run.requests)))))

    @precondition(lambda self: self.run.requests)
    @rule(data=st.data(), choice=st.integers(0, 2), keep=st.integers(0, 8))
    def close(self, data: st.DataObject, choice: int, keep: int) -> None:
        self.run.apply(Close(data.draw(st.sampled_from(sorted(self.run.requests))), choice, keep, Finish.STOP))

    @rule()
    def plan(self) -> None:
        self.run.plan()

    @precondition(lambda self: self.run.tickets)
    @rule()
    def commit(self) -> None:
        self.run.commit()

    @rule(turns=st.integers(1, 6))
    def turn(self, turns: int) -> None:
        for _ in range(turns):
            self.run.turn()

    def teardown(self) -> None:
        if not hasattr(self, "run"):
            return
        self.run.finish()
        for name, request in self.run.requests.items():
            for choice in range(request.choices):
                self.run.apply(Close(name, choice, 99, Finish.STOP))
        self.run.check_ended()
        for closed in self.run.events_of(Closed):
            if closed.reason is Finish.LENGTH:
                assert len(self.run.ids(closed.request_id, closed.choice)) == self.run.requests[closed.request_id].max_tokens


def test_any_order_of_actions(loop) -> None:
    SchedulerMachine.loop = loop
    machine = SchedulerMachine.TestCase
    machine.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
    machine().runTest()
