"""The complete result of a plan as one value; `as_dict` of it is what `ridgeline plan --json` prints. Bytes, seconds, dollars."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal

from ridgeline.planning.advice import Flag, Scaling, flags, scaling
from ridgeline.planning.deployment import MAX_DEVICES, Deployment, Memory, automatic_layout, weight_classes
from ridgeline.planning.levers import Lever, PhaseSplit, levers, phase_split
from ridgeline.planning.memory import HOST_LINK, host_copy_seconds
from ridgeline.planning.objectives import Objective
from ridgeline.planning.speed import (
    BatchPoint,
    Limit,
    batch_point,
    best_batch,
    bottleneck,
    decode_floor,
    decode_work,
    knee,
    prefill_floor,
    prefill_seconds,
    prefill_work,
    ridge,
)

CURVE = (1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, 131_072, 262_144, 524_288, 1_048_576)
"""Contexts of the curve of context against users, up to the model's context."""

HOURS_PER_MONTH = 730.0
DAYS_PER_MONTH = 30.0
API_BELOW_TOKENS_PER_DAY = 1_000_000
SELF_HOST_ABOVE_TOKENS_PER_DAY = 50_000_000
CHECKED_BYTES_PER_SECOND: Final = 1.5e9
"""HMAC-SHA256 of one core with SHA instructions: blocks from beyond the process are checked before they are used."""
RATES: Final = {"file": 2e9, "redis": 1e9, "peer": 1.25e9}
"""Bytes per second that a tier gives to one reader: a solid-state disk, a server on this machine, ten-gigabit Ethernet. Assumed: a plan
may be for another machine."""

Hosting = Literal["api", "evaluate", "self-host"]


@dataclass(frozen=True, slots=True)
class TierPrice:
    """One tier. `seconds` to bring a prompt's blocks; `of_computing`: as a part of computing them, above 1 it does not pay."""

    tier: str
    seconds: float
    of_computing: float


HIT_RATES: Final = (0.5, 0.8, 0.9, 0.95, 0.99)
"""Shares of an expert's uses at which it is in memory, for which a plan says what reading the others costs."""


@dataclass(frozen=True, slots=True)
class ExpertReads:
    """One stream where experts are read from disk. `itl`: seconds between tokens, none of the reading hidden behind products."""

    hit_rate: float
    read_bytes_per_token: float
    itl: float


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """Most sequences of `context` tokens that fit."""

    context: int
    max_sequences: int


@dataclass(frozen=True, slots=True)
class SelfHosting:
    """Self-hosting against an API at a price per million tokens; `tokens_per_day` is the throughput of the recommended batch."""

    api_price_per_million: float
    break_even_tokens_per_day: float
    tokens_per_day: float
    advice: str


@dataclass(frozen=True, slots=True)
class Report:
    """All numbers of a plan. Bytes are of one replica over all its devices; sequences, tokens/s and dollars are of all replicas.

    weights_by_class_bytes  of one copy on one device (TP=1), in the planned format; weights_bytes includes copies on several ranks
    activation_bytes  with tiled attention; untiled_activation_bytes with stored scores of one layer
    draft_bytes       weights and cache of the draft model; adapter_bytes is set aside for LoRA adapters
    overhead_bytes    driver, context and framework; reserve_bytes is not used because of --memory-utilization
    ..._floor_seconds lower bounds, at the data sheet's peaks; the batch table and values from it are estimates
    weights_format    name of the weights' format as users know it; Q4_K_M is several formats, of which `dtype` is the most frequent
    bound_by          the bottleneck
    workload          an average request: tokens of prompt and output, share of the prompt in the cache, peak over mean arrivals
    recommended_batch sequences at once, 0 where nothing fits or no batch meets the objective; limited_by is its limit
    tiers             what bringing a prompt's KV blocks takes, beside computing them
    expert_reads      what reading experts from disk costs by the share that is in memory when it is needed; empty where all are
    objective_met     True where the estimates meet the objective for all users; None without an objective
    """

    model: str
    architecture: str
    attention: str
    parameters: int
    active_parameters: int
    device: str
    devices: int
    layout: dict[str, int]
    dtype: str
    weights_format: str
    kv_dtype: str
    context: int
    users: int
    workload: dict[str, float]
    fits: bool
    memory_bytes: int
    weights_bytes: int
    weights_by_class_bytes: dict[str, int]
    kv_bytes_per_token: int
    kv_bytes_per_sequence: int
    state_bytes_per_sequence: int
    activation_bytes: int
    untiled_activation_bytes: int
    overhead_bytes: int
    reserve_bytes: int
    kv_budget_bytes: int
    shortfall_bytes: int
    draft_bytes: int
    adapter_bytes: int
    max_sequences: int
    max_context_tokens: int
    context_curve: list[CurvePoint]
    prefill_intensity: float
    decode_intensity: float
    ridge_intensity: float
    bound_by: str
    decode_floor_seconds: float
    prefill_floor_seconds: float
    prefill_seconds: float
    knee_batch: int
    recommended_batch: int
    limited_by: Limit
    objective_met: bool | None
    batch_table: list[BatchPoint]
    tokens_per_second: float
    cost_per_million_tokens: float | None
    price_per_hour: float | None
    price_seen: str | None
    min_devices: int | None
    phase_split: PhaseSplit
    levers: list[Lever]
    flags: list[Flag]
    scaling: list[Scaling]
    self_hosting: SelfHosting | None
    tiers: list[TierPrice]
    expert_reads: list[ExpertReads]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)


