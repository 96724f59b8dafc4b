"""Scenario: a planner's deployment as a fleet to simulate: the scheduler's limits, the KV blocks that fit, the durations of steps.

Also the prefill budget beside decode rows, derived as an engine does at its start.
"""

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from ridgeline.core.params import Limits
from ridgeline.core.plan import KVGroup, KVShape, Plan
from ridgeline.core.policy import POLICIES
from ridgeline.core.step_time import UNBOUNDED, StepSeconds
from ridgeline.errors import ConfigError, nearest
from ridgeline.planning.deployment import Deployment, block_bytes_of, kv_blocks
from ridgeline.planning.formats import token_kv_bits
from ridgeline.planning.heads import PlannedHeads
from ridgeline.planning.memory import groups_of, host_copy_seconds, kv_bytes, sequence_blocks
from ridgeline.planning.objectives import Objective
from ridgeline.planning.parallel import kv_transfer_seconds
from ridgeline.sim.fleet.drafts import draft_prices
from ridgeline.sim.fleet.durations import Durations, DurationsWithCopies, DurationsWithSpread, RooflineDurations
from ridgeline.sim.fleet.fleet import Failures, FleetConfig, Outage, Scaling
from ridgeline.sim.fleet.measures import SimulationReport
from ridgeline.sim.fleet.replica import ReplicaConfig
from ridgeline.sim.fleet.service import DaySample, DecodePoolDurations, KVTransfer, Service, simulate_sample
from ridgeline.sim.fleet.traffic import Arrival, ClosedLoop, Traffic

MEASURED_ROWS = 16
"""Rows of the step from which the cost of a row is derived."""


def step_seconds(durations: Durations, tokens: int) -> StepSeconds:
    """Step times fitted to three steps on empty contexts: one row, `MEASURED_ROWS` rows, and one row that computes `tokens` tokens.

    In a step bound by memory, tokens are free: more tokens give a better slope.
    """
    nothing = array("i", [0])
    chunk = Plan(0, nothing, nothing, array("i", [tokens]), array("i", [0]) * tokens, bytearray(1))
    one_row, rows = durations.decode([0], 0), durations.decode([0] * MEASURED_ROWS, 0)
    return StepSeconds.fit(one_row, rows, MEASURED_ROWS, durations.seconds(chunk), tokens)


HOST_SECONDS = {True: 1e-3, False: 0.3e-3}
"""Host time of a step where nothing was measured, on a GPU: the scheduler and the launches of a Python engine; on a CPU, which launches
nothing: 0.06 ms between steps, the rest where its threads meet."""


