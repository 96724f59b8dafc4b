"""Bodies of the admin's requests and answers."""

from msgspec import Struct

from ridgeline.server import replies
from ridgeline.server.knobs import Value


class Status(Struct, frozen=True):
    """The status of a server. `not_ready` is a reason, or null where requests are taken."""

    version: str
    pid: int
    model: str
    not_ready: str | None
    startup: replies.Startup
    start_seconds: dict[str, float]
    """Seconds by phase, from the begin of the process until requests were taken."""
    usual_start_seconds: float | None
    """Median of the last starts of this model on this machine; null where none is known."""
    engine_pid: int | None
    engine_starts: int
    engine_failures: int
    last_failure: str | None
    open_requests: int
    running: int
    waiting: int
    knobs: dict[str, Value]
    draining: bool
    kept_model: str | None
    """The model before a swap, which comes back if the one that serves yields less; null where none is watched."""
    runner: str | None
    fingerprint: str | None
    """`system_fingerprint` of answers."""
    is_exact: bool
    """Answers do not depend on the batch."""
    immediate_ends: int
    runaway_answers: int
    """Answers that ended at their first token; that repeated themselves up to their limit."""
    findings: tuple[str, ...]
    """Oddities that the checks of the model found at the start."""


class Amount(Struct, frozen=True):
    """Seconds of the engine, and these in other units: processor time of its threads; money and energy are null where unknown."""

    seconds: float
    processor_ms: float
    dollars: float | None
    joules: float | None


class TenantCost(Struct, frozen=True):
    """Costs of a tenant's requests, open ones so far as their rows have ended."""

    spent: Amount
    kv_token_seconds: float
    requests: int


class RequestCost(Struct, frozen=True):
    """Costs of a request that has ended."""

    request_id: str
    tenant: str
    prompt_tokens: int
    completion_tokens: int
    spent: Amount
    kv_token_seconds: float


class Cost(Struct, frozen=True):
    """The bill since the start: `tenants`, `open` (rows under way, and steps that nobody owns) and `idle` add up to `total`."""

    model: str
    threads: int
    dollars_per_hour: float | None
    total: Amount
    tenants: dict[str, TenantCost]
    open: Amount
    idle: Amount
    requests: list[RequestCost]


class DrainRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """`timeout_seconds`: null is that of --shutdown-timeout."""

    timeout_seconds: float | None = None


class Draining(Struct, frozen=True):
    """The server ends, with status 0, when the open requests have ended, or at the deadline."""

    open_requests: int
    timeout_seconds: float


class KnobRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """`watch_seconds`: for how long before and behind the change goodput is compared; with a loss it is taken back. 0: it stays."""

    name: str
    value: Value
    watch_seconds: float = 30.0


class KnobChange(Struct, frozen=True):
    name: str
    old: Value
    new: Value


class ChaosRequest(Struct, frozen=True, forbid_unknown_fields=True):
    fault: str
    seconds: float = 10.0


class ChaosReport(Struct, frozen=True):
    """The fault that was injected, and what came of it: of `open_requests` so many went on in another engine, failed, or were left by
    their clients; `seconds` until requests were taken again, or until that was no longer waited for."""

    fault: str
    what: str
    open_requests: int
    continued: int
    failed: int
    aborted: int
    engine_restarted: bool
    recovered: bool
    seconds: float


class SwapRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """`drain_seconds`: for the old model's open requests; null is that of --shutdown-timeout. `watch_seconds`: for how long goodput before
    the swap and behind it is compared; with a loss the old model comes back. 0: the new one stays."""

    model: str
    drain_seconds: float | None = None
    watch_seconds: float = 30.0


class SwapReport(Struct, frozen=True):
    """The models before and behind; `load_seconds` until requests went to the new one, which the old one's `open_requests` did not;
    `aborted`: of them, those that had not ended in their time. For `watch_seconds` from then on the old one is kept."""

    old: str
    new: str
    load_seconds: float
    open_requests: int
    aborted: int
    total_seconds: float
    watch_seconds: float


class ProfileRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """`steps`: trace the next so many steps of the engine instead of the loops' functions, for `seconds` at most."""

    seconds: float = 10.0
    steps: int | None = None


class ProfileReport(Struct, frozen=True):
    """Files that `python -m pstats` reads, and lines about the functions of most time of their own. `engine`: null where its file was not
    written in time."""

    seconds: float
    front_end: str
    engine: str | None
    front_end_top: list[str]
    engine_top: list[str]


class StepsReport(Struct, frozen=True):
    """`file`: for Perfetto, of the steps that ran in the time, as many as were asked for at most. Null where none was written in time."""

    steps: int
    file: str | None


Profiled = ProfileReport | StepsReport


class ModelState(Struct, frozen=True):
    """One of several models. `keep_alive`: seconds behind the last request after which it is unloaded, null for ever; `memory_bytes`: as
    measured at its load, with the whole KV cache; `engine_bytes`: what its engine has now."""

    model: str
    state: str
    idle_seconds: float
    keep_alive: float | None
    requests: int
    waiting: int
    memory_bytes: int | None
    engine_bytes: int
    loads: int
    unloads: int
    load_seconds: float
