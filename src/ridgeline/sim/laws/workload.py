"""Draws of one seed: tiny sizes, a random subset of features, and everything that will arrive and when.

Owns the swarm's draws (all from one `random.Random(seed)`); never runs anything. Times are seconds of virtual time.
"""

from dataclasses import dataclass, replace
from random import Random
from typing import Any

from ridgeline.core.commands import Abort, Admit, Command
from ridgeline.core.params import Admitted, Limits, SamplingParams
from ridgeline.core.plan import KVGroup, KVShape
from ridgeline.core.step_time import UNBOUNDED
from ridgeline.engine.admit import ModelLimits, admit
from ridgeline.engine.executor import ExecutorInfo
from ridgeline.errors import RequestError
from ridgeline.sim.laws.model import FakeModel, Latency

STEP_SECONDS = 0.004
TOKEN_SECONDS = 0.0001
STOP_TOKEN = 1
ALPHABET_FROM = 4
VOCAB = 64
MOST_REQUESTS = 1024
WINDOWS = ((0,), (0, 4), (0, 4), (3, 0), (0, 7), (0, 12), (5,), (0, 2, 9), (6, 0, 3), (0, 16))
POLICIES = ("fcfs",) * 11 + ("priority",) * 9 + ("static", "one")


@dataclass(frozen=True, slots=True)
class World:
    """One seed's world.

    inbound        commands and the times at which they arrive, in order
    late           seconds from an output to the edge's answer to it (a stop string found, a provisional end seen)
    impatience     so many of 1,000 preemptions, provisional ends and waits make the client hang up at once
    repeats        the edge answers some ends twice
    eager          the executor computes a step when it is submitted, not when it is collected
    drafts         ids drafted for a row and step at most; 0: none are
    """

    seed: int
    info: ExecutorInfo
    limits: Limits
    policy: str
    model: FakeModel
    latency: Latency
    inbound: tuple[tuple[float, Command], ...]
    late: float
    impatience: int
    repeats: bool
    eager: bool
    drafts: int = 0