@dataclass(frozen=True, slots=True)
class Knobs:
    """Engine settings. `kv_blocks` None: what fits the deployment's memory. `swap_space`: GiB of the host for evicted blocks.
    `num_speculative_tokens`: most drafted ids per sequence and step, each right with probability `acceptance`."""

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    step_ms: int = 60
    scheduling_policy: str = "fcfs"
    enable_prefix_caching: bool = True
    max_waiting: int = 1 << 20
    depth: int = 1
    kv_blocks: int | None = None
    swap_space: float = 0.0
    num_speculative_tokens: int = 0
    acceptance: float = 0.6


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything that one simulation depends on. `load` is an open stream, a closed loop, or recorded arrivals.

    decode_replicas  0: every replica does both; else `replicas` prefill and so many others decode
    durations        of steps in place of the planner's estimates; `factors`: how much those with prompts vary, see `DurationsWithSpread`
    sample           windows of a diurnal stream to simulate in place of all of it
    """

    deployment: Deployment
    knobs: Knobs
    load: Traffic | ClosedLoop | tuple[Arrival, ...]
    requests: int
    replicas: int = 1
    decode_replicas: int = 0
    routing: str = "least-requests"
    scaling: Scaling | None = None
    failures: Failures | None = None
    outage: Outage | None = None
    durations: Durations | None = None
    factors: tuple[float, ...] = ()
    objective: Objective = field(default_factory=Objective)
    patience: float | None = None
    sample: DaySample | None = None

    def check(self) -> None:
        """Raises ConfigError for what would keep it from running."""
        self._service(0)

    def run(self, seed: int, progress: Callable[[int], None] = lambda answered: None) -> SimulationReport:
        """Simulates it once. progress: called with the number of finished requests."""
        price = self.deployment.device.price
        dollars = price.dollars_per_hour * self.deployment.layout.ranks if price else None
        if self.sample is not None:
            assert isinstance(self.load, Traffic)
            tally = simulate_sample(lambda: self._service(seed), self.load, self.sample, seed, progress)
            return tally.report(self.objective, dollars, self.sample.seconds)
        service = self._service(seed)
        if isinstance(self.load, ClosedLoop):
            tally = service.run_closed(self.load, seed, self.requests, progress)
        else:
            tally = service.run(self._arrivals(seed), progress)
        return tally.report(self.objective, dollars)

    def _service(self, seed: int) -> Service:
        config = self.replica_config(seed)
        ttft_ms = round(1e3 * (self.objective.ttft or 0))
        fleet = FleetConfig(config, self.replicas, self.routing, self.scaling, self.failures, self.patience, ttft_ms, self.outage)
        return Service(fleet, seed, self._make_kv_transfer(config))

    def replica_config(self, seed: int = 0) -> ReplicaConfig:
        """Settings of a replica; steps vary by `seed`. Raises ConfigError where a sequence of the deployment's context does not fit."""
        deployment, knobs = self.deployment, self.knobs
        if knobs.scheduling_policy not in POLICIES:
            raise ConfigError(
                f"--scheduling-policy is {knobs.scheduling_policy!r:.40}; it must be one of {', '.join(POLICIES)}",
                fix={"--scheduling-policy": nearest(knobs.scheduling_policy, POLICIES)},
            )
        groups = groups_of(deployment.model.layer_kinds, deployment.model.window)
        if not groups:
            raise ConfigError(f"{deployment.model.name} has no keys and values, hence no blocks to schedule; try `ridgeline plan`")
        most = knobs.num_speculative_tokens
        if deployment.draft is not None:
            if not most:
                raise ConfigError("draft_model drafts nothing without num_speculative_tokens; set both", fix={"--draft-model": None})
            deployment = replace(deployment, users=knobs.max_num_seqs)  # its cache is for all rows
            if isinstance(deployment.draft, PlannedHeads):
                most = min(most, deployment.draft.most or most)
        blocks = kv_blocks(deployment, knobs.max_num_seqs) if knobs.kv_blocks is None else knobs.kv_blocks
        needed_blocks = sequence_blocks(groups, deployment.block_tokens, deployment.context, knobs.max_num_batched_tokens)
        if blocks < needed_blocks:
            raise ConfigError(
                f"{blocks} KV blocks are left beside the weights and one sequence of {deployment.context} tokens needs {needed_blocks}; "
                "lower --context, take a smaller --dtype, or more devices (--tensor-parallel-size)"
            )
        limits = Limits(
            rows=knobs.max_num_seqs,
            samples=knobs.max_num_seqs * (1 + most),
            token_budget=knobs.max_num_batched_tokens,
            depth=knobs.depth,
            max_model_len=deployment.context,
            max_waiting=knobs.max_waiting,
            prefix_caching=knobs.enable_prefix_caching and self._can_share_blocks(groups, blocks),
        )
        size = block_bytes_of(deployment)
        shape = KVShape(groups, deployment.block_tokens, blocks, b"simulated", int(knobs.swap_space * 2**30) // size, size)
        durations, factors = self._durations()
        seconds = step_seconds(durations, knobs.max_num_batched_tokens)
        if factors:
            durations = DurationsWithSpread(durations, factors, seed)
        if shape.host_blocks:
            durations = DurationsWithCopies(durations, host_copy_seconds(size, deployment.device.link_bytes_per_second))
        return ReplicaConfig(
            limits, shape, durations, knobs.scheduling_policy, drafts=most, acceptance=knobs.acceptance,
            seconds=seconds, step_ms=knobs.step_ms, front_end_seconds=deployment.device.front_end_seconds,
            drafting=draft_prices(deployment),
        )  # fmt: skip

    def _durations(self) -> tuple[Durations, tuple[float, ...]]:
        """Durations of steps, and how much those with prompts vary."""
        if self.durations is not None:
            return self.durations, self.factors
        device = self.deployment.device
        return RooflineDurations(self.deployment, device.host_seconds or HOST_SECONDS[device.is_gpu]), device.spread

    def _can_share_blocks(self, groups: tuple[KVGroup, ...], blocks: int) -> bool:
        """True if a cached block can ever be reused: by a request with a shared prefix, or by one that resumes after a preemption.

        Where none can, the prefix cache is switched off: it is half of a simulation's cost.
        """
        load, knobs, size = self.load, self.knobs, self.deployment.block_tokens
        if isinstance(load, tuple):
            shares_prefix = any(arrival.shared or arrival.blocks for arrival in load)
            longest = max((arrival.prompt + arrival.output for arrival in load), default=0)
        else:
            shares_prefix, longest = load.prefixes > 0 and load.shared > 0, load.max_length
        max_held_blocks = knobs.max_num_seqs * sequence_blocks(groups, size, longest, knobs.max_num_batched_tokens)
        return shares_prefix or knobs.scheduling_policy == "priority" or max_held_blocks > blocks

    def _make_kv_transfer(self, config: ReplicaConfig) -> KVTransfer | None:
        """A decode pool of the same servers; KV is sent over the device's link after a prompt is computed. None without a decode pool."""
        if not self.decode_replicas:
            return None
        deployment = self.deployment
        token = kv_bytes(deployment.model.kv_layers, 1, 1, token_kv_bits(deployment.model, deployment.kv_dtype))
        token_budget = max(config.limits.token_budget, deployment.context + config.limits.rows)
        # A prompt is taken in one step: it was computed elsewhere, so the token budget does not apply.
        limits = replace(config.limits, token_budget=token_budget, mixed_tokens=UNBOUNDED)
        pool = replace(config, limits=limits, seconds=None, durations=DecodePoolDurations(config.durations))
        link = deployment.device.link_bytes_per_second
        fixed = deployment.device.hop_seconds + kv_transfer_seconds(deployment.model.state_bytes, link)
        fleet = FleetConfig(pool, self.decode_replicas, self.routing, patience=self.patience)
        return KVTransfer(fleet, fixed, kv_transfer_seconds(token, link))

    def _arrivals(self, seed: int) -> Iterator[Arrival]:
        if isinstance(self.load, Traffic):
            return self.load.arrivals(seed, self.requests)
        assert isinstance(self.load, tuple)
        return iter(self.load[: self.requests])
