"""An executor that only takes time: no arrays, no pages, one made-up id a row. What the fleet runs the real engine on.

Its requests ask for no log-probabilities.
"""

from collections import deque

from ridgeline.core.plan import Plan, Result
from ridgeline.engine.executor import ExecutorInfo, Ticket
from ridgeline.sim.clock import VirtualClock
from ridgeline.sim.fleet.durations import Durations

TOKEN = 7
"""The id that every row samples."""


class Device:
    """Implements `engine.executor.Executor`: steps run one after the other, each as long as `durations` says."""

    def __init__(self, info: ExecutorInfo, clock: VirtualClock, durations: Durations) -> None:
        self._info = info
        self._clock = clock
        self._durations = durations
        self._queue: deque[tuple[Ticket, float]] = deque()
        self.busy = 0.0
        """Seconds of all steps so far."""
        self._free_at = 0.0
        self._all_sample: dict[int, tuple[tuple[tuple[int, ...], ...], bytearray]] = {}

    @property
    def info(self) -> ExecutorInfo:
        return self._info

    def submit(self, plan: Plan) -> Ticket:
        """Behind those in flight."""
        ticket = Ticket(plan)
        seconds = self._durations.seconds(plan)
        self.busy += seconds
        self._free_at = max(self._clock.now(), self._free_at) + seconds
        self._queue.append((ticket, self._free_at))
        return ticket

    def collect(self, ticket: Ticket) -> Result:
        """Lets the step's time pass."""
        _, done_at = self._queue.popleft()
        self._clock.advance_to(done_at)
        plan = ticket.plan
        rows = len(plan.row)
        if plan.sample.count(1) == rows:
            if rows not in self._all_sample:
                self._all_sample[rows] = ((TOKEN,),) * rows, bytearray(b"\1") * rows
            return Result(plan.step, *self._all_sample[rows])
        return Result(plan.step, tuple([(TOKEN,) if samples else () for samples in plan.sample]), bytearray(b"\1") * rows)

    def pass_until(self, moment: float) -> None:
        """Steps that were jumped over took until then."""
        self.busy += moment - self._clock.now()
        self._free_at = moment
        self._clock.advance_to(moment)

    def close(self) -> None:
        """Drops steps in flight."""
        self._queue.clear()
