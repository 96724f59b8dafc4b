"""Random world of one seed: tiny sizes, a random subset of features, and all commands with their times.

Owns the swarm's draws (all derived from the seed); runs nothing. Times are seconds of virtual time.
"""

from dataclasses import dataclass, replace
from operator import itemgetter
from random import Random
from typing import Any

from ridgeline.core.commands import Abort, Admit, Command, PinAdapter
from ridgeline.core.drafts.model import DraftCache
from ridgeline.core.pace import Pace
from ridgeline.core.params import Adapter, Admitted, Limits, Sampling, SamplingParams
from ridgeline.core.plan import KVGroup, KVShape
from ridgeline.core.step_time import UNBOUNDED, StepSeconds
from ridgeline.core.thinking import ReasoningMarks, Thinking
from ridgeline.engine.admit import ModelLimits, admit
from ridgeline.engine.executor import ExecutorInfo
from ridgeline.errors import RequestError
from ridgeline.sim.laws.model import FakeModel, Latency

STEP_SECONDS = 0.004
TOKEN_SECONDS = 0.0001
PACED_TOKENS = 16
"""Tokens of a step that takes as long as one with decoding rows may, where the pace is learned."""
STOP_TOKEN = 1
ALPHABET_FROM = 4
VOCAB = 64
MAX_REQUESTS = 1024
WINDOWS = ((0,), (0, 4), (0, 4), (3, 0), (0, 7), (0, 12), (5,), (0, 2, 9), (6, 0, 3), (0, 16))
POLICIES = ("fcfs",) * 8 + ("slo",) * 3 + ("priority",) * 9 + ("static", "one")


@dataclass(frozen=True, slots=True)
class World:
    """The configuration of one seed.

    inbound        commands and the times at which they arrive, in order
    close_delay    seconds from an output to the front end's answer (a stop string found, a provisional end seen)
    abort_permille  so many of 1,000 preemptions, provisional ends and waits make the client abort at once
    repeats_close  the front end sends some closes twice
    eager          the executor computes a step when it is submitted, not when it is collected
    drafts         most drafted ids per row and step; 0: no drafts
    """

    seed: int
    info: ExecutorInfo
    limits: Limits
    policy: str
    model: FakeModel
    latency: Latency
    inbound: tuple[tuple[float, Command], ...]
    close_delay: float
    abort_permille: int
    repeats_close: bool
    eager: bool
    drafts: int = 0
    prior: StepSeconds | None = None
    """Pace of a scheduler that learns it; None: its prefill budget stays."""

    @property
    def keeps_blocks(self) -> bool:
        """True if a tier keeps what is published, and brings it to later requests and engines."""
        return self.limits.prefix_caching and self.seed % 10 in (1, 4, 7)

    def pace(self) -> Pace | None:
        """A pace for one scheduler, whose prior is wrong."""
        return None if self.prior is None else Pace(self.prior, self.latency.step_seconds + PACED_TOKENS * self.latency.token_seconds)