def _bytes_by_use(memory: Memory) -> dict[str, int]:
    """The fields of a report that say what memory is used for."""
    return {
        "memory_bytes": memory.total,
        "weights_bytes": memory.weights,
        "activation_bytes": memory.activations,
        "untiled_activation_bytes": memory.untiled_activations,
        "overhead_bytes": memory.overhead,
        "draft_bytes": memory.draft,
        "adapter_bytes": memory.adapters,
        "reserve_bytes": memory.reserve,
        "kv_budget_bytes": max(0, memory.kv_budget),
        "shortfall_bytes": memory.shortfall,
    }


def make_report(deployment: Deployment, objective: Objective, users_given: bool, api_price: float | None) -> Report:
    """Report of a deployment. `users_given`: run a batch of `users` sequences instead of the knee's."""
    model, memory, layout, price = deployment.model, deployment.memory, deployment.layout, deployment.device.price
    batch, limit = _batch(deployment, objective, users_given)
    table = [batch_point(deployment, each) for each in _table_batches(deployment, batch)]
    run = next((point for point in table if point.batch == batch), None)
    return Report(
        model=model.name,
        architecture=model.architecture,
        attention=model.attention_kind,
        parameters=model.total_parameters,
        active_parameters=round(model.active_parameters),
        device=deployment.device.name,
        devices=layout.devices,
        layout=asdict(layout),
        dtype=deployment.dtype or model.dtype,
        weights_format=deployment.dtype or model.format_name,
        kv_dtype=deployment.kv_dtype,
        context=deployment.context,
        users=deployment.users,
        workload=asdict(deployment.workload),
        fits=memory.fits,
        **_bytes_by_use(memory),
        weights_by_class_bytes={name: round(size) for name, size in weight_classes(deployment).items()},
        kv_bytes_per_token=memory.kv_token,
        kv_bytes_per_sequence=memory.kv_sequence,
        state_bytes_per_sequence=memory.state,
        max_sequences=memory.max_sequences,
        max_context_tokens=memory.max_context,
        context_curve=_curve(deployment),
        prefill_intensity=prefill_work(deployment).intensity,
        decode_intensity=decode_work(deployment, max(1, batch)).intensity,
        ridge_intensity=ridge(deployment),
        bound_by=bottleneck(deployment, batch),
        decode_floor_seconds=decode_floor(deployment),
        prefill_floor_seconds=prefill_floor(deployment),
        prefill_seconds=prefill_seconds(deployment),
        knee_batch=knee(deployment, memory.max_sequences),
        recommended_batch=batch,
        limited_by=limit,
        objective_met=None if objective == Objective() else batch >= deployment.users,
        batch_table=table,
        tokens_per_second=run.tokens_per_second if run else 0.0,
        cost_per_million_tokens=run.cost if run else None,
        price_per_hour=price.dollars_per_hour * layout.devices if price else None,
        price_seen=price.seen if price else None,
        min_devices=min_devices_that_fit(deployment),
        phase_split=phase_split(deployment, max(1, batch)),
        levers=levers(deployment, _lever_objective(run, objective)) if run else [],
        flags=flags(deployment, objective, batch, limit) if batch else [],
        scaling=scaling(deployment),
        self_hosting=_self_hosting(deployment, run, api_price),
        tiers=_tiers(deployment),
        expert_reads=_expert_reads(deployment),
    )


