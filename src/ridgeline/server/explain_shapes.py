"""Bodies of explanations: where the time of requests went."""

from msgspec import Struct


class Blocker(Struct, frozen=True):
    """A request that is behind a cause. `request` is its id for an admin and for who sent it, else "another request"; `tenant` is told to
    an admin alone."""

    request: str
    ms: float
    tenant: str | None = None


class Cause(Struct, frozen=True):
    """Milliseconds of one cause, their share of the whole, and the requests behind it, at most five."""

    cause: str
    what: str
    ms: float
    share: float
    blockers: tuple[Blocker, ...] = ()


class Part(Struct, frozen=True):
    """A time and what it consists of, in the order of a request's way. `measured_ms` comes from the server's own clock at both ends, `ms`
    is the sum of the causes; `first`: the cause to look at first."""

    ms: float
    measured_ms: float
    first: str | None
    causes: tuple[Cause, ...]


class Counterfactual(Struct, frozen=True):
    """Time that a request would have taken, simulated with this server's own step times; null where too few steps are known."""

    alone_ttft_ms: float | None = None
    alone_ms: float | None = None
    prefix_hit_ttft_ms: float | None = None


class PrefixMiss(Struct, frozen=True):
    """Reason why a prompt did not find more of itself in the prefix cache: the token at which it leaves an earlier one, and the tokens and
    milliseconds that this cost. The texts around that token, of this prompt and of the earlier one, are told to an admin alone."""

    cause: str
    what: str
    at: int
    tokens: int
    ms: float
    mine: str | None = None
    theirs: str | None = None


class PrefixOffender(Struct, frozen=True):
    """Misses of one cause at one place of the prompt, the dearest of them as an example, and the ids of the last."""

    cause: str
    what: str
    at: int
    requests: int
    tokens: int
    ms: float
    example: PrefixMiss | None
    ids: tuple[str, ...]


class PrefixReport(Struct, frozen=True):
    """Misses of a window, the dearest first. `requests` were looked at, of `prompt_tokens` tokens, of which `cached_tokens` were found:
    `cached_in` says in which tier those that were not on the device."""

    requests: int
    prompt_tokens: int
    cached_tokens: int
    offenders: tuple[PrefixOffender, ...]
    cached_in: dict[str, int] = {}


class Explanation(Struct, frozen=True):
    """The time of one request by cause; of several choices, of the one that ended last. `ttft` is null before the first token."""

    id: str
    choice: int
    state: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    preemptions: int
    engines: int
    total: Part
    ttft: Part | None
    counterfactual: Counterfactual
    summary: str
    prefix_miss: PrefixMiss | None = None
    tenant: str | None = None
    cached_in: dict[str, int] = {}
    """Number of the cached tokens whose KV was not on the device, by the tier that had it."""


class Share(Struct, frozen=True):
    """A cause in the slowest requests and in those in the middle: mean milliseconds, and the share of the difference between them."""

    cause: str
    what: str
    median_ms: float
    slow_ms: float
    share_of_excess: float


class Distribution(Struct, frozen=True):
    """A time over many requests: percentiles, and the causes in the slowest twentieth beside the middle fifth, the greatest difference
    first."""

    requests: int
    p50_ms: float
    p95_ms: float
    first: str | None
    causes: tuple[Share, ...]


class Explained(Struct, frozen=True):
    """Requests one by one, or what a window has in common. `counts`: results of its requests, errors by status and code, steps."""

    requests: tuple[Explanation, ...] = ()
    ttft: Distribution | None = None
    total: Distribution | None = None
    counts: dict[str, int] = {}
