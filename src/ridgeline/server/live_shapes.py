"""Shapes of the answer of `GET /live`."""

from msgspec import Struct


class KV(Struct, frozen=True):
    """Blocks: those that requests hold, those that keep what may be used again, and free ones."""

    blocks: int
    held: int
    cached: int
    free: int
    block_tokens: int


class Rates(Struct, frozen=True):
    """Per second, over the last ten."""

    prefill_tokens: float
    decode_tokens: float
    steps: float


class Latency(Struct, frozen=True):
    """Seconds, of the last minute; null where there was none."""

    p50: float
    p90: float
    p99: float


class Lever(Struct, frozen=True):
    """A change of a setting; `gain` is the factor by which `figure` is predicted to get better."""

    name: str
    figure: str
    gain: float
    why: str


class LiveVerdict(Struct, frozen=True):
    """The bottleneck. Shares of 1; null where this machine's ceilings are not known."""

    bottleneck: str
    text: str
    busy: float
    host: float
    compute: float | None
    memory: float | None
    kv: float
    batch: float
    knee: float | None
    levers: list[Lever]


class LiveTenant(Struct, frozen=True):
    """Since the start. `dollars` and `joules` are null without a price, and without a meter."""

    name: str
    open_choices: int
    prompt_tokens: int
    generation_tokens: int
    seconds: float
    kv_token_seconds: float
    dollars: float | None
    joules: float | None


class SlowRequest(Struct, frozen=True):
    """A request that has ended: its id, by which `/v1/requests/{id}/explain` knows it, seconds, and tokens of prompt and answer."""

    id: str
    seconds: float
    first_token_seconds: float | None
    prompt_tokens: int
    output_tokens: int


class History(Struct, frozen=True):
    """One number per second, the last second last; running and waiting are means over steps, kv is a share."""

    prefill_tokens: list[int]
    decode_tokens: list[int]
    running: list[float]
    waiting: list[float]
    kv: list[float]
    busy: list[float]


class Live(Struct, frozen=True):
    """The present of a server. `tenants`, `slowest` (of the last minute): all for a key of scope admin, else the key's own."""

    model: str
    version: str
    ready: bool
    running: int
    waiting: int
    rows: int
    kv: KV
    rates: Rates
    ttft: Latency | None
    itl: Latency | None
    speculation: str
    """Sentence on what speculation does and why; empty where nothing drafts."""
    verdict: LiveVerdict
    tenants: list[LiveTenant]
    slowest: list[SlowRequest]
    history: History