def make_world(seed: int) -> World:
    """The world of this seed."""
    rng, pace_rng, host_rng, draft_rng = Random(seed), Random(seed + 3), Random(seed + 4), Random(seed + 5)
    tenant_rng = Random(seed + 6)
    block_tokens = rng.choice((1, 2, 4, 4, 16))
    windows = rng.choice(WINDOWS)
    max_model_len = rng.choice((16, 24, 32, 48, 64, 96))
    rows = rng.choice((1, 4, 8, 12, *(16,) * 8))
    drafts = draft_rng.choice((0, 1, 2, 3, 4, 4, 8))
    limits = Limits(
        rows=rows,
        samples=draft_rng.choice((0, 1 + drafts, rows + drafts, rows * (1 + drafts))),
        token_budget=rng.choice((1, 8, 16, 24, 32, 48, *(64,) * 4)),
        depth=rng.randint(1, 4),
        mixed_tokens=pace_rng.choice((UNBOUNDED, 24, 12, 5)),
        row_tokens=pace_rng.choice((1.0, 2.75)),
        max_model_len=max_model_len,
        max_preemptions=rng.choice((1, 2, 8)),
        max_waiting=rng.choice((6,) + (256,) * 9),
        prefix_caching=rng.random() < 0.75,
        adapter_slots=Random(seed + 11).choice((0, 0, 0, 0, 0, 1, 2, 4)),
    )
    wrong = pace_rng.choice((0, 0, 0, 0, 0, 0, 0.3, 2.5))
    longest_blocks = len(windows) * -(-max_model_len // block_tokens)
    blocks = min(max(2 * len(windows), int(longest_blocks * rng.choice((0.4, 1.5, 3.0, 5.0, rows / 2, rows)))), 200)
    model = FakeModel(
        alphabet=tuple(range(ALPHABET_FROM, ALPHABET_FROM + rng.choice((2, 4, 40)))),
        stop_ids=(STOP_TOKEN,),
        stop_permille=rng.choice((0, 10, 30)),
        identities=rng.choice((1, 1, 2, 4)),
        nan_permille=rng.choice((0, 0, 50, 150)),
        nan_positions=max_model_len,
    )
    policy = rng.choice(POLICIES)
    max_parallel = 1 if policy == "one" else min(rows, limits.token_budget, max(1, 2 * blocks // longest_blocks))
    groups = tuple(KVGroup("window" if window else "full", (layer,), window) for layer, window in enumerate(windows))
    host_blocks = int(blocks * host_rng.choice((0, 0, 0, 0.1, 2.0))) if limits.prefix_caching else 0
    info = ExecutorInfo(
        KVShape(groups, block_tokens, blocks, b"sim", host_blocks), VOCAB, max_model_len, rows, "sim", 0, 0,
        drafts=_draft_cache(Random(seed + 12), max_model_len, rows) if drafts else None,
    )  # fmt: skip
    inbound = _with_plain_sampling(Random(seed + 13), info, _inbound(rng, Random(seed + 2), info, model, max_parallel))
    inbound = _with_targets(Random(seed + 7), _with_tenants(tenant_rng, inbound))
    return World(
        seed=seed,
        info=info,
        limits=limits,
        policy=policy,
        model=model,
        latency=Latency(STEP_SECONDS, TOKEN_SECONDS),
        inbound=_with_adapters(Random(seed + 8), limits.adapter_slots, inbound),
        close_delay=STEP_SECONDS * rng.choice((0.0, 1.5, 4.0, 12.0)),
        abort_permille=rng.choice((0, 0, 100)),
        repeats_close=rng.random() < 0.2,
        eager=rng.random() < 0.3,
        drafts=drafts,
        prior=StepSeconds(STEP_SECONDS * wrong, TOKEN_SECONDS, TOKEN_SECONDS * wrong) if wrong else None,
    )


def _draft_cache(rng: Random, max_model_len: int, rows: int) -> DraftCache | None:
    """The cache of a draft model, often too small for all rows; None in most worlds, which draft without one."""
    if rng.random() < 0.6:
        return None
    groups, block_tokens = rng.choice((1, 2)), rng.choice((1, 4, 16))
    longest = groups * -(-max_model_len // block_tokens)
    blocks = int(longest * rng.choice((0.5, 1.5, rows))) + groups
    return DraftCache(groups, block_tokens, blocks, rng.choice((max_model_len, 20)), ahead=rng.choice((0, rows, rows)))


def _inbound(rng: Random, extra_rng: Random, info: ExecutorInfo, model: FakeModel, max_parallel: int) -> tuple[tuple[float, Command], ...]:
    """Requests and aborts, sorted by time. `extra_rng` draws features that the scheduler does not see."""
    requests = rng.randint(3, 8) + rng.randint(16, 26) * (max_parallel - 1)
    horizon = STEP_SECONDS * requests * rng.choice((0.5, 1.5, 2.0, 2.5))
    burst = rng.choice((0.1, 0.2, 0.5))
    prefixes = [_ids(rng, model, rng.randint(1, info.max_model_len - 1)) for _ in range(rng.choice((1, 2, 6)))]
    aborts = rng.choice((0.0, 0.0, 0.1, 0.4))
    features = _Features.draw(rng, extra_rng)
    inbound: list[tuple[float, Command]] = []
    for index in range(requests):
        time = 0.0 if rng.random() < burst else rng.uniform(0, horizon)
        request = _request(rng, extra_rng, index, info, model, features, rng.choice(prefixes))
        inbound.append((time, Admit(request)))
        if rng.random() < aborts:
            inbound.append((time + rng.expovariate(1 / (STEP_SECONDS * 15)), Abort(request.request_id)))
    inbound.sort(key=lambda item: item[0])
    return tuple(inbound)


def _with_plain_sampling(rng: Random, info: ExecutorInfo, inbound: tuple[tuple[float, Command], ...]) -> tuple[tuple[float, Command], ...]:
    """The same requests, most or all of them without what keeps a step's drafts from running ahead, where they may."""
    if info.drafts is None or not info.drafts.ahead:
        return inbound
    share = rng.choice((0.9, 1.0, 1.0))
    found: list[tuple[float, Command]] = []
    for time, command in inbound:
        if isinstance(command, Admit) and rng.random() < share:
            sampling = Sampling(temperature=command.request.sampling.temperature)
            command = Admit(replace(command.request, sampling=sampling, min_tokens=0))
        found.append((time, command))
    return tuple(found)


def _with_tenants(rng: Random, inbound: tuple[tuple[float, Command], ...]) -> tuple[tuple[float, Command], ...]:
    """The same requests, of tenants of which one asks for more than the others."""
    weights = [rng.choice((1, 1, 2, 7)) for _ in range(rng.choice((1, 2, 3)))]
    found: list[tuple[float, Command]] = []
    for time, command in inbound:
        if isinstance(command, Admit):
            tenant = max(0, rng.randrange(2 * len(weights)) - len(weights))
            command = Admit(replace(command.request, tenant=f"t{tenant}", weight=weights[tenant]))
        found.append((time, command))
    return tuple(found)


def _with_targets(rng: Random, inbound: tuple[tuple[float, Command], ...]) -> tuple[tuple[float, Command], ...]:
    """The same requests, most with times of arrival and some with targets for their latencies."""
    ttft, itl, arrived = rng.choice((1, 20, 500)), rng.choice((0, 0, 3, 5, 8)), rng.choice((0.5, 1.0))
    found: list[tuple[float, Command]] = []
    for time, command in inbound:
        if isinstance(command, Admit):
            first, gap, came = rng.choice((0, ttft, 4 * ttft)), rng.choice((0, itl)), time if rng.random() < arrived else None
            command = Admit(replace(command.request, arrived=came, ttft_ms=first, itl_ms=gap))
        found.append((time, command))
    return tuple(found)


def _with_adapters(rng: Random, slots: int, inbound: tuple[tuple[float, Command], ...]) -> tuple[tuple[float, Command], ...]:
    """The same requests, some with one of a few adapters where there are slots for any."""
    if not slots:
        return inbound
    known = [Adapter(f"a{number}", bytes([number]) * 4, "") for number in range(1, 1 + rng.choice((1, slots, 3 * slots)))]
    share, pinned = rng.choice((0.3, 0.9, 1.0)), rng.choice((0, 0, 1))
    found: list[tuple[float, Command]] = [(0.0, PinAdapter(known[0].digest, is_pinned=True))] if pinned else []
    for time, command in inbound:
        if isinstance(command, Admit) and rng.random() < share:
            adapter = rng.choice(known)
            command = Admit(replace(command.request, adapter=adapter))
        found.append((time, command))
    if pinned:
        found.append((inbound[len(inbound) // 2][0], PinAdapter(known[0].digest, is_pinned=False)))
    return tuple(sorted(found, key=itemgetter(0)))


@dataclass(frozen=True, slots=True)
class _Features:
    """Probabilities of the request features in this world."""

    choices: float
    stop_strings: float
    min_tokens: float
    stop_ids: float
    greedy: float
    logprobs: float
    unservable: float
    edits: float
    scores: float

    @classmethod
    def draw(cls, rng: Random, extra_rng: Random) -> "_Features":
        drawn = [rng.choice((0.0, chance)) for chance in (0.3, 0.4, 0.3, 0.1, 0.5, 0.2, 0.05)]
        return cls(*drawn, *[extra_rng.choice((0.0, 0.3)) for _ in range(2)])


def _request(
    rng: Random, extra_rng: Random, index: int, info: ExecutorInfo, model: FakeModel, features: _Features, prefix: tuple[int, ...]
) -> Admitted:
    """Request number `index`. Its seed is unique in this world: (seed, choice) identifies a row for the executor."""
    max_model_len = info.max_model_len
    prompt = _prompt(rng, model, prefix, max_model_len - 1, info.kv.block_tokens)
    choices = rng.randint(2, 4) if rng.random() < features.choices else 1
    room = min(max_model_len - len(prompt), max_model_len // choices)
    max_tokens = rng.randint(1, room) if rng.random() < 0.5 else min(room, rng.randint(1, 12))
    identity = rng.randrange(model.identities)
    params = SamplingParams(
        n=choices,
        temperature=0.0 if rng.random() < features.greedy else 1.0,
        seed=(rng.randrange(1 << 16) * MAX_REQUESTS + index) * model.identities + identity,
        stop=("stop",) if rng.random() < features.stop_strings else (),
        stop_token_ids=(rng.choice(model.alphabet[1:]),) if rng.random() < features.stop_ids else (),
        ignore_eos=rng.random() < 0.2,
        max_tokens=max_tokens,
        min_tokens=rng.randint(0, max_tokens) if rng.random() < features.min_tokens else 0,
        logprobs=rng.randint(0, 2) if rng.random() < features.logprobs else None,
        **_edits(extra_rng, model) if extra_rng.random() < features.edits else {},
        prompt_logprobs=extra_rng.randint(0, 2) if extra_rng.random() < features.scores else None,
    )
    limits = ModelLimits(info.vocab, max_model_len, frozenset({STOP_TOKEN}), info.kv)
    priority = rng.randint(0, 2)
    excess_tokens = rng.choice((1 << 20, max_model_len, max_model_len)) if rng.random() < features.unservable else 0
    while True:
        try:
            request = admit(
                prompt,
                params,
                limits,
                request_id=f"r{index}",
                draw_seed=_fail_unseeded,
                bad_words=[model.alphabet[:2]] if params.bad_words else [],
                thinking=_thinking(extra_rng, model, params.thinking_token_budget),
                domain=bytes([identity]),
                priority=priority,
            )
            break
        except RequestError:
            prompt = prompt[: max(1, len(prompt) * 3 // 4)]
            max_tokens = max(1, max_tokens // 2)
            params = replace(params, n=1, max_tokens=max_tokens, min_tokens=0)
    max_output = min(excess_tokens, max_model_len - len(prompt)) if excess_tokens == max_model_len else excess_tokens
    return replace(request, max_tokens=max_output or request.max_tokens)


def _edits(rng: Random, model: FakeModel) -> dict[str, Any]:
    """A random subset of the parameters that change logits. The first id of the alphabet may always be sampled."""
    others = model.alphabet[1:]
    every: dict[str, Any] = {
        "top_k": 3, "top_p": 0.5, "min_p": 0.1, "presence_penalty": 0.5, "frequency_penalty": -0.5, "repetition_penalty": 1.5,
        "logit_bias": ((rng.choice(others), 5),), "allowed_token_ids": (model.alphabet[0], *rng.choices(others, k=3)), "bad_words": ("ab",),
        "thinking_token_budget": rng.randint(0, 8),
    }  # fmt: skip
    asked = {name: every[name] for name in rng.sample(sorted(every), rng.randint(1, 3))}
    if "allowed_token_ids" in asked:
        asked.pop("thinking_token_budget", None)
    return asked


def _thinking(rng: Random, model: FakeModel, tokens: int | None) -> Thinking | None:
    """Reasoning that the prompt has begun; a mark of two ids ends it."""
    if tokens is None:
        return None
    first, second, third = rng.choices(model.alphabet, k=3)
    return Thinking(ReasoningMarks(2, ((0, first, 1), (1, second, 2))), True, tokens, (third, first, second), 2)


def _fail_unseeded() -> int:
    raise AssertionError("every simulated request has a seed")


def _prompt(rng: Random, model: FakeModel, prefix: tuple[int, ...], max_model_len: int, block_tokens: int) -> tuple[int, ...]:
    """A shared prefix, truncated near a block boundary half of the time, and mostly a unique suffix."""
    length = rng.randint(1, len(prefix))
    if rng.random() < 0.5:
        length = max(1, length // block_tokens * block_tokens + rng.randint(-1, 1))
    ids = prefix[:length]
    if rng.random() < 0.6:
        ids += _ids(rng, model, rng.randint(1, 8))
    return ids[:max_model_len]


def _ids(rng: Random, model: FakeModel, count: int) -> tuple[int, ...]:
    return tuple(rng.choices(model.alphabet, k=count))