def draw(seed: int) -> World:
    """The world of this seed."""
    rng, paced, tiered, drafted = Random(seed), Random(seed + 3), Random(seed + 4), Random(seed + 5)
    block_tokens = rng.choice((1, 2, 4, 4, 16))
    windows = rng.choice(WINDOWS)
    longest = rng.choice((16, 24, 32, 48, 64, 96))
    rows = rng.choice((1, 4, 8, 12, *(16,) * 8))
    drafts = drafted.choice((0, 1, 2, 3, 4, 4, 8))
    limits = Limits(
        rows=rows,
        samples=drafted.choice((0, 1 + drafts, rows + drafts, rows * (1 + drafts))),
        token_budget=rng.choice((1, 8, 16, 24, 32, 48, *(64,) * 4)),
        depth=rng.randint(1, 4),
        mixed_tokens=paced.choice((UNBOUNDED, 24, 12, 5)),
        row_tokens=paced.choice((1.0, 2.75)),
        max_model_len=longest,
        max_preemptions=rng.choice((1, 2, 8)),
        max_waiting=rng.choice((6,) + (256,) * 9),
        prefix_caching=rng.random() < 0.75,
    )
    whole = len(windows) * -(-longest // block_tokens)
    blocks = min(max(2 * len(windows), int(whole * rng.choice((0.4, 1.5, 3.0, 5.0, rows / 2, rows)))), 200)
    model = FakeModel(
        alphabet=tuple(range(ALPHABET_FROM, ALPHABET_FROM + rng.choice((2, 4, 40)))),
        stop_ids=(STOP_TOKEN,),
        stop_permille=rng.choice((0, 10, 30)),
        identities=rng.choice((1, 1, 2, 4)),
        nan_permille=rng.choice((0, 0, 50, 150)),
        nan_positions=longest,
    )
    policy = rng.choice(POLICIES)
    together = 1 if policy == "one" else min(rows, limits.token_budget, max(1, 2 * blocks // whole))
    groups = tuple(KVGroup("window" if window else "full", (layer,), window) for layer, window in enumerate(windows))
    host_blocks = int(blocks * tiered.choice((0, 0, 0, 0.1, 2.0))) if limits.prefix_caching else 0
    info = ExecutorInfo(KVShape(groups, block_tokens, blocks, b"sim", host_blocks), VOCAB, longest, rows, "sim", 0, 0)
    return World(
        seed=seed,
        info=info,
        limits=limits,
        policy=policy,
        model=model,
        latency=Latency(STEP_SECONDS, TOKEN_SECONDS),
        inbound=_inbound(rng, Random(seed + 2), info, model, together),
        late=STEP_SECONDS * rng.choice((0.0, 1.5, 4.0, 12.0)),
        impatience=rng.choice((0, 0, 100)),
        repeats=rng.random() < 0.2,
        eager=rng.random() < 0.3,
        drafts=drafts,
    )


def _inbound(
    rng: Random, own: Random, info: ExecutorInfo, model: FakeModel, together: int
) -> tuple[tuple[float, Command], ...]:
    """Requests and hang-ups, sorted by time. `own` draws what the scheduler does not see of a request."""
    requests = rng.randint(3, 8) + rng.randint(16, 26) * (together - 1)
    horizon = STEP_SECONDS * requests * rng.choice((0.5, 1.5, 2.0, 2.5))
    burst = rng.choice((0.1, 0.2, 0.5))
    prefixes = [_ids(rng, model, rng.randint(1, info.max_model_len - 1)) for _ in range(rng.choice((1, 2, 6)))]
    aborts = rng.choice((0.0, 0.0, 0.1, 0.4))
    features = _Features.draw(rng, own)
    inbound: list[tuple[float, Command]] = []
    for index in range(requests):
        time = 0.0 if rng.random() < burst else rng.uniform(0, horizon)
        request = _request(rng, own, index, info, model, features, rng.choice(prefixes))
        inbound.append((time, Admit(request)))
        if rng.random() < aborts:
            inbound.append((time + rng.expovariate(1 / (STEP_SECONDS * 15)), Abort(request.request_id)))
    inbound.sort(key=lambda item: item[0])
    return tuple(inbound)


@dataclass(frozen=True, slots=True)
class _Features:
    """The subset of request features that this world uses; each a probability."""

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
    def draw(cls, rng: Random, own: Random) -> "_Features":
        drawn = [rng.choice((0.0, chance)) for chance in (0.3, 0.4, 0.3, 0.1, 0.5, 0.2, 0.05)]
        return cls(*drawn, *[own.choice((0.0, 0.3)) for _ in range(2)])


def _request(
    rng: Random, own: Random, index: int, info: ExecutorInfo, model: FakeModel, features: _Features, prefix: tuple[int, ...]
) -> Admitted:
    """Request number `index`. Its seed is its own in this world: by (seed, choice) the executor knows whose row it computes."""
    longest = info.max_model_len
    prompt = _prompt(rng, model, prefix, longest - 1, info.kv.block_tokens)
    choices = rng.randint(2, 4) if rng.random() < features.choices else 1
    room = min(longest - len(prompt), longest // choices)
    max_tokens = rng.randint(1, room) if rng.random() < 0.5 else min(room, rng.randint(1, 12))
    identity = rng.randrange(model.identities)
    params = SamplingParams(
        n=choices,
        temperature=0.0 if rng.random() < features.greedy else 1.0,
        seed=(rng.randrange(1 << 16) * MOST_REQUESTS + index) * model.identities + identity,
        stop=("stop",) if rng.random() < features.stop_strings else (),
        stop_token_ids=(rng.choice(model.alphabet[1:]),) if rng.random() < features.stop_ids else (),
        ignore_eos=rng.random() < 0.2,
        max_tokens=max_tokens,
        min_tokens=rng.randint(0, max_tokens) if rng.random() < features.min_tokens else 0,
        logprobs=rng.randint(0, 2) if rng.random() < features.logprobs else None,
        **_edits(own, model) if own.random() < features.edits else {},
        prompt_logprobs=own.randint(0, 2) if own.random() < features.scores else None,
    )
    limits = ModelLimits(info.vocab, longest, frozenset({STOP_TOKEN}), info.kv)
    priority = rng.randint(0, 2)
    greedy_client = rng.choice((1 << 20, longest, longest)) if rng.random() < features.unservable else 0
    while True:
        try:
            request = admit(
                prompt,
                params,
                limits,
                request_id=f"r{index}",
                draw_seed=_unseeded,
                bad_words=[model.alphabet[:2]] if params.bad_words else [],
                domain=bytes([identity]),
                priority=priority,
            )
            break
        except RequestError:
            prompt = prompt[: max(1, len(prompt) * 3 // 4)]
            max_tokens = max(1, max_tokens // 2)
            params = replace(params, n=1, max_tokens=max_tokens, min_tokens=0)
    wanted = min(greedy_client, longest - len(prompt)) if greedy_client == longest else greedy_client
    return replace(request, max_tokens=wanted or request.max_tokens)


def _edits(rng: Random, model: FakeModel) -> dict[str, Any]:
    """Some of the parameters that change logits. The first id of the alphabet may always be sampled."""
    others = model.alphabet[1:]
    every: dict[str, Any] = {
        "top_k": 3, "top_p": 0.5, "min_p": 0.1, "presence_penalty": 0.5, "frequency_penalty": -0.5, "repetition_penalty": 1.5,
        "logit_bias": ((rng.choice(others), 5),), "allowed_token_ids": (model.alphabet[0], *rng.choices(others, k=3)), "bad_words": ("ab",),
    }  # fmt: skip
    return {name: every[name] for name in rng.sample(sorted(every), rng.randint(1, 3))}


def _unseeded() -> int:
    raise AssertionError("every simulated request has a seed")


def _prompt(rng: Random, model: FakeModel, prefix: tuple[int, ...], longest: int, block_tokens: int) -> tuple[int, ...]:
    """A shared prefix, cut at, before or behind a block's edge half of the time, and mostly something of its own."""
    length = rng.randint(1, len(prefix))
    if rng.random() < 0.5:
        length = max(1, length // block_tokens * block_tokens + rng.randint(-1, 1))
    ids = prefix[:length]
    if rng.random() < 0.6:
        ids += _ids(rng, model, rng.randint(1, 8))
    return ids[:longest]


def _ids(rng: Random, model: FakeModel, count: int) -> tuple[int, ...]:
    return tuple(rng.choices(model.alphabet, k=count))