def _expert_reads(deployment: Deployment) -> list[ExpertReads]:
    """A token's experts that are not in memory, read at the rate of a solid-state disk behind the step with all of them."""
    experts = deployment.model.experts
    if not deployment.expert_memory or experts is None:
        return []
    token, itl = weight_classes(deployment)["experts"] * experts.active / experts.routed, batch_point(deployment, 1).itl
    return [ExpertReads(rate, token * (1 - rate), itl + token * (1 - rate) / RATES["file"]) for rate in HIT_RATES]


def tier_prices(prompt_bytes: float, computing_seconds: float, measured: Mapping[str, float] | None = None) -> list[TierPrice]:
    """The tiers, host memory first, for a prompt whose blocks have so many bytes and take so long to compute. `measured`: rates of tiers
    in the place of those that are assumed."""
    seconds = {"host": host_copy_seconds(prompt_bytes, HOST_LINK)}
    rates = RATES | dict(measured or {})
    seconds |= {tier: prompt_bytes * (1 / rate + 1 / CHECKED_BYTES_PER_SECOND) for tier, rate in rates.items()}
    return [TierPrice(tier, each, each / computing_seconds) for tier, each in seconds.items()]


def _tiers(deployment: Deployment) -> list[TierPrice]:
    """Tiers' times for a whole prompt, whatever part of it the prefix cache is expected to have."""
    cold = replace(deployment, workload=replace(deployment.workload, reused=0.0))
    return tier_prices(deployment.memory.kv_token * deployment.workload.prompt, prefill_seconds(cold))


def _batch(deployment: Deployment, objective: Objective, users_given: bool) -> tuple[int, Limit]:
    """(recommended batch, its limit)."""
    users, most = deployment.users, deployment.memory.max_sequences
    if users_given and objective == Objective():
        return (users, "users") if users <= most else (most, "memory")
    return best_batch(deployment, objective)


def min_devices_that_fit(deployment: Deployment) -> int | None:
    """Fewest devices of this kind, in the default layout, that hold the model and every user's KV cache; None above `MAX_DEVICES`."""
    for count in range(1, MAX_DEVICES + 1):
        if replace(deployment, layout=automatic_layout(deployment.model, count)).memory.fits:
            return count
    return None


def _lever_objective(run: BatchPoint | None, objective: Objective) -> Objective:
    """Objective at which levers are compared: the given one, else the ITL of the recommended batch, so that none wins by being slower."""
    return Objective(itl=run.mixed_itl * (1 + 1e-9)) if run and objective == Objective() else objective


def _curve(deployment: Deployment) -> list[CurvePoint]:
    """Context against sequences."""
    contexts = [each for each in CURVE if each < deployment.model.context] + [deployment.model.context]
    return [CurvePoint(each, replace(deployment, context=each, shared=0).memory.max_sequences) for each in contexts]


def _table_batches(deployment: Deployment, batch: int) -> list[int]:
    """Powers of two up to the most sequences that fit, that number, the knee and the recommended batch."""
    most = deployment.memory.max_sequences
    powers = [2**exponent for exponent in range(13) if 2**exponent <= most]
    return sorted({*powers, min(most, 4096), knee(deployment, most), batch} - {0})


def _self_hosting(deployment: Deployment, run: BatchPoint | None, api_price: float | None) -> SelfHosting | None:
    price = deployment.device.price
    if api_price is None or price is None or run is None:
        return None
    hourly, daily = price.dollars_per_hour * deployment.layout.devices, run.tokens_per_second * 86_400
    even = break_even_tokens_per_day(hourly, api_price)
    advice = "never cheaper: the devices cannot serve the break-even volume" if even > daily else hosting(even)
    return SelfHosting(api_price, even, daily, advice)


def self_host_month_cost(price_per_hour: float) -> float:
    """Dollars for a month of 730 hours, used or not: $2/h is about $1,500. Notes on inference, part 1, section 9."""
    return price_per_hour * HOURS_PER_MONTH


def break_even_tokens_per_day(price_per_hour: float, api_price_per_million: float) -> float:
    """Tokens per day from which rented devices cost less than the API, while they can serve that many."""
    return self_host_month_cost(price_per_hour) / DAYS_PER_MONTH / api_price_per_million * 1e6


def hosting(tokens_per_day: float) -> Hosting:
    """Advice by volume: below 1 M tokens per day an API, above 50 M self-hosting, between them evaluate. Notes on inference, part 1."""
    if tokens_per_day > SELF_HOST_ABOVE_TOKENS_PER_DAY:
        return "self-host"
    return "api" if tokens_per_day < API_BELOW_TOKENS_PER_DAY else "evaluate"
